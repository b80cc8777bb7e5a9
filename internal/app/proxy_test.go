package app

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:1::/48")}

// origin returns what the handlers behind trusted proxies see of a request: the client's address, and whether the
// client uses TLS.
func origin(peer string, header http.Header) (address string, secure bool) {
	r := &http.Request{RemoteAddr: peer, Header: header}
	trustProxies(proxies, 1, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		address, secure = r.RemoteAddr, r.TLS != nil
	})).ServeHTTP(httptest.NewRecorder(), r)
	return address, secure
}

// Forwarding headers count only from trusted proxies, read from right to left up to the first hop that is none.
func TestTrustedProxies(t *testing.T) {
	t.Parallel()
	const proxy, stranger = "10.1.1.1:99", "198.51.100.9:99"
	for _, c := range []struct {
		name, peer string
		header     http.Header
		address    string
		secure     bool
	}{
		{"a stranger's headers", stranger, http.Header{
			"X-Forwarded-For": {"10.0.0.1"}, "X-Forwarded-Proto": {"https"}, "Forwarded": {"for=10.0.0.1;proto=https"},
		}, stranger, false},
		{"no headers", proxy, http.Header{}, proxy, false},
		{"only a scheme", proxy, http.Header{"X-Forwarded-Proto": {"https"}}, proxy, false},
		{"X-Forwarded-For", proxy, http.Header{"X-Forwarded-For": {"203.0.113.5"}}, "203.0.113.5:0", false},
		{"mapped peer", "[::ffff:10.1.1.1]:99", http.Header{"X-Forwarded-For": {"203.0.113.5"}}, "203.0.113.5:0", false},
		{"https", proxy, http.Header{
			"X-Forwarded-For": {"203.0.113.5"}, "X-Forwarded-Proto": {"https"},
		}, "203.0.113.5:0", true},
		{"spoofed hop", proxy, http.Header{"X-Forwarded-For": {"192.0.2.1, 203.0.113.5"}}, "203.0.113.5:0", false},
		{"spoofed line", proxy, http.Header{"X-Forwarded-For": {"192.0.2.1", "203.0.113.5"}}, "203.0.113.5:0", false},
		{"spoofed trusted hop", proxy, http.Header{
			"X-Forwarded-For": {"10.0.0.7, 203.0.113.5, 10.2.2.2"},
		}, "203.0.113.5:0", false},
		{"spoofed scheme", proxy, http.Header{
			"X-Forwarded-For": {"203.0.113.5"}, "X-Forwarded-Proto": {"https, http"},
		}, "203.0.113.5:0", false},
		{"all trusted", proxy, http.Header{"X-Forwarded-For": {"10.0.0.7, 10.0.0.8"}}, "10.0.0.7:0", false},
		{"port", proxy, http.Header{"X-Forwarded-For": {"203.0.113.5:1234"}}, "203.0.113.5:0", false},
		{"IPv6", proxy, http.Header{"X-Forwarded-For": {"2001:db8:2::1"}}, "[2001:db8:2::1]:0", false},
		{"no address", proxy, http.Header{"X-Forwarded-For": {"203.0.113.5, eve"}}, unknownClient, false},
		{"empty", proxy, http.Header{"X-Forwarded-For": {""}}, unknownClient, false},
		{"Forwarded", proxy, http.Header{
			"Forwarded": {`for=192.0.2.1;proto=http, For="[2001:db8:2::1]:4711";Proto=HTTPS;by=_a`},
		}, "[2001:db8:2::1]:0", true},
		{"Forwarded in lines", proxy, http.Header{
			"Forwarded": {`for="broken`, `for=203.0.113.5 ; host="a, b"`, `for=10.3.3.3`},
		}, "203.0.113.5:0", false},
		{"hidden", proxy, http.Header{"Forwarded": {"for=192.0.2.1, for=_hidden"}}, unknownClient, false},
		{"without for", proxy, http.Header{"Forwarded": {"for=192.0.2.1, proto=https"}}, unknownClient, true},
		{"malformed", proxy, http.Header{"Forwarded": {`for=192.0.2.1, for="203.0.113.5`}}, unknownClient, false},
		{"repeated", proxy, http.Header{"Forwarded": {"for=192.0.2.1;for=203.0.113.5"}}, unknownClient, false},
		{"both", proxy, http.Header{
			"Forwarded": {"for=203.0.113.5;proto=https"}, "X-Forwarded-For": {"203.0.113.5"}, "X-Forwarded-Proto": {"https"},
		}, "203.0.113.5:0", true},
		{"both, one of them spoofed", proxy, http.Header{
			"Forwarded": {"for=192.0.2.1;proto=https"}, "X-Forwarded-For": {"203.0.113.5"},
		}, unknownClient, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			address, secure := origin(c.peer, c.header)
			require.Equal(t, c.address, address)
			require.Equal(t, c.secure, secure)
		})
	}
}

// A proxy that speaks TLS with this process does not make a plain request of its client secure.
func TestPlainRequestThroughProxyWithTLS(t *testing.T) {
	t.Parallel()
	r := &http.Request{
		RemoteAddr: "10.1.1.1:99",
		TLS:        &tls.ConnectionState{},
		Header:     http.Header{"X-Forwarded-For": {"203.0.113.5"}, "X-Forwarded-Proto": {"http"}},
	}
	believe(r, proxies)
	require.Nil(t, r.TLS)
}

// The hop that the proxy adds decides, with any header of the client: a client cannot choose its own address.
func FuzzForwarded(f *testing.F) {
	f.Add(`for=192.0.2.1;proto=https`)
	f.Add(`for="192.0.2.1`)
	f.Add(`for="[2001:db8::1]:80", for=unknown;x="\"`)
	f.Add(` ,;, for = 1`)
	f.Fuzz(func(t *testing.T, sent string) {
		const added = "203.0.113.5"
		sent = strings.NewReplacer("\r", " ", "\n", " ").Replace(sent)
		from := func(header http.Header) string {
			address, _ := origin("10.1.1.1:99", header)
			return strings.TrimSuffix(address, ":0")
		}
		require.Equal(t, added, from(http.Header{"X-Forwarded-For": {sent + ", " + added}}))
		require.Equal(t, added, from(http.Header{"X-Forwarded-For": {sent, added}}))
		require.Equal(t, added, from(http.Header{"Forwarded": {sent, "for=" + added}}))
		for _, last := range []string{"for=" + added, `for="` + added + `:80";proto=https`} {
			require.Contains(t, []string{added, unknownClient}, from(http.Header{"Forwarded": {sent + ", " + last}}))
		}
		_ = from(http.Header{"Forwarded": {sent}, "X-Forwarded-For": {sent}, "X-Forwarded-Proto": {sent}})
	})
}

// The connections of a trusted proxy are not limited like those of one address.
func TestConnectionsOfTrustedProxy(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	l := limitConnections(listenLocal(t), 100, 1, trusted, func() {})
	for range 3 {
		dial(t, l)
		c, err := l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
	}
}

// The networks of a key are those of the client behind a trusted proxy. Anybody else cannot claim to be there.
func TestKeyNetworksBehindProxy(t *testing.T) {
	t.Parallel()
	for trusted, want := range map[string]int{"127.0.0.1": http.StatusOK, "192.0.2.1": http.StatusForbidden} {
		a := serveApp(t, slog.New(slog.DiscardHandler), "SAFEDELIVR_TRUSTED_PROXIES="+trusted)
		key := newKey(t, a, models.KeyOptions{Networks: []string{"203.0.113.0/24"}})
		url := "http://" + a.Addr() + "/v1/batches"
		client := http.DefaultClient
		require.Equal(t, want, status(t, client, url, key, http.Header{"X-Forwarded-For": {"192.0.2.9, 203.0.113.5"}}))
		require.Equal(t, want, status(t, client, url, key, http.Header{"Forwarded": {"for=203.0.113.5"}}))
		require.Equal(t, http.StatusForbidden,
			status(t, client, url, key, http.Header{"X-Forwarded-For": {"203.0.113.5, 192.0.2.9"}}))
		require.Equal(t, http.StatusForbidden, status(t, client, url, key, nil))
	}
}

// Behind a trusted proxy a login is recorded with the client's address. Its cookie is Secure if the client uses TLS.
func TestLoginBehindProxy(t *testing.T) {
	t.Parallel()
	a := serveApp(t, slog.New(slog.DiscardHandler), "SAFEDELIVR_TRUSTED_PROXIES=127.0.0.0/8")
	for scheme, secure := range map[string]bool{"https": true, "http": false} {
		link, err := login.NewLink(t.Context(), a.store, "http://"+a.Addr(), login.LocalUser())
		require.NoError(t, err)
		u, err := url.Parse(link)
		require.NoError(t, err)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.Addr()+"/login/link",
			strings.NewReader(u.RawQuery))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Forwarded", `for="[2001:db8:2::1]:80";proto=`+scheme)
		resp, err := http.DefaultTransport.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusSeeOther, resp.StatusCode)
		require.Equal(t, secure, resp.Cookies()[0].Secure)
	}
	logins, err := a.service.People.AccessLog(t.Context(), service.Caller{Operator: true}, accesslog.Login, service.Page{})
	require.NoError(t, err)
	require.NotEmpty(t, logins.Entries)
	for _, e := range logins.Entries {
		require.Equal(t, "2001:db8:2::1", e.Address)
	}
}

// TestRequestsBehindProxy: a client behind a trusted proxy has a limited number of requests at a time. Those of other
// clients there do not count. The proxy itself is not limited.
func TestRequestsBehindProxy(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	entered, leave := make(chan struct{}), make(chan struct{})
	h := trustProxies(trusted, 1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	}))
	var open sync.WaitGroup
	begin := func(client string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr = "127.0.0.1:4711"
		if client != "" {
			r.Header.Set("X-Forwarded-For", client)
		}
		w := httptest.NewRecorder()
		done := make(chan struct{})
		open.Go(func() {
			defer close(done)
			h.ServeHTTP(w, r)
		})
		select {
		case <-entered:
			return nil
		case <-done:
			return w
		}
	}
	require.Nil(t, begin("192.0.2.1"))
	refused := begin("192.0.2.1")
	require.Equal(t, http.StatusTooManyRequests, refused.Code)
	require.Contains(t, refused.Body.String(), `"code":"too_many_connections"`)
	require.NotEmpty(t, refused.Header().Get("Retry-After"))
	require.Nil(t, begin("192.0.2.2"))
	require.Nil(t, begin(""))
	require.Nil(t, begin(""))
	close(leave)
	open.Wait()
	require.Nil(t, begin("192.0.2.1"), "the first has ended")
	open.Wait()
}
