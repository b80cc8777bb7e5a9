package mailgun

import (
	"cmp"
	"encoding/json"
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
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

// A list is one of Mailgun's suppression lists.
type list struct {
	name string
	of   dialect.List // without reasons it is always empty
}

var lists = []list{
	{"bounces", dialect.List{models.HardBounce, models.SoftBounce}},
	{"complaints", dialect.List{models.Complaint}},
	{"unsubscribes", dialect.List{models.Unsubscribe, models.Manual}},
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

func (l list) entryOf(s *client.Suppression) entry {
	e := entry{Address: s.Email, CreatedAt: s.At.UTC().Format(time.RFC1123)}
	switch l.name {
	case "bounces":
		e.Code, e.Error = "550", s.ReasonText
	case "unsubscribes":
		e.Tags = []string{cmp.Or(s.Category, "*")}
	}
	return e
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
	end := len(l.of) == 0 || p.Cursor == "" && slices.Contains([]string{"next", "previous"}, values.Get("page"))
	for !end && len(items) == 0 { // an empty page says that there is no more
		entries, next, err := l.of.Page(r, p)
		if err != nil {
			return dialect.Answer{}, err
		}
		for i := range entries {
			items = append(items, l.entryOf(&entries[i]))
		}
		p.Cursor, end = next, next == ""
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
	entries, err := l.of.Of(r, addressIn(r))
	if err == nil && len(entries) == 0 {
		err = problem.NoSuch("address")
	}
	if err != nil {
		return dialect.Answer{}, err
	}
	return dialect.Answer{Body: l.entryOf(&entries[0])}, nil
}

// remove is DELETE /v3/{domain}/{list}/{address}.
func (l list) remove(r *dialect.Request) (dialect.Answer, error) {
	removed, err := l.of.Remove(r, addressIn(r), suppressions.Filter{})
	if err == nil && !removed {
		err = problem.NoSuch("address")
	}
	if err != nil {
		return dialect.Answer{}, err
	}
	return dialect.Answer{Body: reply{Address: addressIn(r), Message: "The address was removed from the list"}}, nil
}

// add is POST /v3/{domain}/{list}, with a form or with JSON.
func (l list) add(r *dialect.Request) (dialect.Answer, error) {
	if len(l.of) == 0 {
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
		n := client.NewSuppression{Email: entries[i].Address, Why: entries[i].Error}
		if tags := entries[i].Tags; l.name == "unsubscribes" && len(tags) > 0 && tags[0] != "*" {
			n.Category = tags[0]
		}
		if err := l.of.Add(r, n); err != nil {
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
