package app

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/internal/known"
)

// strangerTime is how long a connection keeps its place at least. Then another one may take it if all places are taken
// and it has sent no request that was verified.
const strangerTime = time.Second

// places is a listener with a number of places for connections. When all are taken, a new connection gets that of the
// oldest stranger, so that strangers keep out no provider and no user.
type places struct {
	net.Listener
	total  int
	freed  chan struct{}
	closed chan struct{}
	close  func()

	mu        sync.Mutex
	open      int
	strangers list.List // of *placedConn, the oldest first
}

func newPlaces(l net.Listener, total int) *places {
	p := &places{Listener: l, total: total, freed: make(chan struct{}, 1), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// Accept implements net.Listener.
func (p *places) Accept() (net.Conn, error) {
	accepted, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &placedConn{Conn: accepted, places: p}
	c.leave = sync.OnceFunc(c.left)
	for {
		oldest, wait := p.place(c)
		switch {
		case wait == 0 && oldest == nil:
			return c, nil
		case wait == 0:
			_ = oldest.Close()
			continue
		}
		select {
		case <-p.freed:
		case <-time.After(wait):
		case <-p.closed:
			_ = accepted.Close()
			return nil, net.ErrClosed
		}
	}
}

// place gives a connection a place if there is one. Otherwise it returns the stranger who has to leave, or how long to
// wait.
func (p *places) place(c *placedConn) (oldest *placedConn, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.open < p.total {
		p.open++
		c.at, c.place = now, p.strangers.PushBack(c)
		return nil, 0
	}
	first := p.strangers.Front()
	if first == nil {
		return nil, strangerTime
	}
	oldest, _ = first.Value.(*placedConn)
	return oldest, max(oldest.at.Add(strangerTime).Sub(now), 0)
}

// Close implements net.Listener.
func (p *places) Close() error {
	p.close()
	return p.Listener.Close()
}

// placedConn is a connection that has a place.
type placedConn struct {
	net.Conn
	places *places
	at     time.Time
	place  *list.Element // among strangers; nil: it is none
	leave  func()
}

// Close implements net.Conn.
func (c *placedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// left gives the place back.
func (c *placedConn) left() {
	c.unlist()
	p := c.places
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// known notes that the connection is not one of a stranger.
func (c *placedConn) known() {
	if !c.unlist() {
		return
	}
	if counted, ok := c.Conn.(*addressConn); ok {
		counted.count(&counted.counts.verified)
	}
}

// unlist takes the connection from the list of strangers, and reports whether it was there.
func (c *placedConn) unlist() bool {
	c.places.mu.Lock()
	defer c.places.mu.Unlock()
	if c.place == nil {
		return false
	}
	c.places.strangers.Remove(c.place)
	c.place = nil
	return true
}

// drop counts the connection as one without an answer. It returns false if it may be that of many clients: of a trusted
// proxy.
func (c *placedConn) drop() bool {
	counted, ok := c.Conn.(*addressConn)
	if ok {
		counted.count(&counted.counts.dropped)
	}
	return ok
}

// placeOf returns a connection that has a place.
func placeOf(c net.Conn) (*placedConn, bool) {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	p, ok := c.(*placedConn)
	return p, ok
}

// placed returns the context of the requests of a connection.
func placed(ctx context.Context, c net.Conn) context.Context {
	if p, ok := placeOf(c); ok {
		return known.With(ctx, p.known)
	}
	return ctx
}
