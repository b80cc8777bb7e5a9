package submission

import (
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/emersion/go-smtp"
)

// listener gives go-smtp connections with bounds.
type listener struct {
	net.Listener
	server *Server
	secure *tls.Config // nil: the connections begin without TLS
}

// Accept implements net.Listener. go-smtp does not close a listener that it gets after its Shutdown.
func (l *listener) Accept() (net.Conn, error) {
	if l.server.stopping.Load() {
		return nil, errors.Join(net.ErrClosed, l.Listener.Close())
	}
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, server: l.server, opened: time.Now()}
	c.left.Store(maxCommands)
	l.server.mu.Lock()
	l.server.conns[c] = true
	l.server.mu.Unlock()
	if l.secure != nil {
		return tls.Server(c, l.secure), nil
	}
	return c, nil
}

// The stages of a connection, each with its own time.
const (
	stranger int32 = iota
	greeted
	loggedIn
)

// conn is the connection of a client, below TLS.
//
// go-smtp reads the rest of a message as commands if a read within the message fails, and takes the end of a connection
// for the end of the last chunk. So a conn ends with the first failed read after a recipient was accepted.
type conn struct {
	net.Conn
	server *Server
	opened time.Time
	stage  atomic.Int32
	logins int // attempts

	left    atomic.Int64              // bytes that the client may send before the next answer
	open    atomic.Bool               // a recipient was accepted: a message may follow
	until   atomic.Pointer[time.Time] // when the message must have arrived that is being taken; nil: there is none
	blocked atomic.Bool               // reads fail at once
	ended   atomic.Bool               // go-smtp writes one answer, reads no more, and closes the connection
	last    atomic.Bool               // that answer was written
	ahead   []byte                    // read by watch
}

// maxAhead is how much watch keeps.
const maxAhead = 4 << 10

// address returns the address of the client.
func (c *conn) address() netip.Addr {
	peer, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	return peer.Addr().Unmap()
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	switch {
	case c.ended.Load():
		return 0, net.ErrClosed
	case c.blocked.Load():
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.read(p)
	if err == nil && c.left.Add(-int64(n)) < 0 {
		n, err = 0, smtp.ErrTooLongLine
	}
	if err != nil && c.open.Load() {
		c.ended.Store(true)
		return 0, errCutOff
	}
	return n, err
}

func (c *conn) read(p []byte) (int, error) {
	if len(c.ahead) > 0 && len(p) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	if c.server.stopping.Load() && c.until.Load() == nil {
		return 0, os.ErrDeadlineExceeded
	}
	if until := c.until.Load(); until != nil { // go-smtp sets one deadline for all of a message, that of a command
		if err := c.Conn.SetReadDeadline(earlier(*until, time.Now().Add(idleTime))); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		return n, nil // the next read has the error, too
	}
	return 0, err
}

// Write implements net.Conn. With each answer the client may send more: a message, or commands. What it sends of a
// message that was refused counts, too.
func (c *conn) Write(p []byte) (int, error) {
	if c.ended.Load() && c.last.Swap(true) {
		return 0, net.ErrClosed
	}
	c.left.Store(maxCommands)
	if c.open.Load() {
		c.left.Store(2 * c.server.cfg.Size)
	}
	return c.Conn.Write(p)
}

// SetReadDeadline implements net.Conn. Clients that have not logged in have less time.
func (c *conn) SetReadDeadline(t time.Time) error {
	switch c.stage.Load() {
	case stranger:
		t = earlier(t, c.opened.Add(helloTime))
	case greeted:
		t = earlier(t, c.opened.Add(loginTime))
	}
	if err := c.Conn.SetReadDeadline(t); err != nil {
		return err
	}
	if c.server.stopping.Load() && c.until.Load() == nil { // Stop may have been called in between
		c.interrupt()
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// interrupt ends a read that waits, unless a message is being taken.
func (c *conn) interrupt() {
	if c.until.Load() == nil {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	return c.Conn.Close()
}

// watch calls left if the client closes the connection before stop is called. Nothing else may read meanwhile. What the
// client sends is kept: commands that follow without waiting, or the end of TLS.
func (c *conn) watch(left func()) (stop func()) {
	_ = c.Conn.SetReadDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		var one [1]byte
		for len(c.ahead) < maxAhead {
			n, err := c.Conn.Read(one[:])
			c.ahead = append(c.ahead, one[:n]...)
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				left()
			}
			if err != nil {
				return
			}
		}
	}()
	return func() {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // go-smtp sets another for the next command
		<-done
	}
}

// cutOff reports whether a TLS connection has ended. If it has not, it may read a byte that follows the message. Then
// it ends the connection after the answer.
func (c *conn) cutOff(secure *tls.Conn) bool {
	c.blocked.Store(true)
	defer c.blocked.Store(false)
	n, err := secure.Read(make([]byte, 1))
	if n == 1 {
		c.ended.Store(true)
	}
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}
