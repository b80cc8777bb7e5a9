package sendgrid

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The Email Logs API (twilio/sendgrid-oai, spec/json/tsg_logs_v3.json): POST /v3/logs lists
// messages by the time at which they were accepted, without pages, and
// GET /v3/logs/{sg_message_id} returns the events of one. It covers 30 days and needs a key
// that may read it.
//
// Its documentation names no lag and does not promise that the list is complete, so that a
// query without a result proves nothing: LookUp gives no negative evidence.
//
// Queries are by time and address. The message id is in the answer, which an unknown outcome
// lacks, and a category is that of many messages. Events name their log and attempt.
const (
	logsEndpoint = "/v3/logs"
	maxListed    = 1000 // messages of one answer
	lookupLag    = 10 * time.Minute
	lookupWindow = 30 * 24 * time.Hour
	// repeats is how long SendGrid repeats a post that was not received (docs: Event Webhook).
	repeats = 24 * time.Hour
)

var _ models.EventLookup = (*Adapter)(nil)

// LookupLag implements models.EventLookup.
func (p *Adapter) LookupLag() time.Duration { return lookupLag }

// Repeats implements models.EventLookup.
func (p *Adapter) Repeats() time.Duration { return repeats }

// statuses are all statuses of a message.
var statuses = []string{"processed", "delivered", "deferred", "dropped", "bounced", "blocked"}

// errTooMany reports that SendGrid lists only a part of the messages.
var errTooMany = fmt.Errorf("look up events: %w: too many messages in one second", models.ErrPartialLogs)

// LookUp implements models.EventLookup. It finds the events of mail that was accepted in
// the time of the query. If there are more messages than SendGrid lists, it halves the time,
// and then asks for each status alone.
//
// The messages of one request share an id. LookUp reads one of them to see whether the
// request's chunk is wanted.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	from := models.LaterOf(q.From, time.Now().Add(-lookupWindow)).UTC().Truncate(time.Second)
	to := q.To
	if !q.SentBy.IsZero() {
		to = q.SentBy
	}
	to = to.UTC().Add(time.Second - 1).Truncate(time.Second)
	l := lookup{Adapter: p, query: q, post: post, wanted: map[string]bool{}}
	return l.span(ctx, from, to)
}

// A lookup is one call of LookUp.
type lookup struct {
	*Adapter
	query  models.LookupQuery
	post   func(body []byte) error
	wanted map[string]bool // by id of a request, as far as it is known
}

// A summary is a message in the list.
type summary struct {
	ID string `json:"sg_message_id"`
	To string `json:"to_email"`
}

// span reads the messages that were accepted in [from, to), which are whole seconds.
func (l *lookup) span(ctx context.Context, from, to time.Time) error {
	if !from.Before(to) {
		return nil
	}
	list, err := l.list(ctx, from, to, "")
	if err != nil {
		return err
	}
	if len(list) < maxListed {
		return l.read(ctx, list)
	}
	if half := to.Sub(from) / 2; half >= time.Second {
		middle := from.Add(half.Truncate(time.Second))
		if err := l.span(ctx, from, middle); err != nil {
			return err
		}
		return l.span(ctx, middle, to)
	}
	for _, status := range statuses {
		list, err := l.list(ctx, from, to, status)
		if err != nil {
			return err
		}
		if err := l.read(ctx, list); err != nil {
			return err
		}
		if len(list) >= maxListed {
			return errTooMany // what was found counts, but this is no answer
		}
	}
	return nil
}

// list returns the messages that were accepted in [from, to) and have a status, if one is
// given.
func (l *lookup) list(ctx context.Context, from, to time.Time, status string) ([]summary, error) {
	query := fmt.Sprintf(`sg_message_id_created_at >= TIMESTAMP "%s" AND sg_message_id_created_at < TIMESTAMP "%s"`,
		from.Format(time.RFC3339), to.Format(time.RFC3339))
	// How quotes are escaped is not documented. Without the condition there are only more
	// messages.
	if to := l.query.Recipient; to != "" && !strings.ContainsAny(to, `"\`) {
		query += ` AND to_email = "` + to + `"`
	}
	if status != "" {
		query += ` AND status IN ('` + status + `')`
	}
	in := map[string]any{"query": query, "limit": maxListed}
	var out struct {
		Messages []summary `json:"messages"`
	}
	err := l.get(ctx, http.MethodPost, logsEndpoint, in, &out)
	return out.Messages, err
}

// read posts the events of messages.
func (l *lookup) read(ctx context.Context, list []summary) error {
	for _, m := range list {
		request, _, _ := strings.Cut(m.ID, ".")
		wanted, known := l.wanted[request]
		if known && !wanted || l.query.Recipient != "" && !strings.EqualFold(m.To, l.query.Recipient) {
			continue
		}
		var details logged
		err := l.get(ctx, http.MethodGet, logsEndpoint+"/"+url.PathEscape(m.ID), nil, &details)
		if err != nil && !errors.Is(err, models.ErrNoLookup) { // that message ended meanwhile
			return err
		}
		if err == nil {
			chunk, ok := details.chunk()
			l.wanted[request] = ok && (l.query.Wants == nil || l.query.Wants(chunk))
		}
		if !l.wanted[request] {
			continue
		}
		if err := l.post(details.body()); err != nil {
			return err
		}
	}
	return nil
}

// get sends a query. Its answer is decoded into out.
func (p *Adapter) get(ctx context.Context, method, path string, in, out any) error {
	q := transport.Query{
		Method:  method,
		URL:     p.base + path,
		Header:  http.Header{"Authorization": {"Bearer " + p.keys.Load().api}},
		Timeout: p.timeout,
	}
	if in != nil {
		var err error
		if q.Body, err = encode(in); err != nil {
			return err
		}
	}
	body, err := p.client.Query(ctx, q)
	if err != nil {
		return fmt.Errorf("look up events: %w", err)
	}
	if json.Unmarshal(body, out) != nil {
		return errors.New("look up events: the answer is no JSON that can be read")
	}
	return nil
}

// A logged is a message with its events. The custom arguments are a member of the
// message, of each event, or of both.
type logged struct {
	Args   customArgs                   `json:"custom_args"`
	Events []map[string]json.RawMessage `json:"events"`
}

type customArgs struct {
	Log     parse.Str `json:"sd_log"`
	Attempt parse.Str `json:"sd_attempt"`
}

// chunk returns the chunk of a message. ok is false if the message is not ours.
func (m *logged) chunk() (id models.ID, ok bool) {
	args := m.Args
	for _, e := range m.Events {
		if args.Log == "" {
			parse.Into(e["custom_args"], &args)
		}
	}
	log, _, why := parse.Ours(args.Log, args.Attempt)
	return log.ChunkID(), why == ""
}

// body returns the events as a webhook holds them: the oldest first, with the custom
// arguments among their other members.
func (m *logged) body() []byte {
	events := slices.Clone(m.Events)
	slices.Reverse(events)
	for _, e := range events {
		args := m.Args
		if raw := e["custom_args"]; len(raw) > 0 {
			var own customArgs
			parse.Into(raw, &own)
			args = customArgs{cmp.Or(own.Log, args.Log), cmp.Or(own.Attempt, args.Attempt)}
			delete(e, "custom_args")
		}
		e[logKey], _ = json.Marshal(args.Log)
		e[attemptKey], _ = json.Marshal(args.Attempt)
	}
	body, _ := encode(events)
	return body
}
