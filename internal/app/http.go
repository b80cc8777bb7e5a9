package app

import (
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/internal/perclient"
)

// A request body must arrive at bodyRate or faster, after a first bodyGrace.
const (
	bodyGrace = 30 * time.Second
	bodyRate  = 4 << 10 // bytes per second
)

// The rest of a body that was refused is read for lingerTime, and while bytes arrive within lingerPause, so that the
// client gets to read the answer. A connection that closes with bytes that were not read is reset.
const (
	lingerTime  = 5 * time.Second
	lingerPause = time.Second
)

// limitBodies gives every request body a deadline that moves while bytes arrive, and answers like answerEarly.
func limitBodies(next http.Handler) http.Handler { return serveBodies(next, bodyGrace) }

// answerEarly serves a handler that sets the deadlines of its bodies. A body that next did not read to its end is not
// waited for: the client gets the answer, and the connection closes.
func answerEarly(next http.Handler) http.Handler { return serveBodies(next, 0) }

// serveBodies serves a handler. Without a grace, the deadlines of bodies do not move.
func serveBodies(next http.Handler, grace time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &timedBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
		if grace > 0 {
			b.deadline = time.Now().Add(grace)
			b.setDeadline(b.deadline)
		}
		r.Body = b
		if r.ProtoMajor != 1 {
			next.ServeHTTP(w, r)
		} else {
			early := &earlyAnswer{ResponseWriter: w, body: b}
			next.ServeHTTP(early, r)
			early.finish()
			b.linger()
		}
		if !b.ended {
			b.setDeadline(time.Now())
		}
	})
}

// earlyKept is how much is kept of an answer that comes before the end of the body. A longer one is complete for the
// client only after the linger.
const earlyKept = 256 << 10

// earlyAnswer closes the connection after an answer that comes before the end of the body. Otherwise net/http waits
// for the body before it sends the answer. It keeps the answer, so that it is sent with its length.
type earlyAnswer struct {
	http.ResponseWriter
	body   *timedBody
	status int    // 0: the answer has not begun
	kept   []byte // of an early answer
	early  bool
}

// WriteHeader implements http.ResponseWriter.
func (e *earlyAnswer) WriteHeader(status int) {
	switch {
	case status < http.StatusOK:
		e.ResponseWriter.WriteHeader(status)
	case e.status == 0:
		e.status, e.early = status, !e.body.ended
		if e.early {
			e.Header().Set("Connection", "close")
			return
		}
		e.ResponseWriter.WriteHeader(status)
	}
}

// Write implements io.Writer.
func (e *earlyAnswer) Write(p []byte) (int, error) {
	if e.status == 0 {
		e.WriteHeader(http.StatusOK)
	}
	if e.early && len(e.kept)+len(p) <= earlyKept {
		e.kept = append(e.kept, p...)
		return len(p), nil
	}
	if err := e.send(); err != nil {
		return 0, err
	}
	return e.ResponseWriter.Write(p)
}

// send sends the kept answer.
func (e *earlyAnswer) send() error {
	if !e.early {
		return nil
	}
	e.early = false
	e.ResponseWriter.WriteHeader(e.status)
	_, err := e.ResponseWriter.Write(e.kept)
	e.kept = nil
	return err
}

// finish sends an answer that was kept as a whole.
func (e *earlyAnswer) finish() {
	if e.status == 0 && !e.body.ended {
		e.WriteHeader(http.StatusOK)
	}
	if !e.early {
		return
	}
	if e.Header().Get("Content-Length") == "" && e.status != http.StatusNoContent &&
		e.status != http.StatusNotModified {
		e.Header().Set("Content-Length", strconv.Itoa(len(e.kept)))
	}
	_ = e.send() // the client may be gone
	_ = e.body.control.Flush()
}

// Flush implements http.Flusher.
func (e *earlyAnswer) Flush() {
	if e.status == 0 {
		e.WriteHeader(http.StatusOK)
	}
	_ = e.send() // the next write has the error, too
	_ = e.body.control.Flush()
}

// Unwrap is for http.ResponseController.
func (e *earlyAnswer) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// linger reads the rest of the body after the answer.
func (b *timedBody) linger() {
	if b.ended {
		return
	}
	end := time.Now().Add(lingerTime)
	space := make([]byte, 16<<10)
	for now := time.Now(); now.Before(end); now = time.Now() {
		b.setDeadline(now.Add(min(lingerPause, end.Sub(now))))
		if _, err := b.ReadCloser.Read(space); err != nil {
			b.ended = err == io.EOF
			return
		}
	}
}

// timedBody is a request body whose deadline, if it has one, moves with each byte.
type timedBody struct {
	io.ReadCloser
	control  *http.ResponseController
	deadline time.Time // zero: next sets it
	ended    bool
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.ended = true // net/http removes the deadline
	case n > 0 && !b.deadline.IsZero():
		b.deadline = b.deadline.Add(time.Duration(n) * time.Second / bodyRate)
		b.setDeadline(b.deadline)
	}
	return n, err
}

// setDeadline sets the deadline for reading. A ResponseWriter that is no connection has none.
func (b *timedBody) setDeadline(t time.Time) { _ = b.control.SetReadDeadline(t) }

// limitConnections returns a listener for HTTP with at most total open connections, and at most perAddress of one
// client that is no trusted proxy. A connection beyond perAddress is closed at once, and refused is called; one beyond
// total gets the place of a stranger, or waits.
func limitConnections(l net.Listener, total, perAddress int, trusted []netip.Prefix, refused func()) net.Listener {
	refuse := func(c net.Conn) {
		refused()
		_ = c.Close()
	}
	return newPlaces(&addressLimiter{
		Listener: patientListener{l}, trusted: trusted, most: int64(perAddress), counts: new(addressCounts), refuse: refuse,
	}, total)
}

// droppedMost is how many connections of a client may be open whose requests were dropped. Then no further connections
// of it are accepted, unless one is open that has sent a verified request: it may be the address of many clients.
const droppedMost = 100

// addressCounts counts the open connections of each address.
type addressCounts struct{ open, verified, dropped perclient.Counts }

// add counts a new connection, if the address may have it.
func (n *addressCounts) add(address netip.Addr, most int64) bool {
	if n.dropped.Of(address) >= droppedMost && n.verified.Of(address) == 0 {
		return false
	}
	return n.open.Add(address, 1, most)
}

// addressLimiter limits the open connections of each address.
type addressLimiter struct {
	net.Listener
	trusted []netip.Prefix // whose connections are not limited
	most    int64          // of one client
	counts  *addressCounts
	refuse  func(net.Conn) // closes a connection that is one too many, and does not wait
}

// Accept implements net.Listener.
func (l *addressLimiter) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := addressOf(c)
		if listed(l.trusted, address) {
			return c, nil
		}
		if l.counts.add(address, l.most) {
			return &addressConn{Conn: c, address: address, counts: l.counts, counted: []*perclient.Counts{&l.counts.open}}, nil
		}
		l.refuse(c)
	}
}

// addressConn is a counted connection.
type addressConn struct {
	net.Conn
	address netip.Addr
	counts  *addressCounts

	mu      sync.Mutex
	counted []*perclient.Counts // nil: it is closed
}

// count counts the connection in another respect until it closes.
func (c *addressConn) count(as *perclient.Counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counted != nil && as.Add(c.address, 1, math.MaxInt64) {
		c.counted = append(c.counted, as)
	}
}

// Close implements net.Conn.
func (c *addressConn) Close() error {
	c.mu.Lock()
	for _, as := range c.counted {
		as.Remove(c.address, 1)
	}
	c.counted = nil
	c.mu.Unlock()
	return c.Conn.Close()
}
