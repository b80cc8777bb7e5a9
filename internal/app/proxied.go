package app

import (
	"bufio"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"
)

const (
	headerTime = 5 * time.Second // from the connection of a proxy to the end of its header
	headers    = 1000            // that are awaited at once
)

// proxied is a listener for clients behind proxies. A connection from a trusted proxy begins with a header of the PROXY
// protocol, version 1 or 2, and has the address of the client that the header names. Connections from others have no
// header, because any client could name any address in one.
type proxied struct {
	net.Listener
	trusted []netip.Prefix
	refuse  func(net.Conn) // closes a connection without a right header, and does not wait

	start  func()
	close  func()
	turns  chan struct{}
	ready  chan net.Conn
	failed chan error
	closed chan struct{}
}

func newProxied(l net.Listener, trusted []netip.Prefix, refuse func(net.Conn)) *proxied {
	p := &proxied{
		Listener: l, trusted: trusted, refuse: refuse, turns: make(chan struct{}, headers), ready: make(chan net.Conn),
		failed: make(chan error), closed: make(chan struct{}),
	}
	p.start = sync.OnceFunc(func() { go p.accept() })
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// Accept implements net.Listener.
func (p *proxied) Accept() (net.Conn, error) {
	p.start()
	select {
	case c := <-p.ready:
		return c, nil
	case err := <-p.failed:
		return nil, err
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *proxied) Close() error {
	p.close()
	return p.Listener.Close()
}

// accept accepts connections until Close is called. A proxy that is late with its header delays no other connection.
func (p *proxied) accept() {
	for {
		c, err := p.Listener.Accept()
		switch {
		case err != nil:
			select {
			case p.failed <- err:
			case <-p.closed:
				return
			}
		case listed(p.trusted, addressOf(c)):
			p.turns <- struct{}{}
			go func() {
				defer func() { <-p.turns }()
				p.readHeader(c)
			}()
		default:
			p.hand(c)
		}
	}
}

// hand gives a connection to Accept.
func (p *proxied) hand(c net.Conn) {
	select {
	case p.ready <- c:
	case <-p.closed:
		_ = c.Close()
	}
}

// readHeader reads the header of a connection, and hands it on.
func (p *proxied) readHeader(c net.Conn) {
	r := bufio.NewReader(c)
	_ = c.SetReadDeadline(time.Now().Add(headerTime)) // a connection that fails fails in the read, too
	h, err := proxyproto.Read(r)
	_ = c.SetReadDeadline(time.Time{})
	if err != nil {
		p.refuse(c)
		return
	}
	client := &clientConn{Conn: c, behind: r, from: unknownAddr{}}
	if from, ok := h.SourceAddr.(*net.TCPAddr); ok && h.Command.IsProxy() {
		client.from = from
	}
	p.hand(client)
}

// clientConn is a connection from a client through a proxy.
type clientConn struct {
	net.Conn
	behind *bufio.Reader // has what was read behind the header; nil: nothing is left
	from   net.Addr
}

// RemoteAddr implements net.Conn.
func (c *clientConn) RemoteAddr() net.Addr { return c.from }

// Read implements net.Conn.
func (c *clientConn) Read(b []byte) (int, error) {
	if c.behind == nil || c.behind.Buffered() == 0 {
		c.behind = nil
		return c.Conn.Read(b)
	}
	return c.behind.Read(b[:min(len(b), c.behind.Buffered())])
}

// unknownAddr is the address of a client that the proxy does not name, and of the proxy's own connections. It is in no
// network.
type unknownAddr struct{}

// Network implements net.Addr.
func (unknownAddr) Network() string { return "tcp" }

// String implements net.Addr.
func (unknownAddr) String() string { return unknownClient }

// addressOf returns the address at the other end of a connection.
func addressOf(c net.Conn) netip.Addr {
	peer, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // of an unknown one the address is invalid
	return peer.Addr().Unmap()
}
