package dashboard

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// maxForm is the size limit of forms in bytes, except for Compose.
const maxForm = 64 << 10

// secured wraps h: it adds security headers to every response and rejects
// cross-origin requests.
func (d *Dashboard) secured(h http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Request refused: it came from another site.", http.StatusForbidden)
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
		if d.secure(r) && !loopbackHost(r.Host) {
			head.Set("Strict-Transport-Security", "max-age=31536000")
		}
		h.ServeHTTP(w, r)
	})
}

func (d *Dashboard) contentPolicy() string {
	forms := "'self'"
	if d.github != nil {
		forms += " " + d.github.origin // the login form redirects there
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"frame-src 'self'; frame-ancestors 'none'; form-action " + forms + "; base-uri 'none'"
}

// previewPolicy is the policy of the content of a message in a sandboxed frame: its
// own styles apply, and nothing is loaded or run.
const previewPolicy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; " +
	"frame-ancestors 'self'; form-action 'none'; base-uri 'none'"

// secure reports whether the browser uses TLS: the request came by TLS, or it came to the public URL and that is
// https.
func (d *Dashboard) secure(r *http.Request) bool {
	return r.TLS != nil || d.public.Scheme == "https" && !loopbackHost(r.Host)
}

// onThisMachine reports whether a request was made on this machine, not through a
// proxy and not by DNS rebinding.
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

// clientAddr returns the client's address, for the list of sessions.
func clientAddr(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
