package rabbit

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/tcpproxy"
)

// proxy stands between a broker of ours and RabbitMQ and injects faults.
type proxy struct{ *tcpproxy.Proxy }

// newProxy returns a proxy and the URL that leads through it.
func newProxy(t *testing.T) (*proxy, string) {
	t.Helper()
	first, _, _ := strings.Cut(testURL(t), ",")
	u, err := url.Parse(first)
	require.NoError(t, err)
	p, err := tcpproxy.New(context.Background(), u.Host) //nolint:usetesting // brokers close after the test
	require.NoError(t, err)
	t.Cleanup(p.Close)
	u.Host = p.Addr()
	return &proxy{p}, u.String()
}

// cut breaks all connections. New ones are served.
func (p *proxy) cut() { p.Cut() }

// freeze keeps all connections and forwards nothing: a peer that does not answer.
func (p *proxy) freeze() { p.Freeze() }

// thaw forwards all that came while the proxy was frozen.
func (p *proxy) thaw() { p.Thaw() }
