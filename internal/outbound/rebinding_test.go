package outbound

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// names is a DNS server that gives each answer once, and then the last one.
type names struct {
	mu      sync.Mutex
	answers [][]netip.Addr
	asked   int
}

// resolver returns a resolver that asks the server.
func (n *names) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	c, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:size]) != nil {
				continue
			}
			out, err := n.answer(&m)
			if err == nil {
				_, _ = c.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

// answer returns the answer to a question; names have no IPv6 addresses.
func (n *names) answer(m *dnsmessage.Message) ([]byte, error) {
	m.Response, m.Additionals = true, nil
	if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, a := range n.answers[min(n.asked, len(n.answers)-1)] {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
				Body:   &dnsmessage.AResource{A: a.As4()},
			})
		}
		n.asked++
	}
	return m.Pack()
}

// TestNameThatChangesItsAddress: each connection resolves a name, and dials only the address that it has checked. A
// name that had an allowed address, or has one beside another, leads to no other.
func TestNameThatChangesItsAddress(t *testing.T) {
	t.Parallel()
	good, bad := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	reached := make(chan string, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		reached <- at.(*net.TCPAddr).IP.String()
		_, _ = io.WriteString(w, "taken")
	}))
	require.NoError(t, server.Listener.Close())
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)

	n := &names{answers: [][]netip.Addr{{good}, {bad}, {bad, good}, {bad}}}
	c := newClient([]netip.Prefix{netip.PrefixFrom(good, 32)}, n.resolver(t))
	post := func() error {
		_, err := c.Post(t.Context(), "http://rebinding.example.com:"+port+"/", http.Header{}, nil)
		c.http.CloseIdleConnections()
		return err
	}
	require.NoError(t, post())
	require.Equal(t, good.String(), <-reached)
	require.ErrorIs(t, post(), ErrForbidden)
	require.NoError(t, post(), "the other address may be reached")
	require.Equal(t, good.String(), <-reached)
	require.ErrorIs(t, post(), ErrForbidden)
	require.Empty(t, reached)
	n.mu.Lock()
	defer n.mu.Unlock()
	require.Equal(t, 4, n.asked, "the name is resolved at each connection")
}
