package sendgrid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sendgrid/rest"
	sdk "github.com/sendgrid/sendgrid-go"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The Suppressions API lists 500 entries at most. Pages are numbers of entries, so that a page
// that is read while entries are removed may leave some out: they are found when the list is read
// from its beginning.
const listPage = 500

var _ models.ProviderLists = (*Adapter)(nil)

// lists are the suppression lists, with the paths at which they are read and changed. SendGrid
// goes on to deliver to addresses that were blocked.
var lists = []struct {
	models.ProviderList
	read, remove string
}{
	{models.ProviderList{Name: "bounces", Reason: models.HardBounce},
		"/v3/suppression/bounces", "/v3/suppression/bounces"},
	{models.ProviderList{Name: "invalid_emails", Reason: models.HardBounce},
		"/v3/suppression/invalid_emails", "/v3/suppression/invalid_emails"},
	{models.ProviderList{Name: "spam_reports", Reason: models.Complaint},
		"/v3/suppression/spam_reports", "/v3/suppression/spam_reports"},
	{models.ProviderList{Name: "unsubscribes", Reason: models.Unsubscribe},
		"/v3/suppression/unsubscribes", "/v3/asm/suppressions/global"},
	{models.ProviderList{Name: "blocks"}, "/v3/suppression/blocks", "/v3/suppression/blocks"},
}

// Lists implements models.ProviderLists.
func (p *Adapter) Lists() (out []models.ProviderList) {
	for i := range lists {
		out = append(out, lists[i].ProviderList)
	}
	return out
}

// A listed is an entry of any of the lists.
type listed struct {
	Email   parse.Str `json:"email"`
	Created parse.Str `json:"created"` // Unix seconds
	Reason  parse.Str `json:"reason"`
	Status  parse.Str `json:"status"`
}

// ReadList implements models.ProviderLists. Its times are whole seconds, and both count.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (page models.ListPage, err error) {
	for i := range lists {
		if lists[i].Name == q.List {
			page, err = p.readList(ctx, lists[i].read, q, lists[i].Reason)
			if err != nil {
				err = parse.ListError(q.List, err)
			}
			return page, err
		}
	}
	return page, fmt.Errorf("list %s: %w", q.List, models.ErrInvalid)
}

func (p *Adapter) readList(
	ctx context.Context, path string, q models.ListQuery, why models.SuppressionReason,
) (page models.ListPage, err error) {
	form := url.Values{"limit": {strconv.Itoa(listPage)}, "end_time": {strconv.FormatInt(q.To.Unix()+1, 10)}}
	if !q.From.IsZero() {
		form.Set("start_time", strconv.FormatInt(q.From.Unix(), 10))
	}
	offset := 0
	if q.Cursor != "" {
		if offset, err = strconv.Atoi(q.Cursor); err != nil {
			return page, models.ErrInvalid
		}
		form.Set("offset", q.Cursor)
	}
	body, err := p.client.Query(ctx, transport.Query{
		Method:  http.MethodGet,
		URL:     p.base + path + "?" + form.Encode(),
		Header:  http.Header{"Authorization": {"Bearer " + p.keys.Load().api}},
		Timeout: p.timeout,
	})
	if err != nil {
		return page, err
	}
	var items []json.RawMessage
	if json.Unmarshal(body, &items) != nil {
		return page, errors.New("the answer is no JSON that can be read")
	}
	for _, raw := range items {
		var in listed
		parse.Into(raw, &in)
		at, ok := parse.Time(in.Created)
		if !ok || in.Email == "" {
			page.Skipped++
			continue
		}
		e := models.Listed{Email: string(in.Email), Reason: why, Text: parse.Text(string(in.Reason)), At: at}
		if q.List == "bounces" {
			e.Reason = parse.ListedBounce(string(in.Status), string(in.Reason))
		}
		page.Entries = append(page.Entries, e)
	}
	if len(items) >= listPage {
		page.Next = strconv.Itoa(offset + len(items))
	}
	return page, nil
}

// Unlist implements models.ProviderLists.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	for i := range lists {
		if lists[i].Name != list {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		ctx, _ = transport.Record(ctx, time.Time{})
		r := sdk.GetRequest(p.keys.Load().api, lists[i].remove+"/"+url.PathEscape(address), p.base)
		r.Method = rest.Delete
		resp, err := p.rest.SendWithContext(ctx, r)
		if err != nil {
			return fmt.Errorf("list %s: SendGrid cannot be reached", list) // the error has the URL, and so the address
		}
		switch resp.StatusCode {
		case http.StatusOK, http.StatusNoContent, http.StatusNotFound:
			return nil
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("list %s: %w: it answered %d", list, models.ErrNoLists, resp.StatusCode)
		}
		return fmt.Errorf("list %s: SendGrid answered %d", list, resp.StatusCode)
	}
	return fmt.Errorf("list %s: %w", list, models.ErrInvalid)
}
