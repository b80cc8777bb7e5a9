package mailgun

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// Mailgun's lists (docs: "Suppressions") are in the order of addresses and cannot be selected by
// time. An unsubscription from some tags is one from the categories of these names. A tag that is no name
// of a category is left out.
var lists = []models.ProviderList{
	{Name: bounces, Reason: models.HardBounce},
	{Name: "complaints", Reason: models.Complaint},
	{Name: "unsubscribes", Reason: models.Unsubscribe},
}

const (
	bounces   = "bounces"
	listLimit = "1000" // entries of a page, at most
	allTags   = "*"
)

// category matches the tags that can be names of categories.
var category = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

// A listed is an entry of any of the lists.
type listed struct {
	Address parse.Str   `json:"address"`
	Created parse.Str   `json:"created_at"` // RFC 2822
	Code    parse.Str   `json:"code"`
	Error   parse.Str   `json:"error"`
	Tags    []parse.Str `json:"tags"`
}

// ReadList implements models.ProviderLists. The cursor is the URL of the page.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (out models.ListPage, err error) {
	list, err := p.List(q.List)
	path := version + "/" + p.domain + "/" + q.List + "?limit=" + listLimit
	if q.Cursor != "" {
		path, err = p.Path(q.Cursor)
	}
	var in page
	if err == nil {
		in, err = p.page(ctx, path)
	}
	if err != nil {
		return out, kind.ListError(q.List, err)
	}
	out = kind.Page(in.Items, func(e *listed) []models.Listed { return e.entries(list) })
	if len(in.Items) > 0 && in.Paging.Next != p.Root+path {
		out.Next = in.Paging.Next
	}
	return out, nil
}

// entries returns what an entry of a list says: one entry for each tag. It is none if the entry
// cannot be read.
func (e *listed) entries(list models.ProviderList) (out []models.Listed) {
	at, ok := parse.Time(e.Created)
	if !ok || e.Address == "" {
		return nil
	}
	one := models.Listed{Email: string(e.Address), Reason: list.Reason, Text: parse.Text(string(e.Error)), At: at}
	if list.Name == bounces {
		one.Reason = parse.ListedBounce(string(e.Code), string(e.Error))
	}
	for _, tag := range e.Tags {
		if tag == allTags {
			return []models.Listed{one}
		}
		if category.MatchString(string(tag)) {
			tagged := one
			tagged.Category = string(tag)
			out = append(out, tagged)
		}
	}
	if len(e.Tags) > 0 {
		return out
	}
	return []models.Listed{one}
}

// Unlist implements models.ProviderLists. An address is removed with all its tags.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	if _, err := p.List(list); err != nil {
		return kind.ListError(list, err)
	}
	path := version + "/" + p.domain + "/" + list + "/" + url.PathEscape(strings.ToLower(address))
	return p.Remove(ctx, list, http.MethodDelete, path, nil, nil)
}
