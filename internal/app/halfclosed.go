package app

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// halfClosedTime is how long a request goes on whose client has closed its side of the connection. It may only have
// said that it sends nothing more, and wait for the answer.
const halfClosedTime = 10 * time.Second

// patientConn reports the end of what the client sends late while a request is answered. net/http takes it for the end
// of the connection, and ends the request.
type patientConn struct {
	net.Conn
	mu      sync.Mutex
	expired chan struct{} // closed when the deadline for reading has passed
}

func newPatientConn(c net.Conn) net.Conn { return &patientConn{Conn: c, expired: make(chan struct{})} }

// patientListener is a listener for HTTP.
type patientListener struct{ net.Listener }

// Accept implements net.Listener.
func (l patientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newPatientConn(c), nil
}

// Read implements net.Conn. net/http reads a single byte only while a request is answered whose body was read.
func (c *patientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != io.EOF || len(p) != 1 { //nolint:errorlint // of a connection
		return n, err
	}
	c.mu.Lock()
	expired := c.expired
	c.mu.Unlock()
	select {
	case <-expired:
		return 0, os.ErrDeadlineExceeded
	case <-time.After(halfClosedTime):
		return n, err
	}
}

// SetReadDeadline implements net.Conn. With a time that has passed, net/http ends a read.
func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *patientConn) SetDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetDeadline(t)
}

// Close implements net.Conn.
func (c *patientConn) Close() error {
	c.expire(time.Now())
	return c.Conn.Close()
}

// expire ends a read that is held if its deadline has passed.
func (c *patientConn) expire(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := !deadline.IsZero() && !deadline.After(time.Now())
	select {
	case <-c.expired:
		if !ended {
			c.expired = make(chan struct{})
		}
	default:
		if ended {
			close(c.expired)
		}
	}
}
