// Package tcpproxy stands between a client and a server and injects faults of the network.
package tcpproxy

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// Proxy forwards TCP connections to a server. All methods may be called at the same time.
type Proxy struct {
	to     string
	listen net.Listener
	all    sync.WaitGroup
	turned atomic.Int64

	mu      sync.Mutex
	refuses bool
	loses   Loss
	thawed  chan struct{} // closed unless the proxy is frozen
	conns   map[net.Conn]bool
	records bool
	asked   []*bytes.Buffer // per connection
}

// Loss is what a proxy loses while connections stay open.
type Loss int

// What a proxy can lose.
const (
	Nothing    Loss = iota
	Acks            // acknowledgements of a client of AMQP 0-9-1, so that its prefetch fills up
	Answers         // requests arrive at the server, and its answers do not arrive
	Everything      // a half-open connection
)

// New listens on loopback and forwards to the server at an address until Close. It stops to connect to the server when
// ctx ends.
func New(ctx context.Context, to string) (*Proxy, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{to: to, listen: l, thawed: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(p.thawed)
	p.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.all.Go(func() { p.serve(ctx, c) })
		}
	})
	return p, nil
}

// Addr returns the address that the proxy listens on.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// Close breaks all connections, stops listening and waits for its goroutines.
func (p *Proxy) Close() {
	_ = p.listen.Close()
	p.Refuse()
	p.Thaw()
	p.all.Wait()
}

// Cut breaks all connections. New ones are forwarded.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	for c := range p.conns {
		_ = c.Close()
	}
}

// Refuse breaks all connections, and new ones as soon as they are made, until Accept.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = true
	p.cut()
}

// Accept ends Refuse.
func (p *Proxy) Accept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = false
}

// Refused returns how many connections were refused.
func (p *Proxy) Refused() int64 { return p.turned.Load() }

// Lose drops what is sent on present and new connections, until Recover.
func (p *Proxy) Lose(l Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = l
}

// Recover ends Lose. It breaks the connections that may have lost something.
func (p *Proxy) Recover() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = Nothing
	p.cut()
}

// Freeze forwards nothing until Thaw, which forwards all of it.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
		p.thawed = make(chan struct{})
	default:
	}
}

// Thaw ends Freeze.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
	default:
		close(p.thawed)
	}
}

// Record keeps a copy of what clients send on new connections.
func (p *Proxy) Record() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = true
}

// Recorded returns what clients sent on each recorded connection. Call it after Close.
func (p *Proxy) Recorded() (all [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.asked {
		all = append(all, b.Bytes())
	}
	return all
}

func (p *Proxy) serve(ctx context.Context, client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.drop(client)
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", p.to)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)
	back := make(chan struct{})
	go func() {
		defer close(back)
		p.forward(server, client, Everything, p.recorder(), &frames{})
		_ = server.Close()
	}()
	p.forward(client, server, Answers, nil, nil)
	_ = client.Close()
	<-back
}

// keep notes a connection unless the proxy refuses it.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuses {
		p.turned.Add(1)
		_ = c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

// recorder returns where to keep what a client sends; nil if it is not recorded.
func (p *Proxy) recorder() *bytes.Buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.records {
		return nil
	}
	b := &bytes.Buffer{}
	p.asked = append(p.asked, b)
	return b
}

// forward copies what one end sends to the other, unless the proxy loses as much as lost. f may be nil.
func (p *Proxy) forward(to, from net.Conn, lost Loss, record *bytes.Buffer, f *frames) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		drop, acks, thawed := p.loses >= lost, p.loses == Acks, p.thawed
		if record != nil {
			record.Write(buf[:n])
		}
		p.mu.Unlock()
		<-thawed
		sent := buf[:n]
		if f != nil {
			sent = f.take(sent, acks)
		}
		if drop {
			continue
		}
		if _, err := to.Write(sent); err != nil {
			return
		}
	}
}
