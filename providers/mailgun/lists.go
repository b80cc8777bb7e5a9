package mailgun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/mail"
	"net/url"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// Mailgun's lists (docs: "Suppressions") are in the order of addresses and cannot be selected by
// time. They are read with types of our own, as logs are; the SDK removes addresses. An
// unsubscription from some tags is one from the categories of these names. A tag that is no name
// of a category is left out.
const (
	bounces      = "bounces"
	complaints   = "complaints"
	unsubscribes = "unsubscribes"

	listLimit = "1000" // entries of a page, at most
	allTags   = "*"
)

var _ models.ProviderLists = (*Adapter)(nil)

// category matches the tags that can be names of categories.
var category = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

// Lists implements models.ProviderLists.
func (p *Adapter) Lists() []models.ProviderList {
	return []models.ProviderList{
		{Name: bounces, Reason: models.HardBounce},
		{Name: complaints, Reason: models.Complaint},
		{Name: unsubscribes, Reason: models.Unsubscribe},
	}
}

// A listed is an entry of any of the lists.
type listed struct {
	Address parse.Str   `json:"address"`
	Created parse.Str   `json:"created_at"` // RFC 2822
	Code    parse.Str   `json:"code"`
	Error   parse.Str   `json:"error"`
	Tags    []parse.Str `json:"tags"`
}

// ReadList implements models.ProviderLists. The cursor is the URL of the page.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (page models.ListPage, err error) {
	first, err := url.Parse(p.base + "/" + p.domain + "/" + q.List + "?limit=" + listLimit)
	if err != nil {
		return page, parse.ListError(q.List, err)
	}
	at := first
	if q.Cursor != "" {
		if at, err = url.Parse(q.Cursor); err != nil || at.Host != first.Host || at.Scheme != first.Scheme {
			return page, parse.ListError(q.List, models.ErrInvalid) // the key must not go elsewhere
		}
	}
	header := http.Header{}
	r := http.Request{Header: header}
	r.SetBasicAuth("api", p.keys.Load().api)
	query := transport.Query{Method: http.MethodGet, URL: at.String(), Header: header, Timeout: p.timeout}
	body, err := p.client.Query(ctx, query)
	if err != nil {
		return page, parse.ListError(q.List, err)
	}
	var in struct {
		Items  []json.RawMessage `json:"items"`
		Paging struct {
			Next string `json:"next"`
		} `json:"paging"`
	}
	if json.Unmarshal(body, &in) != nil {
		return page, parse.ListError(q.List, errors.New("the page is no JSON that can be read"))
	}
	for _, raw := range in.Items {
		var item listed
		parse.Into(raw, &item)
		entries := item.entries(q.List)
		page.Entries = append(page.Entries, entries...)
		if len(entries) == 0 {
			page.Skipped++
		}
	}
	if len(in.Items) > 0 && in.Paging.Next != at.String() {
		page.Next = in.Paging.Next
	}
	return page, nil
}

// entries returns what an entry of a list says: one entry for each tag. It is none if the entry
// cannot be read.
func (e *listed) entries(list string) (out []models.Listed) {
	at, err := mail.ParseDate(string(e.Created))
	if err != nil || e.Address == "" {
		return nil
	}
	one := models.Listed{Email: string(e.Address), Text: parse.Text(string(e.Error)), At: at.UTC()}
	switch list {
	case bounces:
		one.Reason = parse.ListedBounce(string(e.Code), string(e.Error))
	case complaints:
		one.Reason = models.Complaint
	case unsubscribes:
		one.Reason = models.Unsubscribe
		for _, tag := range e.Tags {
			if one.Category = string(tag); tag == allTags {
				one.Category = ""
				return []models.Listed{one}
			}
			if category.MatchString(one.Category) {
				out = append(out, one)
			}
		}
		if len(e.Tags) > 0 {
			return out
		}
	}
	return []models.Listed{one}
}

// Unlist implements models.ProviderLists. An address is removed with all its tags.
func (p *Adapter) Unlist(ctx context.Context, list, address string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	mg, escaped := p.keys.Load().sdk, url.PathEscape(strings.ToLower(address))
	switch list {
	case bounces:
		err = mg.DeleteBounce(recorded(ctx), escaped)
	case complaints:
		err = mg.DeleteComplaint(recorded(ctx), escaped)
	case unsubscribes:
		err = mg.DeleteUnsubscribe(recorded(ctx), escaped)
	default:
		return fmt.Errorf("list %s: %w", list, models.ErrInvalid)
	}
	switch status := statusOf(err); {
	case err == nil || status == http.StatusNotFound:
		return nil
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("list %s: %w: it answered %d", list, models.ErrNoLists, status)
	case status != 0:
		return fmt.Errorf("list %s: Mailgun answered %d", list, status)
	}
	return fmt.Errorf("list %s: Mailgun cannot be reached", list) // the error has the URL, and so the address
}
