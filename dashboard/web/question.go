package web

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"

	"github.com/safedelivr/safedelivr/service"
)

// Question is the confirmation before an action: what the action does, to how many
// messages, and what cannot be undone.
type Question struct {
	Title string
	Text  []string
	Do    string // on the button
	Grave bool   // the action cannot be undone, or mail may arrive twice
	To    string // path that the form posts to
	Back  string
	Once  string // idempotency key: a second press changes nothing

	IDs []string // of the selected entries

	Times  any // fields for the times of a batch; nil: there are none
	Status int // of the answer; 0: OK
}

// Ask shows a confirmation: in the page's dialog if htmx asked for it, else as a
// page of its own.
func (f *Frame) Ask(w http.ResponseWriter, r *http.Request, v *Visitor, active string, q *Question) error {
	q.Once, q.To = NewSecret(), r.URL.EscapedPath()
	if list := r.URL.Query().Get("list"); list != "" { // of suppressions
		q.To += "?list=" + url.QueryEscape(list)
	}
	if r.Header.Get("Hx-Request") == "" {
		return f.Render(w, r, v, cmp.Or(q.Status, http.StatusOK), "ask", Page{Title: q.Title, Active: active, Data: q})
	}
	ps, err := f.Parts("ask", q, "ask")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(ps["ask"]) // the browser may be gone
	return nil
}

// Answered reads the form of a confirmation.
func Answered(w http.ResponseWriter, r *http.Request) (why string, repeat service.Repeat) {
	r.Body = http.MaxBytesReader(w, r.Body, MaxForm)
	why = strings.TrimSpace(r.PostFormValue("why"))
	repeat = service.Repeat{Route: "POST " + r.URL.Path, Hash: HashOf(why)}
	if once := r.PostFormValue("once"); len(once) == SecretLength {
		repeat.Key = once + repeat.Hash
	}
	return why, repeat
}

// Action is a button for a command that can be given now.
type Action struct{ Do, Text string }
