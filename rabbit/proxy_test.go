package rabbit

import (
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a broker of ours and RabbitMQ and makes trouble.
type proxy struct {
	to     string
	listen net.Listener
	all    sync.WaitGroup
	mu     sync.Mutex
	conns  map[net.Conn]bool
	thawed chan struct{} // closed unless frozen
}

// newProxy returns a proxy and the URL that leads through it.
func newProxy(t *testing.T) (*proxy, string) {
	t.Helper()
	first, _, _ := strings.Cut(testURL(t), ",")
	u, err := url.Parse(first)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{to: u.Host, listen: l, conns: map[net.Conn]bool{}, thawed: make(chan struct{})}
	close(p.thawed)
	p.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.thaw()
		p.cut()
		p.all.Wait()
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

// cut breaks every connection there is. New ones are served.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// freeze reads nothing any more, from neither side, and lets every connection be:
// a peer that does not answer.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed = make(chan struct{})
}

// thaw goes on.
func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
	default:
		close(p.thawed)
	}
}

func (p *proxy) wait() {
	p.mu.Lock()
	thawed := p.thawed
	p.mu.Unlock()
	<-thawed
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client], p.conns[server] = true, true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
		delete(p.conns, server)
	}()
	p.all.Go(func() { p.pass(server, client) })
	p.pass(client, server)
}

// pass hands on what comes, and what came when it froze after the thaw alone.
func (p *proxy) pass(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.wait()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
