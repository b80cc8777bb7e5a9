package web

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// PublicURL returns the URL for browsers.
func (f *Frame) PublicURL() string { return f.Public.String() }

// noRoute answers a request for a path without a page, or with a method that its pages do not have. A browser gets an
// error page, and any other client gets a problem, as from the API. Both have the same status with or without a session,
// so that no program mistakes the login page for an answer.
func (f *Frame) noRoute(w http.ResponseWriter, r *http.Request) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	methods := methodsOf(f.mux, r.URL)
	switch {
	case !reads || !strings.Contains(r.Header.Get("Accept"), "text/html"):
		f.Refuse(w, r, methods)
	case len(methods) > 0: // the path of a form, typed or a bookmark
		_ = SeeOther(w, r, f.pageOf(r.URL.Path))
	default:
		v, err := f.Visitor(r)
		if err != nil {
			v = nil // the page is the same for a stranger
		}
		w.Header().Set("Cache-Control", "no-store")
		f.fail(w, r, v, ErrNoPage)
	}
}

// methodsOf returns the methods with which a path has a page or takes a form.
func methodsOf(mux *http.ServeMux, u *url.URL) (out []string) {
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		if _, pattern := mux.Handler(&http.Request{Method: method, URL: u}); pattern != "/" {
			out = append(out, method)
		}
	}
	return out
}

// pageOf returns the page that has the form for a path. The fragment is the section.
func (f *Frame) pageOf(of string) string {
	section := ""
	for at := of; at != "/"; at = path.Dir(at) {
		if slices.Contains(methodsOf(f.mux, &url.URL{Path: at}), http.MethodGet) {
			return (&url.URL{Path: at, Fragment: section}).String()
		}
		section = path.Base(at)
	}
	return "/"
}

// Handler serves a page to a visitor. An error that it returns is shown as an error page.
type Handler func(w http.ResponseWriter, r *http.Request, v *Visitor) error

// forAll calls h without a visitor.
func (f *Frame) forAll(h Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		hurry(w, r)
		if err := h(w, r, nil); err != nil {
			f.fail(w, r, nil, err)
		}
	}
}

// forUsers passes the visitor who is logged in to h, or redirects to the login page.
func (f *Frame) forUsers(h Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f.Visitor(r)
		switch {
		case err == nil:
			known.Mark(r.Context())
			w.Header().Set("Cache-Control", "no-store")
			err = f.limited(w, r, v, h)
		case !errors.Is(err, models.ErrNotFound):
			v = nil
		case r.Method == http.MethodGet && r.Header.Get("Accept") != "text/event-stream":
			err = SeeOther(w, r, "/login?to="+url.QueryEscape(r.URL.RequestURI()))
		case r.Method == http.MethodPost:
			err = f.keepForm(w, r)
		default:
			err = errNoSession
		}
		if err != nil {
			f.fail(w, r, v, err)
		}
	}
}

// isFeed reports whether the route of a request is one of a live feed.
func isFeed(r *http.Request) bool { return strings.HasPrefix(r.Pattern, "GET /live/") }

// limited calls h within the visitor's limits. A live feed counts only until it begins.
func (f *Frame) limited(w http.ResponseWriter, r *http.Request, v *Visitor, h Handler) error {
	end, err := f.Limits.AdmitPage(r.Context(), v.Caller())
	if err != nil {
		return err
	}
	if isFeed(r) {
		end()
	} else {
		defer end()
	}
	return h(w, r, v)
}

// operatorsOnly hides a page from all other users.
func operatorsOnly(h Handler) Handler {
	return func(w http.ResponseWriter, r *http.Request, v *Visitor) error {
		if !v.Operator {
			return ErrNoPage // do not reveal that the page exists
		}
		return h(w, r, v)
	}
}

var errNoSession = service.Fail(service.Unauthorized, "no_session",
	"You are not logged in, or your session has ended. Log in and try again.")

// ErrNoPage is the error for a page that does not exist, or that the visitor may not see.
var ErrNoPage = service.Fail(service.NotFound, "not_found",
	"This page does not exist, or you do not have access to it.")

// fail shows an error page. Errors of the server are logged.
func (f *Frame) fail(w http.ResponseWriter, r *http.Request, v *Visitor, err error) {
	e, ok := errors.AsType[*service.Error](err)
	if !ok {
		e = service.Fail(service.Internal, "internal", "Something went wrong. The server's log has the details.")
	}
	status := e.Kind.Status()
	if status >= http.StatusInternalServerError {
		if r.Context().Err() != nil {
			return // the browser is gone
		}
		f.Log.Error("page failed", "path", r.URL.Path, "err", err)
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if err := f.Render(w, r, v, status, "error",
		Page{Title: http.StatusText(status), Entry: NoEntry, Data: e}); err != nil {
		f.Log.Error("error page failed", "path", r.URL.Path, "err", err)
		http.Error(w, e.Detail, status)
	}
}
