package smtp2go

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// lists are the suppressions by their type. Those of the types manual and compliance hold only at SMTP2GO.
var lists = []models.ProviderList{
	{Name: "bounce", Reason: models.HardBounce},
	{Name: "spam", Reason: models.Complaint},
	{Name: "unsubscribe", Reason: models.Unsubscribe},
}

// allowed returns the error of a query. One that the key does not allow has the status 400 at SMTP2GO: it becomes 403.
func allowed(err error) error {
	var refused *transport.RefusedError
	if errors.As(err, &refused) {
		if code, words := errorOf(refused.Body); code == denied || noKey.MatchString(words) {
			refused.Status = http.StatusForbidden
		}
	}
	return err
}

// A page is one of a query, or all of it.
type page struct {
	Next    string `json:"continue_token"`
	Events  []json.RawMessage
	Results []json.RawMessage
	Domains []struct {
		Domain struct {
			Name   string `json:"fulldomain"`
			DKIM   bool   `json:"dkim_verified"`
			Return bool   `json:"rpath_verified"`
		}
	}
}

// ask sends a query and decodes the data of its answer.
func (p *Adapter) ask(ctx context.Context, path string, in, out any) error {
	var answer struct{ Data json.RawMessage }
	err := p.Ask(ctx, http.MethodPost, "/v3"+path, in, &answer)
	parse.Into(answer.Data, out)
	return allowed(err)
}

// period returns a query for what happened in a time. Without it SMTP2GO shows a few days.
func period(from, to time.Time) map[string]any {
	if from.IsZero() {
		from = time.Unix(0, 0)
	}
	return map[string]any{"start_date": from.UTC().Format(time.RFC3339),
		"end_date": to.UTC().Add(time.Second).Format(time.RFC3339)}
}

// ReadList implements models.ProviderLists. A suppressed domain is an entry that cannot be read. The times are UTC.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	type entry struct {
		Email parse.Str `json:"email_address"`
		At    parse.Str `json:"timestamp"`
		Text  parse.Str `json:"block_description"`
	}
	in := period(q.From, q.To)
	if in["suppression_type"] = q.List; q.Cursor != "" {
		in["continue_token"] = q.Cursor
	}
	return kind.ReadList(&p.Base, q.List, func() ([]json.RawMessage, string, error) {
		var out page
		err := p.ask(ctx, "/suppression/view", in, &out)
		if out.Next == q.Cursor { // it follows itself
			out.Next = ""
		}
		return out.Results, out.Next, err
	}, func(list models.ProviderList, e *entry) []models.Listed {
		if !strings.Contains(string(e.Email), "@") {
			return nil
		}
		at := strings.Replace(strings.TrimSuffix(string(e.At), "+00:00"), " ", "T", 1) + "Z"
		return kind.Entry(e.Email, parse.Str(at), list.Reason, e.Text)
	})
}

// Unlist implements models.ProviderLists.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	in := map[string]any{"email_address": address, "reasons": []string{list}}
	err := allowed(p.Remove(ctx, list, http.MethodPost, "/v3/suppression/remove", in, nil))
	if errors.Is(err, models.ErrNoLookup) {
		err = fmt.Errorf("%w: %w", models.ErrNoLists, err)
	}
	return err
}

// LookUp implements models.EventLookup. It reads the events of the time of the query. The activity cannot be searched
// for a header field.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	in := period(q.From, q.To)
	in["limit"], in["custom_headers"] = 1000, []string{logField, attemptField}
	if q.Recipient != "" {
		in["search_recipient"] = q.Recipient
	}
	return kind.Pages(func(cursor string) (string, error) {
		if cursor != "" {
			in["continue_token"] = cursor
		}
		var out page
		err := p.ask(ctx, "/activity/search", in, &out)
		for i := 0; i < len(out.Events) && err == nil; i++ {
			err = repost(out.Events[i], &q, post)
		}
		return out.Next, err
	})
}

// repost posts an event of the activity as a webhook holds it, if it concerns a log that is wanted.
func repost(raw json.RawMessage, q *models.LookupQuery, post func(body []byte) error) error {
	var e struct {
		Event, Date, Recipient, Error, Reason string

		ID      string `json:"email_id"`
		Reply   string `json:"smtp_response"`
		Headers fields `json:"custom_headers"`
	}
	parse.Into(raw, &e)
	log, _, why := parse.Ours(e.Headers.Log, e.Headers.Attempt)
	if why != "" || !q.Want(log.ChunkID()) || e.Event == "resubscribed" {
		return nil
	}
	bounce, _ := strings.CutSuffix(e.Event, "-bounced")
	body, err := kind.JSON(map[string]any{"event": e.Event, "time": e.Date, "rcpt": e.Recipient, "email_id": e.ID,
		"message": strings.TrimSpace(e.Reply + " " + e.Error + " " + e.Reason), "bounce": bounce,
		logField: e.Headers.Log, attemptField: e.Headers.Attempt})
	if err == nil {
		err = post(body)
	}
	return err
}

// Inspect implements inspect.Inspector. It reads what the key may do, the domains and the webhooks.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	const todo = "Create an API key at SMTP2GO (Sending → API Keys) that may use Emails, Activity, Suppressions, Sender " +
		"domains and Webhooks, and set it as api_key."
	var may []string
	if err := p.ask(ctx, "/api_keys/permissions", nil, &may); err != nil {
		return a, p.BadKey(&a, err, todo)
	}
	has := func(path string) bool { return slices.Contains(may, path) }
	a.Check("key", "may send mail", has("/email/send") && has("/email/batch"), "may not send mails and batches", todo)
	var in page
	var hooks []struct {
		URL     string
		Events  []string
		Headers json.RawMessage // a list, or a text
		Auth    *string         `json:"auth_header_type"` // an answer may lack it
	}
	outs := []any{nil, &in, &hooks}
	for i, path := range []string{"/activity/search", "/domain/view", "/webhook/view"} {
		if !has(path) {
			a.Add(inspect.Warning, "key", "may not use "+path, todo)
		} else if outs[i] != nil {
			err = cmp.Or(err, p.ask(ctx, path, nil, outs[i]))
		}
	}
	for _, d := range in.Domains {
		a.Check("domain", d.Domain.Name+" is verified", d.Domain.DKIM && d.Domain.Return,
			d.Domain.Name+" is not verified", "Publish its DNS records at SMTP2GO (Sending → Verified Senders).")
	}
	if webhookURL == "" || !has("/webhook/view") {
		return a, err
	}
	var list []kind.Hook
	var headers string
	for _, h := range hooks {
		list = append(list, kind.Hook{URL: h.URL, Events: h.Events, Secret: h.Auth == nil || *h.Auth != ""})
		headers += strings.ToLower(string(h.Headers))
	}
	events.InspectHooks(&a, webhookURL, list,
		"Add a webhook at SMTP2GO (Settings → Webhooks) with the URL "+webhookURL+" and these events.",
		"Set the authorization header of the webhook to what webhook_key has.")
	a.Check("webhooks", "have our header fields", strings.Contains(headers, strings.ToLower(logField)) &&
		strings.Contains(headers, strings.ToLower(attemptField)), "lack the header fields "+logField+" and "+attemptField,
		"Add both to the webhook at SMTP2GO (Email headers), because they name the recipient of an event.")
	return a, err
}
