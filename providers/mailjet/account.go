package mailjet

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

const (
	maxPage     = 1000
	maxMessages = 100_000 // that a look-up reads
)

// page reads a page of a resource.
func page[T any](ctx context.Context, p *Adapter, path string) ([]T, error) {
	var in struct{ Data []T }
	err := p.Ask(ctx, http.MethodGet, "/v3/REST/"+path, nil, &in)
	return in.Data, err
}

// A sent is a message of the log.
type sent struct {
	ID         parse.Str
	CustomID   parse.Str
	ContactAlt parse.Str // the address
	At         parse.Str `json:"ArrivedAt"`
	Permanent  parse.Str `json:"StatePermanent"`
}

// LookUp implements models.EventLookup. It lists the messages of the time of the query, and reads the events of those
// that are wanted. The filter by custom ID would need those of all recipients.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	at := func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
	form := url.Values{"ShowCustomID": {"true"}, "ShowContactAlt": {"true"}, "Limit": {strconv.Itoa(maxPage)},
		"FromTS": {at(q.From.Add(-time.Second))}, "ToTS": {at(q.Until().Add(time.Second))}}
	for offset := 0; offset < maxMessages; offset += maxPage {
		form.Set("Offset", strconv.Itoa(offset))
		list, err := page[sent](ctx, p, "message?"+form.Encode())
		if err != nil {
			return err
		}
		for i := range list {
			in := event{CustomID: list[i].CustomID}
			log, _, why := parse.Ours(in.report().Ours.Log, in.report().Ours.Attempt)
			if why != "" || !q.Want(log.ChunkID()) ||
				q.Recipient != "" && !strings.EqualFold(q.Recipient, string(list[i].ContactAlt)) {
				continue
			}
			if err := p.readMessage(ctx, &list[i], post); err != nil {
				return err
			}
		}
		if len(list) < maxPage {
			return nil
		}
	}
	return fmt.Errorf("look up events: %w: more than %d messages", models.ErrPartialLogs, maxMessages)
}

// names are the events of a history by their names in webhooks, where these differ.
var names = map[string]string{"opened": "open", "clicked": "click", "bounced": "bounce", "hardbounced": "bounce",
	"softbounced": "bounce", "unsubscribed": "unsub"}

// readMessage posts the events of a message as webhooks hold them, and that Mailjet has it. That is known even if there
// is no history yet.
func (p *Adapter) readMessage(ctx context.Context, m *sent, post func(body []byte) error) error {
	type entry struct{ EventType, EventAt, Comment, State parse.Str }
	history, err := page[entry](ctx, p, "messagehistory/"+url.PathEscape(string(m.ID)))
	if status, _ := kind.Status(err); err != nil && status != http.StatusNotFound {
		return err
	}
	of := func(name string, at parse.Str) map[string]any {
		return map[string]any{"event": name, "time": at, "MessageID": m.ID, "email": m.ContactAlt, "CustomID": m.CustomID}
	}
	out := []map[string]any{of(queued, m.At)}
	for _, e := range history {
		name := strings.ToLower(string(e.EventType))
		one := of(cmp.Or(names[name], name), e.EventAt)
		one["smtp_reply"], one["comment"], one["error"] = e.Comment, e.Comment, e.State
		one["hard_bounce"] = name == "hardbounced" || name == "bounced" && m.Permanent == "true"
		if name != queued && events.Kind(cmp.Or(names[name], name)) != "" {
			out = append(out, one)
		}
	}
	body, err := kind.JSON(out)
	if err == nil {
		err = post(body)
	}
	return err
}

// Inspect implements inspect.Inspector. It reads the senders and the URLs of events.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	senders, err := page[struct{ Email, Status string }](ctx, p, "sender?Limit=1000")
	if err != nil {
		return a, p.BadKey(&a, err, "Set both keys of Mailjet (Account → API keys) as api_key and secret_key.")
	}
	a.Add(inspect.OK, "key", "may send mail", "")
	for _, s := range senders {
		a.Check("sender", s.Email+" is verified", s.Status == "Active", s.Email+" is not verified: "+s.Status,
			"Verify it at Mailjet (Account → Sender domains & addresses).")
	}
	if len(senders) == 0 {
		a.Add(inspect.Wrong, "domains", "no sender is verified",
			"Add the domain that you send from at Mailjet (Account → Sender domains & addresses).")
	}
	if webhookURL == "" {
		return a, nil
	}
	urls, err := page[struct{ EventType, URL, Status string }](ctx, p, "eventcallbackurl?Limit=1000")
	var hooks []kind.Hook
	for _, u := range urls {
		if u.Status != "dead" {
			hooks = append(hooks, kind.Hook{URL: u.URL, Events: []string{u.EventType}})
		}
	}
	events.InspectHooks(&a, webhookURL, hooks,
		"Set the URL at Mailjet (Account → Event notifications) for these events. Change a suspended one.",
		"Put what webhook_key has before the host in the URL, like https://user:password@mail.example.com.")
	return a, err
}
