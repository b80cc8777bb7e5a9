package web

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Page is the data of every template. The handler sets the fields up to Data, and
// Render sets the rest.
type Page struct {
	Title  string
	Entry  string // To of the Entry that is marked, or NoEntry; default: that of the room
	Live   string // URL of the page's events; "": the page is not live
	Charts bool   // it needs the scripts for charts
	Editor bool   // it needs the editor of rich text
	Done   string // what was just done; default: what the Call said that led here
	Data   any

	Nav     []navGroup
	Visitor *Visitor
	Theme   string // light, dark, or "": the system's
	Path    string
	Get     string // of the answer to a form: the page to which Back and Reload lead
}

// NoEntry is the Entry of a page on which no entry of the navigation is marked.
const NoEntry = "none"

// Parts renders named parts of a page for live events.
func (f *Frame) Parts(name string, data any, wanted ...string) (Parts, error) {
	return f.views.Parts(name, data, wanted...)
}

// Render writes a page. It renders all of it first, so that a failing template writes nothing.
func (f *Frame) Render(w http.ResponseWriter, r *http.Request, v *Visitor, status int, name string, p Page) error {
	p.Nav, p.Visitor, p.Theme, p.Path = f.nav[:], v, Theme(r), r.URL.RequestURI()
	p.Entry = cmp.Or(p.Entry, f.entries[r.Pattern])
	p.Done = cmp.Or(p.Done, f.done[r.URL.Query().Get("did")])
	if r.Method == http.MethodPost {
		p.Get = f.pageOf(r.URL.Path)
	}
	page, err := f.views.page(name)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := page.ExecuteTemplate(&b, "layout", p); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the browser may be gone
	return nil
}

const themeCookie = "sd_theme"

// Theme returns the theme that the visitor chose, or "".
func Theme(r *http.Request) string {
	if c, err := r.Cookie(themeCookie); err == nil && (c.Value == "light" || c.Value == "dark") {
		return c.Value
	}
	return ""
}

const everyoneCookie = "sd_everyone"

// wantsEveryone reports whether an operator sees the mail of all users: until a switch to the own mail, or by a link.
func wantsEveryone(r *http.Request) bool {
	if r.URL.Query().Get("everyone") == "yes" {
		return true
	}
	c, err := r.Cookie(everyoneCookie)
	return err != nil || c.Value != "no"
}

// setEveryone is POST /everyone: it switches between the visitor's mail and everybody's.
func (f *Frame) setEveryone(w http.ResponseWriter, r *http.Request, _ *Visitor) error {
	form, err := ReadForm(w, r, MaxForm)
	if err != nil {
		return err
	}
	chosen, life := "no", 400*24*time.Hour // the longest that browsers allow
	if form.Get("everyone") == "yes" {
		chosen, life = "", 0
	}
	f.SetCookie(w, r, everyoneCookie, chosen, life)
	return SeeOther(w, r, LocalPath(form.Get("to")))
}

// setTheme is POST /theme.
func (f *Frame) setTheme(w http.ResponseWriter, r *http.Request, _ *Visitor) error {
	form, err := ReadForm(w, r, MaxForm)
	if err != nil {
		return err
	}
	chosen := form.Get("theme")
	life := 400 * 24 * time.Hour // the longest that browsers allow
	if chosen != "light" && chosen != "dark" {
		chosen, life = "", 0
	}
	f.SetCookie(w, r, themeCookie, chosen, life)
	return SeeOther(w, r, LocalPath(form.Get("to")))
}

//go:embed static
var staticFiles embed.FS

// types maps extensions to media types. Files with other extensions are not served.
var types = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// asset is a file in memory.
type asset struct {
	kind, tag     string
	plain, packed []byte // packed is compressed with gzip
}

// assets serves static files under names with a hash of their content, so that
// browsers can cache them permanently.
type assets struct {
	files map[string]asset  // by hashed name
	urls  map[string]string // plain name to path
}

// loadAssets returns the files of the program. They are compressed once.
var loadAssets = sync.OnceValues(func() (*assets, error) {
	a := &assets{files: map[string]asset{}, urls: map[string]string{}}
	return a, fs.WalkDir(staticFiles, "static", func(name string, e fs.DirEntry, err error) error {
		kind := types[path.Ext(name)]
		if err != nil || e.IsDir() || kind == "" {
			return err
		}
		raw, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		var packed bytes.Buffer
		z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err == nil {
			_, err = z.Write(raw)
		}
		if err == nil {
			err = z.Close()
		}
		if err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		sum := sha256.Sum256(raw)
		hash := hex.EncodeToString(sum[:6])
		base := path.Base(name)
		ext := path.Ext(base)
		hashed := strings.TrimSuffix(base, ext) + "." + hash + ext
		a.files[hashed] = asset{kind: kind, tag: `"` + hash + `"`, plain: raw, packed: packed.Bytes()}
		a.urls[base] = "/assets/" + hashed
		return nil
	})
})

// url returns the path of a file. Templates call it; an unknown name fails the
// template.
func (a *assets) url(name string) (string, error) {
	u, ok := a.urls[name]
	if !ok {
		return "", fmt.Errorf("no asset %s", name)
	}
	return u, nil
}

// ServeHTTP implements http.Handler.
func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.kind)
	body := f.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = f.packed
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the browser may be gone
}

// MaxForm is the size limit of forms in bytes, except for Compose.
const MaxForm = 64 << 10

// secured wraps h: it adds security headers to every response and rejects
// cross-origin requests.
func (f *Frame) secured(h http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Request refused: it came from another site.", http.StatusForbidden)
	}))
	h = cross.Handler(h)
	policy := f.contentPolicy()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		if f.secure(r) && !loopbackHost(r.Host) {
			head.Set("Strict-Transport-Security", "max-age=31536000")
		}
		h.ServeHTTP(w, r)
	})
}

func (f *Frame) contentPolicy() string {
	forms := "'self'"
	if origin := f.Accounts.Origin(); origin != "" {
		forms += " " + origin // the login form redirects there
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"frame-src 'self'; frame-ancestors 'none'; form-action " + forms + "; base-uri 'none'"
}

// PreviewPolicy is the policy of the content of a message in a sandboxed frame: its
// own styles apply, and nothing is loaded or run.
const PreviewPolicy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; " +
	"frame-ancestors 'self'; form-action 'none'; base-uri 'none'"

// secure reports whether the browser uses TLS: the request came by TLS, or it came to the public URL and that is
// https.
func (f *Frame) secure(r *http.Request) bool {
	return r.TLS != nil || f.Public.Scheme == "https" && !loopbackHost(r.Host)
}

// OnThisMachine reports whether a request was made on this machine, not through a
// proxy and not by DNS rebinding.
func OnThisMachine(r *http.Request) bool {
	for _, forwarded := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(forwarded) != "" {
			return false
		}
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback() && loopbackHost(r.Host)
}

func loopbackHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// ClientAddr returns the client's address, for the list of sessions.
func ClientAddr(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

// WritePart answers with a part of a page.
func (f *Frame) WritePart(w http.ResponseWriter, page, part string, data any) error {
	out, err := f.Parts(page, data, part)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, err = w.Write(out[part])
	return err
}

// Tab is a filter that can be chosen.
type Tab struct {
	To, Text string
	Here     bool
	Count    int64
	Counted  bool
}

// Address returns a URL. The path may have a fragment.
func Address(path string, q url.Values) string {
	path, fragment, found := strings.Cut(path, "#")
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	if found {
		path += "#" + fragment
	}
	return path
}
