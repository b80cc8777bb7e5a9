package sendgrid

import (
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
	"github.com/safedelivr/safedelivr/providers/internal/kind"
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
	err := l.Ask(ctx, http.MethodPost, logsEndpoint, in, &out)
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
		err := l.Ask(ctx, http.MethodGet, logsEndpoint+"/"+url.PathEscape(m.ID), nil, &details)
		if errors.Is(err, models.ErrNoLookup) { // that message ended meanwhile
			continue
		} else if err != nil {
			return err
		}
		body := details.body()
		if !known {
			ours := l.Parse(body).Events
			l.wanted[request] = len(ours) > 0 && (l.query.Wants == nil || l.query.Wants(ours[0].Log.ChunkID()))
		}
		if l.wanted[request] {
			if err := l.post(body); err != nil {
				return err
			}
		}
	}
	return nil
}

// A logged is a message with its events. The custom arguments are a member of the
// message, of each event, or of both.
type logged struct {
	Args   json.RawMessage              `json:"custom_args"`
	Events []map[string]json.RawMessage `json:"events"`
}

// body returns the events as Parse reads them, the oldest first.
func (m *logged) body() []byte {
	slices.Reverse(m.Events)
	for _, e := range m.Events {
		if len(e["custom_args"]) == 0 && len(m.Args) > 0 {
			e["custom_args"] = m.Args
		}
	}
	body, _ := kind.JSON(m.Events)
	return body
}
