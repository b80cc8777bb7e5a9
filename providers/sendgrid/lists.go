package sendgrid

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// The Suppressions API lists 500 entries at most. Pages are numbers of entries, so that a page
// that is read while entries are removed may leave some out: they are found when the list is read
// from its beginning.
const listPage = 500

// lists are the suppression lists. SendGrid goes on to deliver to addresses that were blocked.
var lists = []models.ProviderList{
	{Name: "bounces", Reason: models.HardBounce},
	{Name: "invalid_emails", Reason: models.HardBounce},
	{Name: "spam_reports", Reason: models.Complaint},
	{Name: "unsubscribes", Reason: models.Unsubscribe},
	{Name: "blocks"},
}

// suppressions is the path of the lists.
const suppressions = "/v3/suppression/"

// A listed is an entry of any of the lists.
type listed struct {
	Email   parse.Str `json:"email"`
	Created parse.Str `json:"created"` // Unix seconds
	Reason  parse.Str `json:"reason"`
	Status  parse.Str `json:"status"`
}

// ReadList implements models.ProviderLists. Its times are whole seconds, and both count.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (page models.ListPage, err error) {
	list, err := p.List(q.List)
	form := url.Values{"limit": {strconv.Itoa(listPage)}, "end_time": {strconv.FormatInt(q.To.Unix()+1, 10)}}
	if !q.From.IsZero() {
		form.Set("start_time", strconv.FormatInt(q.From.Unix(), 10))
	}
	offset := 0
	if q.Cursor != "" {
		if offset, err = strconv.Atoi(q.Cursor); err != nil {
			err = fmt.Errorf("%w: cursor %q", models.ErrInvalid, q.Cursor)
		}
		form.Set("offset", q.Cursor)
	}
	var items []json.RawMessage
	if err == nil {
		err = p.Ask(ctx, http.MethodGet, suppressions+q.List+"?"+form.Encode(), nil, &items)
	}
	if err != nil {
		return page, kind.ListError(q.List, err)
	}
	page = kind.Page(items, func(in *listed) []models.Listed {
		at, ok := parse.Time(in.Created)
		if !ok || in.Email == "" {
			return nil
		}
		e := models.Listed{Email: string(in.Email), Reason: list.Reason, Text: parse.Text(string(in.Reason)), At: at}
		if q.List == "bounces" {
			e.Reason = parse.ListedBounce(string(in.Status), string(in.Reason))
		}
		return []models.Listed{e}
	})
	if len(items) >= listPage {
		page.Next = strconv.Itoa(offset + len(items))
	}
	return page, nil
}

// Unlist implements models.ProviderLists.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	if _, err := p.List(list); err != nil {
		return kind.ListError(list, err)
	}
	path := suppressions + list
	if list == "unsubscribes" {
		path = "/v3/asm/suppressions/global"
	}
	return p.Remove(ctx, list, http.MethodDelete, path+"/"+url.PathEscape(address), nil, nil)
}
