package web

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
)

// Call is the route of a form that carries out an operation, which is a call of the API.
type Call struct {
	Operation string // its name
	// Verbs are the things whose verb the operation is, like "batches". The verb is the part do of the path, or the
	// field do. Others are operations by words that are no verbs. Both are for a Call without Operation.
	Verbs  string
	Others map[string]string
	Own    []string // fields of the page that are not of the operation

	// As returns on whose behalf the operation is carried out; nil: the visitor's. It may complete the form and the
	// parts of the path.
	As func(r *http.Request, v *Visitor, form *Form) service.Caller
	// To is the address of the page that the form leads to. It may have parts of the form's path, like {id}. Its
	// parameter did is a word for what was done, for which the page shows Done.
	To, Done string
	// Then answers in place of To.
	Then    func(w http.ResponseWriter, r *http.Request, v *Visitor, done *Result) error
	Refused Show // the form with its mistakes; nil: an error page

	Handler Handler // of a form that does more, with Do and Next
}

// Result is what an operation did.
type Result struct {
	Form  *Form
	Out   any  // its answer
	Again bool // it was carried out before
}

// Show shows a page with a form, which may have mistakes.
type Show func(w http.ResponseWriter, r *http.Request, v *Visitor, status int, form *Form) error

// Page shows the page with an empty form. It is a Handler.
func (s Show) Page(w http.ResponseWriter, r *http.Request, v *Visitor) error {
	return s(w, r, v, http.StatusOK, &Form{})
}

// Mine is an As: the part id of the path is the visitor.
func Mine(r *http.Request, v *Visitor, _ *Form) service.Caller {
	r.SetPathValue("id", v.User)
	return v.Caller()
}

// Operations are the calls of the API by their names, which forms carry out, too.
type Operations map[string]*operation.Operation

// NewOperations returns operations by their names.
func NewOperations(list []operation.Operation) Operations {
	out := Operations{}
	for i := range list {
		out[list[i].Name] = &list[i]
	}
	return out
}

// Of returns the operation of a form with the word do, or nil.
func (os Operations) Of(c *Call, do string) *operation.Operation {
	if name := cmp.Or(c.Operation, c.Others[do]); name != "" {
		return os[name]
	}
	for _, o := range os {
		if things, verb := o.Verb(); verb == do && things == c.Verbs && do != "" {
			return o
		}
	}
	return nil
}

// calls carries out the operations of forms.
type calls struct {
	operations Operations
	routes     map[string]Call   // by pattern
	done       map[string]string // the Done of routes, by the parameter did
}

// Do carries out the operation of the route that a form was sent to, with what the form and the parts of the path say.
func (cs *calls) Do(r *http.Request, who service.Caller, form *Form) (done *Result, err error) {
	c := cs.routes[r.Pattern]
	return cs.Run(r, who, form, cs.operations.Of(&c, cmp.Or(r.PathValue("do"), form.Get("do"))))
}

// Run carries out another operation, as Do does.
func (cs *calls) Run(
	r *http.Request, who service.Caller, form *Form, o *operation.Operation,
) (done *Result, err error) {
	if o == nil {
		return nil, ErrNoPage
	}
	in := o.New()
	if err := o.ReadForm(in, form.Values, r.PathValue, slices.Concat(cs.routes[r.Pattern].Own, form.own)...); err != nil {
		return nil, err
	}
	var repeat service.Repeat
	if o.Repeats() {
		repeat = form.Repeat(r)
	}
	done = &Result{Form: form}
	done.Out, done.Again, err = o.Run(r.Context(), who, in, repeat)
	return done, err
}

// add adds a route, and returns its handler.
func (cs *calls) add(pattern string, c Call) Handler {
	cs.routes[pattern] = c
	if _, did, found := strings.Cut(c.To, "?did="); found {
		cs.done[did] = c.Done
	}
	if c.Handler != nil {
		return c.Handler
	}
	return func(w http.ResponseWriter, r *http.Request, v *Visitor) error {
		form, err := ReadForm(w, r, MaxForm)
		done := &Result{}
		if err == nil {
			who := v.Caller()
			if c.As != nil {
				who = c.As(r, v, form)
			}
			done, err = cs.Do(r, who, form)
		}
		switch {
		case err != nil && c.Refused != nil && !errors.Is(err, ErrNoPage):
			return form.Refused(err, func(status int) error { return c.Refused(w, r, v, status, form) })
		case err != nil:
			return err
		case c.Then != nil:
			return c.Then(w, r, v, done)
		}
		return cs.Next(w, r)
	}
}

// braces are the parts of a path in the address of a page.
var braces = regexp.MustCompile(`\{\w+\}`)

// Next redirects to the page that a form leads to. The parameters of the form's address stay.
func (cs *calls) Next(w http.ResponseWriter, r *http.Request) error {
	to := braces.ReplaceAllStringFunc(cs.routes[r.Pattern].To, func(part string) string {
		return url.PathEscape(r.PathValue(strings.Trim(part, "{}")))
	})
	at, err := url.Parse(to)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	maps.Copy(q, at.Query())
	at.RawQuery = q.Encode()
	return SeeOther(w, r, at.String())
}
