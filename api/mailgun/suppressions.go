package mailgun

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

// A list is one of Mailgun's suppression lists: the entries of the user's own list with some reasons.
type list struct {
	name    string
	reasons []models.SuppressionReason // the first is that of new entries; none: the list is always empty
}

var lists = []list{
	{"bounces", []models.SuppressionReason{models.HardBounce, models.SoftBounce}},
	{"complaints", []models.SuppressionReason{models.Complaint}},
	{"unsubscribes", []models.SuppressionReason{models.Unsubscribe, models.Manual}},
	{"whitelists", nil},
}

// entry is an entry of a list as Mailgun writes it.
type entry struct {
	Address   string   `json:"address"`
	Code      any      `json:"code,omitempty"` // applications also post a number
	Error     string   `json:"error,omitempty"`
	Tags      []string `json:"tags,omitempty"`
	CreatedAt string   `json:"created_at"`
}

func (l list) entryOf(s *client.Suppression) (entry, bool) {
	e := entry{Address: s.Email, CreatedAt: s.At.UTC().Format(time.RFC1123)}
	switch {
	case !slices.Contains(l.reasons, models.SuppressionReason(s.Reason)):
		return e, false
	case l.name == "bounces":
		e.Code, e.Error = "550", s.ReasonText
	case l.name == "unsubscribes":
		if e.Tags = []string{"*"}; s.Category != "" {
			e.Tags[0] = s.Category
		}
	}
	return e, true
}

// list is GET /v3/{domain}/{list}.
func (l list) list(r *dialect.Request) (dialect.Answer, error) {
	values, items := r.URL.Query(), []entry{}
	p := operation.Page{Limit: 100, Cursor: given(values, "address")}
	if text := given(values, "limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return dialect.Answer{}, wrong("limit", "It must be a number from 1.")
		}
		p.Limit = min(n, operation.MaxPage)
	}
	end := len(l.reasons) == 0 || p.Cursor == "" && slices.Contains([]string{"next", "previous"}, values.Get("page"))
	for !end && len(items) == 0 { // an empty page says that there is no more
		page, err := r.Service.Suppressions.List(r.Context(), r.Who, suppressions.Filter{}, p)
		if err != nil {
			return dialect.Answer{}, err
		}
		for i := range page.Suppressions {
			if e, ok := l.entryOf(&page.Suppressions[i]); ok {
				items = append(items, e)
			}
		}
		p.Cursor = page.Next
		end = p.Cursor == ""
	}
	link := func(page, cursor string) string {
		u := dialect.Origin(r.Request)
		u.Path = r.URL.Path
		u.RawQuery = url.Values{"page": {page}, "address": {cursor}, "limit": {strconv.Itoa(p.Limit)}}.Encode()
		return u.String()
	}
	return dialect.Answer{Body: map[string]any{"items": items, "paging": map[string]string{
		"first": link("first", ""), "last": link("last", ""),
		"previous": link("previous", ""), "next": link("next", p.Cursor),
	}}}, nil
}

// addressIn returns the address at the end of the path. Some clients do not escape a slash in it, or a plus.
func addressIn(r *dialect.Request) string {
	// A router that decodes the path makes a space of a plus. An address has no spaces.
	return strings.ReplaceAll(strings.TrimPrefix(r.Param("address"), "/"), " ", "+")
}

// get is GET /v3/{domain}/{list}/{address}.
func (l list) get(r *dialect.Request) (dialect.Answer, error) {
	entries, err := r.Service.Suppressions.Of(r.Context(), r.Who, addressIn(r))
	if err != nil {
		return dialect.Answer{}, err
	}
	for i := range entries {
		if e, ok := l.entryOf(&entries[i]); ok {
			return dialect.Answer{Body: e}, nil
		}
	}
	return dialect.Answer{}, problem.NoSuch("address")
}

// remove is DELETE /v3/{domain}/{list}/{address}.
func (l list) remove(r *dialect.Request) (dialect.Answer, error) {
	changed := false
	for _, reason := range l.reasons {
		once, err := r.Service.Suppressions.Unsuppress(r.Context(), r.Who, addressIn(r),
			suppressions.Filter{Reason: string(reason)}, "removed by an application that speaks the API of Mailgun")
		var e *problem.Error
		if err != nil && !(errors.As(err, &e) && e.Kind == problem.NotFound) {
			return dialect.Answer{}, err
		}
		changed = changed || once
	}
	if !changed {
		return dialect.Answer{}, problem.NoSuch("address")
	}
	return dialect.Answer{Body: reply{Address: addressIn(r), Message: "The address was removed from the list"}}, nil
}

// add is POST /v3/{domain}/{list}, with a form or with JSON.
func (l list) add(r *dialect.Request) (dialect.Answer, error) {
	if len(l.reasons) == 0 {
		return dialect.Answer{}, malformed("Safedelivr has no whitelists.")
	}
	entries, err := l.read(r)
	if err != nil {
		return dialect.Answer{}, err
	}
	if len(entries) > maxRecipients {
		return dialect.Answer{}, malformed("Too many addresses, max is %d", maxRecipients)
	}
	for i := range entries {
		n := client.NewSuppression{Email: entries[i].Address, Reason: string(l.reasons[0]), Why: entries[i].Error}
		if tags := entries[i].Tags; l.name == "unsubscribes" && len(tags) > 0 && tags[0] != "*" {
			n.Category = tags[0]
		}
		if _, _, err := r.Service.Suppressions.Suppress(r.Context(), r.Who, n, models.FromAPI, service.Repeat{}); err != nil {
			return dialect.Answer{}, err
		}
	}
	message := strconv.Itoa(len(entries)) + " addresses have been added to the " + l.name + " table"
	return dialect.Answer{Body: reply{Message: message}}, nil
}

// read reads the entries of a request.
func (l list) read(r *dialect.Request) (entries []entry, err error) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		raw, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 1<<20))
		if err == nil && json.Unmarshal(raw, &entries) == nil {
			return entries, nil
		}
		return nil, malformed("The body must be a JSON list of objects with an address.")
	}
	f, err := readForm(r, func(string, string, string, io.Reader) error { return malformed("A list takes no files.") })
	if err != nil {
		return nil, err
	}
	if _, err := mail.ParseAddress(f.get("address")); err != nil {
		return nil, malformed("address parameter is not a valid address. please check documentation")
	}
	e := entry{Address: f.get("address"), Error: f.get("error")}
	if tag := f.get("tag"); tag != "" {
		e.Tags = []string{tag}
	}
	return []entry{e}, nil
}
