package outbound

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFailuresInWords: why there was no answer is said without an address, a host name or the resolver of this network.
func TestFailuresInWords(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(plain.Close)
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	none := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "db.corp.internal", Server: "10.0.0.2:53", IsNotFound: true}
	}}
	c := newClient([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, none)
	for url, words := range map[string]string{
		"http://db.corp.internal/":         "the host name ",
		"http://10.1.2.3/":                 ErrForbidden.Error(),
		"http://" + closed.Addr().String(): "the connection was refused",
		plain.URL:                          "the connection was closed before there was an answer",
		plain.URL + "/hang":                "there was no answer in time",
		secure.URL:                         "the TLS certificate is signed by an unknown authority",
		strings.Replace(plain.URL, "http:", "https:", 1): "the host does not speak TLS at this port",
	} {
		within := time.Minute
		if strings.HasSuffix(url, "/hang") {
			within = time.Second
		}
		_, err := c.Within(within).Post(t.Context(), url, http.Header{}, nil)
		require.ErrorContains(t, err, words, url)
		for _, secret := range []string{"corp", "10.", "127.", "lookup", "dial", "x509"} {
			require.NotContains(t, err.Error(), secret, url)
		}
	}
}
