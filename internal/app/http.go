package app

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// A request body must arrive at bodyRate or faster, after a first bodyGrace.
const (
	bodyGrace = 30 * time.Second
	bodyRate  = 4 << 10 // bytes per second
)

// limitBodies gives every request body a deadline that moves while bytes arrive. A body that next did not read to its
// end is not waited for: the connection closes.
func limitBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &timedBody{ReadCloser: r.Body, control: http.NewResponseController(w), deadline: time.Now().Add(bodyGrace)}
		b.setDeadline(b.deadline)
		r.Body = b
		next.ServeHTTP(w, r)
		if !b.ended {
			b.setDeadline(time.Now())
		}
	})
}

// timedBody is a request body whose deadline moves with each byte.
type timedBody struct {
	io.ReadCloser
	control  *http.ResponseController
	deadline time.Time
	ended    bool
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.ended = true // net/http removes the deadline
	case n > 0:
		b.deadline = b.deadline.Add(time.Duration(n) * time.Second / bodyRate)
		b.setDeadline(b.deadline)
	}
	return n, err
}

// setDeadline sets the deadline for reading. A ResponseWriter that is no connection has none.
func (b *timedBody) setDeadline(t time.Time) { _ = b.control.SetReadDeadline(t) }

// limitConnections returns a listener with at most total open connections, and at most perAddress of one client that
// is no trusted proxy. A connection beyond perAddress is closed at once; one beyond total waits.
func limitConnections(l net.Listener, total, perAddress int, trusted []netip.Prefix) net.Listener {
	return netutil.LimitListener(&addressLimiter{Listener: l, trusted: trusted, open: newByAddress(perAddress)}, total)
}

// addressLimiter limits the open connections of each address.
type addressLimiter struct {
	net.Listener
	trusted []netip.Prefix // whose connections are not limited
	open    *byAddress
}

// Accept implements net.Listener.
func (l *addressLimiter) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, _ := netip.ParseAddrPort(c.RemoteAddr().String())
		address := peer.Addr().Unmap()
		if listed(l.trusted, address) {
			return c, nil
		}
		if l.open.add(address) {
			return &addressConn{Conn: c, closed: sync.OnceFunc(func() { l.open.remove(address) })}, nil
		}
		_ = c.Close()
	}
}

// byAddress counts connections or requests by client, up to a number. A client has one IPv4 address, or all addresses
// of a /64 network.
type byAddress struct {
	most int
	mu   sync.Mutex
	open map[netip.Addr]int
}

func newByAddress(most int) *byAddress { return &byAddress{most: most, open: map[netip.Addr]int{}} }

// add counts one more of an address. It returns false if there are as many as there may be.
func (b *byAddress) add(address netip.Addr) bool {
	address = clientOf(address)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[address] >= b.most {
		return false
	}
	b.open[address]++
	return true
}

// remove counts one less of an address.
func (b *byAddress) remove(address netip.Addr) {
	address = clientOf(address)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[address]--; b.open[address] == 0 {
		delete(b.open, address)
	}
}

// clientOf returns the address that stands for a client.
func clientOf(address netip.Addr) netip.Addr {
	if address.Is4() {
		return address
	}
	network, _ := address.WithZone("").Prefix(64) // an invalid address stays one
	return network.Addr()
}

// addressConn is a counted connection.
type addressConn struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *addressConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
