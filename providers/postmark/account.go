package postmark

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// lists are the suppressions by their reason.
var lists = []models.ProviderList{
	{Name: "HardBounce", Reason: models.HardBounce},
	{Name: "SpamComplaint", Reason: models.Complaint},
	{Name: "ManualSuppression", Reason: models.Unsubscribe},
}

const suppressions = "/message-streams/" + stream + "/suppressions"

// ReadList implements models.ProviderLists. A list has one page, and is selected by days.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	type entry struct{ EmailAddress, Origin, CreatedAt parse.Str }
	return kind.ReadList(&p.Base, q.List, func() ([]json.RawMessage, string, error) {
		path := suppressions + "/dump?SuppressionReason=" + q.List
		if !q.From.IsZero() {
			path += "&fromdate=" + q.From.Add(-24*time.Hour).Format(time.DateOnly) // its days are those of another zone
		}
		var in struct{ Suppressions []json.RawMessage }
		err := p.Ask(ctx, http.MethodGet, path, nil, &in)
		return in.Suppressions, "", err
	}, func(list models.ProviderList, e *entry) []models.Listed {
		if list.Reason == models.Unsubscribe && e.Origin != "Recipient" {
			list.Reason = "" // the customer added it
		}
		return kind.Entry(e.EmailAddress, e.CreatedAt, list.Reason, "")
	})
}

// Unlist implements models.ProviderLists. Complaints cannot be removed.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	type entries struct {
		Suppressions []struct{ EmailAddress, Status string }
	}
	in, out := entries{make([]struct{ EmailAddress, Status string }, 1)}, entries{}
	in.Suppressions[0].EmailAddress = address
	err := p.Remove(ctx, list, http.MethodPost, suppressions+"/delete", in, &out)
	if err == nil && len(out.Suppressions) > 0 && out.Suppressions[0].Status == "Failed" {
		return fmt.Errorf("list %s: Postmark does not remove the address", list)
	}
	return err
}

// maxMessages is how many messages of a search Postmark shows.
const maxMessages = 10_000

// LookUp implements models.EventLookup. It searches the messages that were sent in the time of the query, and reads the
// events of those that are wanted.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	// The times are those of the US East Coast, which is five hours behind UTC, or four in summer.
	const layout = "2006-01-02T15:04:05"
	form := url.Values{"count": {"500"}, "fromdate": {q.From.UTC().Add(-5 * time.Hour).Format(layout)},
		"todate": {q.Until().UTC().Add(-4*time.Hour + time.Second).Format(layout)}}
	if q.Recipient != "" {
		form.Set("recipient", q.Recipient)
	}
	for offset := 0; offset < maxMessages; offset += 500 {
		form.Set("offset", strconv.Itoa(offset))
		var page struct{ Messages []sent }
		if err := p.Ask(ctx, http.MethodGet, "/messages/outbound?"+form.Encode(), nil, &page); err != nil {
			return err
		}
		for i := range page.Messages {
			m := &page.Messages[i]
			var own kind.Ours
			parse.Into(m.Metadata, &own)
			log, _, why := parse.Ours(own.Log, own.Attempt)
			if why != "" || !q.Want(log.ChunkID()) {
				continue
			}
			if err := p.readMessage(ctx, m, post); err != nil {
				return err
			}
		}
		if len(page.Messages) < 500 {
			return nil
		}
	}
	return fmt.Errorf("look up events: %w: more than %d messages", models.ErrPartialLogs, maxMessages)
}

// A sent is a message of a search.
type sent struct {
	MessageID, ReceivedAt parse.Str
	Recipients            []string
	Metadata              json.RawMessage
}

// records are the types of events in the details of a message, by their names in webhooks.
var records = map[string]string{
	taken: taken, "Delivered": "Delivery", "Transient": "Bounce", "Bounced": "Bounce", "Opened": "Open",
	"LinkClicked": "Click",
}

// readMessage posts the events of a message as webhooks hold them, and that Postmark has it. That is known even if
// there are no events yet. Of a bounce only the ID is known, so it is read. What is gone meanwhile is left out.
func (p *Adapter) readMessage(ctx context.Context, m *sent, post func(body []byte) error) error {
	type entry struct {
		Recipient, Type, ReceivedAt string
		Details                     struct{ DeliveryMessage, BounceID, Link string }
	}
	var in struct{ MessageEvents []entry }
	_, err := p.item(ctx, "/messages/outbound/"+url.PathEscape(string(m.MessageID))+"/details", &in)
	for _, to := range m.Recipients {
		in.MessageEvents = append(in.MessageEvents, entry{Recipient: to, Type: taken, ReceivedAt: string(m.ReceivedAt)})
	}
	for _, e := range in.MessageEvents {
		out := map[string]any{"Recipient": e.Recipient, "ReceivedAt": e.ReceivedAt, "Details": e.Details.DeliveryMessage,
			"OriginalLink": e.Details.Link}
		found := err == nil && records[e.Type] != ""
		switch {
		case found && e.Type == "Transient":
			out["Type"] = e.Type // the webhooks of other events have none, and their IDs are made of what they have
		case found && e.Type == "Bounced":
			bounce := map[string]json.RawMessage{}
			found, err = p.item(ctx, "/bounces/"+url.PathEscape(e.Details.BounceID), &bounce)
			for name, value := range bounce {
				out[name] = value
			}
		}
		out["RecordType"], out["MessageID"], out["Metadata"] = records[e.Type], m.MessageID, m.Metadata
		if body, wrong := kind.JSON(out); found && wrong == nil {
			err = post(body)
		}
	}
	return err
}

// item decodes one item, and reports whether it exists. The answer for one that does not is 422 with a code of its own,
// and must not count as one that allows no look-ups.
func (p *Adapter) item(ctx context.Context, path string, out any) (found bool, err error) {
	err = p.Ask(ctx, http.MethodGet, path, nil, out)
	status, _ := kind.Status(err)
	if status == http.StatusUnprocessableEntity || status == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// Inspect implements inspect.Inspector. It reads the server and the webhooks of the stream. A token of a server may not
// list the domains of the account.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	var server struct{ Name, DeliveryType string }
	if err := p.Ask(ctx, http.MethodGet, "/server", nil, &server); err != nil {
		return a, p.BadKey(&a, err, "Copy the token of a server at Postmark (API Tokens), and set it as api_key.")
	}
	a.Check("key", "may send mail as the server "+server.Name, server.DeliveryType != "Sandbox",
		"is of a sandbox server, which delivers nothing", "Use the token of a live server.")
	if webhookURL == "" {
		return a, nil
	}
	var in struct {
		Webhooks []struct {
			URL         string                     `json:"Url"`
			HTTPAuth    *struct{ Username string } `json:"HttpAuth"`
			HTTPHeaders []json.RawMessage          `json:"HttpHeaders"`
			Triggers    map[string]struct{ Enabled bool }
		}
	}
	if err := p.Ask(ctx, http.MethodGet, "/webhooks?MessageStream="+stream, nil, &in); err != nil {
		return a, err
	}
	var hooks []kind.Hook
	for _, w := range in.Webhooks {
		h := kind.Hook{URL: w.URL, Secret: w.HTTPAuth != nil || len(w.HTTPHeaders) > 0}
		for name, t := range w.Triggers {
			if t.Enabled {
				h.Events = append(h.Events, name)
			}
		}
		hooks = append(hooks, h)
	}
	events.InspectHooks(&a, webhookURL, hooks,
		"Add a webhook at Postmark (Servers → Webhooks) with the URL "+webhookURL+" and these events.",
		"Set basic auth of the webhook to what webhook_key has.")
	return a, nil
}
