package dashboard

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// maxForm bounds what a form may bring, Compose with its recipients aside.
const maxForm = 64 << 10

// secured puts what every answer has around h: headers that keep the pages to
// themselves, and the refusal of requests that other sites made a browser send.
func (d *Dashboard) secured(h http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "This request came from another site, and was refused.", http.StatusForbidden)
	}))
	h = cross.Handler(h)
	policy := d.contentPolicy()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		if d.secure(r) {
			head.Set("Strict-Transport-Security", "max-age=31536000")
		}
		h.ServeHTTP(w, r)
	})
}

func (d *Dashboard) contentPolicy() string {
	forms := "'self'"
	if d.github != nil {
		forms += " " + d.github.origin // the login's form is redirected there
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; " +
		"frame-ancestors 'none'; form-action " + forms + "; base-uri 'none'"
}

// previewPolicy is for what is shown in a sandboxed frame: a mail's own looks,
// and nothing that is loaded or run.
const previewPolicy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; form-action 'none'; base-uri 'none'"

// secure reports whether the browser's way here is TLS. What this machine asks
// of itself is not.
func (d *Dashboard) secure(r *http.Request) bool {
	return d.public.Scheme == "https" && !loopbackHost(r.Host)
}

// onThisMachine reports whether a request was made on this machine and directly:
// not through a proxy, and not by a page whose name was made to point here.
func onThisMachine(r *http.Request) bool {
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

// clientAddr is shown beside a session.
func clientAddr(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
