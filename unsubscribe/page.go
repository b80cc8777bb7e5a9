// Package unsubscribe serves the page at which people unsubscribe by the link in a mail, and the one-click request of
// RFC 8058 that their mail program makes. It needs no login: the token in the link is signed.
package unsubscribe

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"strings"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/internal/perclient"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

// Path is the path of the page. The token is appended to it.
const Path = "/unsubscribe/"

// A link that is well formed costs two reads of the store. So an address may make some requests, and all strangers
// together may open this many links, and send as many requests with one click.
const (
	perSecond    = 200
	burst        = 1000
	perAddress   = 50
	addressBurst = 500
	maxForm      = 4 << 10 // bytes
)

//go:embed page.html
var pageText string

//go:embed page.css
var style string

var page = template.Must(template.New("page").Parse(pageText))

// Handler serves the page.
type Handler struct {
	service *service.Service
	log     *slog.Logger
	opens   *rate.Limiter // GET
	clicks  *rate.Limiter // POST
	clients *perclient.Rates
	policy  string
}

// New returns the handler for Path.
func New(svc *service.Service, log *slog.Logger) *Handler {
	sum := sha256.Sum256([]byte(style))
	return &Handler{
		service: svc,
		log:     log,
		opens:   rate.NewLimiter(perSecond, burst),
		clicks:  rate.NewLimiter(perSecond, burst),
		clients: perclient.NewRates(perAddress, addressBurst),
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
	}
}

// view is the data of the page.
type view struct {
	suppressions.Unsubscribing

	Style   template.CSS
	Problem string // instead of a form
	Back    bool   // the recipient gets the mail again
}

// ServeHTTP implements http.Handler. A GET changes nothing, because programs follow links.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", h.policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer") // the token is in the URL
	head.Set("Cache-Control", "no-store")
	head.Set("X-Robots-Tag", "noindex")
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodPost {
		head.Set("Allow", "GET, HEAD, POST")
		h.show(w, http.StatusMethodNotAllowed, view{Problem: "Open this page with a browser."})
		return
	}
	if _, err := models.ParseUnsubscribeToken(strings.TrimPrefix(r.URL.Path, Path)); err != nil {
		h.show(w, http.StatusNotFound, view{Problem: "This link is not valid. Open it again from the mail, as a whole."})
		return
	}
	if !h.allow(r) {
		head.Set("Retry-After", "10")
		h.show(w, http.StatusTooManyRequests, view{Problem: "Too many people are here. Try again in a few seconds."})
		return
	}
	v, err := h.do(w, r)
	var e *service.Error
	switch {
	case err == nil:
		known.Mark(r.Context()) // the link is one of ours
		h.show(w, http.StatusOK, v)
	case errors.As(err, &e) && e.Kind == service.NotFound:
		h.show(w, http.StatusNotFound, view{Problem: "This link is not valid. Open it again from the mail, as a whole."})
	default:
		h.log.Error("unsubscribe page failed", "err", err)
		head.Set("Retry-After", "60")
		h.show(w, http.StatusServiceUnavailable, view{Problem: "That did not work. Try again in a minute."})
	}
}

// allow reports whether a request with a well-formed link may cost something: first of its address, then of all.
func (h *Handler) allow(r *http.Request) bool {
	if !h.clients.Of(perclient.Address(r)).Allow() {
		return false
	}
	if r.Method == http.MethodPost {
		return h.clicks.Allow()
	}
	return h.opens.Allow()
}

// do carries the request out.
func (h *Handler) do(w http.ResponseWriter, r *http.Request) (v view, err error) {
	token := strings.TrimPrefix(r.URL.Path, Path)
	if r.Method != http.MethodPost {
		v.Unsubscribing, err = h.service.Suppressions.Unsubscribing(r.Context(), token)
		return v, err
	}
	v.Unsubscribing, err = h.service.Suppressions.Unsubscribe(r.Context(), token, func() bool {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		v.Back = r.PostFormValue("again") != ""
		return v.Back
	})
	return v, err
}

// show writes a page.
func (h *Handler) show(w http.ResponseWriter, status int, v view) {
	v.Style = template.CSS(style) //nolint:gosec // our own
	var b bytes.Buffer
	if err := page.Execute(&b, v); err != nil {
		h.log.Error("unsubscribe page not made", "err", err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client may be gone
}
