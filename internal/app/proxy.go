package app

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/internal/perclient"
	"github.com/safedelivr/safedelivr/models"
)

// unknownClient is the RemoteAddr of a request whose proxy does not report the client's address. It is in no network.
const unknownClient = "unknown"

// A hop is what a proxy reports of a request: the address that it came from, which is invalid if it is not reported,
// and the scheme.
type hop struct {
	from   netip.Addr
	scheme string
}

// trustProxies sets RemoteAddr to the client's address, and TLS according to the client's connection, in requests that
// come from trusted proxies. It ignores what others say of the origin of a request. A client may have perAddress
// requests at a time: through a proxy or HTTP/2 it has many on one connection.
func trustProxies(trusted []netip.Prefix, perAddress int, next http.Handler) http.Handler {
	var open perclient.Counts
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if listed(trusted, perclient.Address(r)) {
			believe(r, trusted)
		}
		if address := perclient.Address(r); !listed(trusted, address) { // the zero address is that of all that are not known
			if !open.Add(address, 1, placesFor(r, int64(perAddress))) {
				api.RefuseConnection(w)
				return
			}
			defer open.Remove(address, 1)
		}
		next.ServeHTTP(w, r)
	})
}

// placesFor returns how many requests an address may have that a request is one of. A quarter is kept for those that
// may be from providers or from users with a key; others are refused soon after they have begun.
func placesFor(r *http.Request, perAddress int64) int64 {
	_, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if models.LooksLikeSecret(secret) || strings.HasPrefix(r.RequestURI, "/webhooks/") {
		return perAddress
	}
	return max(perAddress-perAddress/4, 1)
}

// believe applies the headers Forwarded and X-Forwarded-For of a request from a trusted proxy. If the headers differ,
// one of them is the client's own, and the client is unknown.
func believe(r *http.Request, trusted []netip.Prefix) {
	var found []hop
	if lines := r.Header.Values("Forwarded"); len(lines) > 0 {
		found = append(found, originOf(trusted, forwarded(lines)))
	}
	if lines := r.Header.Values("X-Forwarded-For"); len(lines) > 0 {
		found = append(found, originOf(trusted, xForwarded(lines, r.Header.Values("X-Forwarded-Proto"))))
	}
	if len(found) == 0 {
		return
	}
	h := found[0]
	if found[len(found)-1].from != h.from {
		h.from = netip.Addr{}
	}
	r.RemoteAddr = unknownClient
	if h.from.IsValid() {
		r.RemoteAddr = netip.AddrPortFrom(h.from, 0).String()
	}
	secure := !slices.ContainsFunc(found, func(h hop) bool { return h.scheme != "https" })
	switch {
	case !secure:
		r.TLS = nil
	case r.TLS == nil:
		r.TLS = &tls.ConnectionState{}
	}
}

// originOf returns the first hop, from right to left, that is not one of the trusted proxies. If all are, it returns
// the leftmost.
func originOf(trusted []netip.Prefix, hops []hop) (out hop) {
	for _, out = range slices.Backward(hops) {
		if !listed(trusted, out.from) {
			break
		}
	}
	return out
}

// listed reports whether an address is in one of the networks.
func listed(networks []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap()
	return a.IsValid() && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// xForwarded returns the hops of X-Forwarded-For and X-Forwarded-Proto. Schemes and addresses belong together from
// right to left; a single scheme belongs to all.
func xForwarded(addresses, schemes []string) []hop {
	froms, protos := split(addresses), split(schemes)
	out := make([]hop, len(froms))
	for i, from := range froms {
		out[i].from = node(from)
		switch n := len(protos) - len(froms) + i; {
		case len(protos) == 1:
			out[i].scheme = strings.ToLower(protos[0])
		case n >= 0:
			out[i].scheme = strings.ToLower(protos[n])
		}
	}
	return out
}

// split returns the elements of the lines of a list.
func split(lines []string) (out []string) {
	for _, line := range lines {
		for one := range strings.SplitSeq(line, ",") {
			if one = strings.TrimSpace(one); one != "" {
				out = append(out, one)
			}
		}
	}
	return out
}

// forwarded returns the hops of the lines of Forwarded (RFC 7239). A line that is malformed is one hop that reports
// nothing.
func forwarded(lines []string) (out []hop) {
	for _, line := range lines {
		hops, ok := forwardedLine(line)
		if !ok {
			hops = []hop{{}}
		}
		out = append(out, hops...)
	}
	return out
}

// forwardedLine reads elements like for="[2001:db8::1]:4711";proto=https, separated by commas.
func forwardedLine(line string) (out []hop, ok bool) {
	var h hop
	named := map[string]bool{} // parameters of the element
	for rest := line; ; {
		name, value, after, ok := parameter(rest)
		if !ok || name != "" && named[name] {
			return nil, false
		}
		switch name {
		case "for":
			h.from = node(value)
		case "proto":
			h.scheme = strings.ToLower(value)
		}
		named[name] = true
		if after == "" || after[0] == ',' {
			if len(named) > 1 || !named[""] { // empty elements of a list mean nothing
				out = append(out, h)
			}
			h, named = hop{}, map[string]bool{}
		}
		if after == "" {
			return out, true
		}
		rest = after[1:]
	}
}

// parameter reads name=value, or nothing, up to a semicolon, a comma or the end of the text.
func parameter(s string) (name, value, after string, ok bool) {
	if s = strings.TrimLeft(s, " \t"); s == "" || s[0] == ',' || s[0] == ';' {
		return "", "", s, true
	}
	name, s = token(s)
	if name == "" || s == "" || s[0] != '=' {
		return "", "", "", false
	}
	if s = s[1:]; s != "" && s[0] == '"' {
		value, s, ok = quoted(s[1:])
	} else {
		value, s = token(s)
		ok = value != ""
	}
	s = strings.TrimLeft(s, " \t")
	if !ok || s != "" && s[0] != ',' && s[0] != ';' {
		return "", "", "", false
	}
	return strings.ToLower(name), value, s, true
}

// token returns the token that s begins with (RFC 9110), and the rest.
func token(s string) (out, rest string) {
	n := strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			r < 0x80 && strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
	if n < 0 {
		return s, ""
	}
	return s[:n], s[n:]
}

// quoted returns the quoted string whose first quote was read, and the rest.
func quoted(s string) (out, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// node returns the address of a node, which may have a port. It returns an invalid one for names.
func node(s string) netip.Addr {
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at.Addr().Unmap().WithZone("")
	}
	if in, ok := strings.CutPrefix(s, "["); ok {
		s, _ = strings.CutSuffix(in, "]")
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}
