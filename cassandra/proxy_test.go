package cassandra

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a store and a node and makes trouble.
type proxy struct {
	t      testing.TB
	to     string
	addr   string
	all    sync.WaitGroup
	mu     sync.Mutex
	listen net.Listener
	frozen bool
	conns  map[net.Conn]bool
	noted  []*bytes.Buffer // what was asked over each connection, once record was called
	noting bool
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	p := &proxy{t: t, to: hosts(t)[0], addr: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	p.start()
	t.Cleanup(p.stop)
	return p
}

// start listens, on the same port as before.
func (p *proxy) start() {
	l, err := net.Listen("tcp", p.addr)
	require.NoError(p.t, err)
	p.mu.Lock()
	p.listen, p.addr = l, l.Addr().String()
	p.mu.Unlock()
	p.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.serve(c) })
		}
	})
}

// stop refuses connections and cuts those there are.
func (p *proxy) stop() {
	_ = p.listen.Close()
	p.cut()
	p.all.Wait()
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// freeze swallows all answers from now on: what is asked still arrives.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// thaw cuts the connections whose answers were swallowed and lets new ones be.
func (p *proxy) thaw() {
	p.mu.Lock()
	p.frozen = false
	p.mu.Unlock()
	p.cut()
}

// record keeps what is asked from now on, of each new connection.
func (p *proxy) record() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noting = true
}

// recorded is what was asked, by connection, when all of them have ended.
func (p *proxy) recorded() (all [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.noted {
		all = append(all, b.Bytes())
	}
	return all
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
	asked := io.Reader(client)
	if p.noting {
		note := &bytes.Buffer{}
		p.noted = append(p.noted, note)
		asked = io.TeeReader(client, note)
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
		delete(p.conns, server)
	}()
	p.all.Go(func() {
		_, _ = io.Copy(server, asked)
		_ = server.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen {
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
