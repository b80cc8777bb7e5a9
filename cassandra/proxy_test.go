package cassandra

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/tcpproxy"
)

// proxy stands between a store and a node and injects faults.
type proxy struct {
	*tcpproxy.Proxy
	addr string
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	p, err := tcpproxy.New(context.Background(), hosts(t)[0]) //nolint:usetesting // stores close after the test
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return &proxy{p, p.Addr()}
}

// stop refuses connections and breaks those there are, until start.
func (p *proxy) stop() { p.Refuse() }

func (p *proxy) start() { p.Accept() }

// freeze loses all answers until thaw. Requests still arrive.
func (p *proxy) freeze() { p.Lose(tcpproxy.Answers) }

// thaw breaks the connections whose answers were lost, and forwards new ones.
func (p *proxy) thaw() { p.Recover() }

// record keeps what is asked on each new connection.
func (p *proxy) record() { p.Record() }

// recorded returns what was asked, by connection.
func (p *proxy) recorded() [][]byte {
	p.Close()
	return p.Recorded()
}
