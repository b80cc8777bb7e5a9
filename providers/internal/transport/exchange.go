package transport

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// An Answer is what a provider said to a call. Status is 0 if it said nothing.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Cut    bool // the body broke off, or was too long
}

// An Exchange is one request and what became of it. It is filled in while the
// request is made; read it afterwards.
type Exchange struct {
	Answer
	startBy time.Time
	used    atomic.Bool
	broken  atomic.Bool // writing the request failed
	gate    *gate
}

// NoAnswer classifies a call that ended with err and without an answer, and says
// so in words. The class is Unavailable if the request certainly did not leave
// completely, and Unknown otherwise. After this call nothing of the request can
// leave any more.
//
// httptrace alone cannot tell: the last byte may be on its way before
// WroteRequest was called and after the context ended. So the gate in front of
// the body decides: a provider cannot act on a request whose last byte was never
// handed out. Where it was handed out, an error reported by WroteRequest still
// proves that the system did not take all of it.
func (x *Exchange) NoAnswer(err error) (models.Class, models.Reason, string) {
	text := words(err)
	switch left := x.gate != nil && x.gate.shut(); {
	case x.gate != nil && x.gate.late:
		return models.Unavailable, models.StartByPassed, "the worker was held up until the call might no longer begin"
	case !left || x.broken.Load():
		return models.Unavailable, "", "the request could not be sent: " + text
	}
	return models.Unknown, "", "the request was sent, and no answer came: " + text
}

func words(err error) string {
	var u *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the call took longer than it may"
	case errors.Is(err, context.Canceled):
		return "the call was cancelled"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed"
	case errors.As(err, &u):
		return u.Err.Error() // without the URL
	case err == nil:
		return "no reason is known"
	}
	return err.Error()
}

// A gate lets a request's body through until it is shut, and knows whether the
// last byte passed. It cannot be rewound.
//
// It looks at the clock whenever bytes are fetched, which is right before they
// leave: a process that is stopped while a connection is made, or in the middle of
// a body, must not go on with the call when it wakes. When Transport looks for the end
// of a body, its last byte has left, so that this is no failure at any time: one would
// be taken for proof that the request is not complete.
type gate struct {
	startBy time.Time // the first byte passes before this; zero: whenever
	end     time.Time // every byte passes before this; zero: whenever

	mu     sync.Mutex
	body   io.ReadCloser
	left   int64 // bytes that have not passed; negative: the length is not known
	begun  bool
	late   bool // it never began, because of startBy
	spent  bool
	closed bool
}

var (
	errShut = errors.New("transport: the call has ended")
	errLate = errors.New("transport: the call came too late")
)

// Read implements io.Reader.
func (g *gate) Read(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left == 0 {
		return 0, io.EOF
	}
	if g.closed {
		return 0, errShut
	}
	g.late = !g.begun && past(g.startBy)
	if g.late || past(g.end) {
		g.closed = true
		return 0, errLate
	}
	g.begun = true
	n, err := g.body.Read(p)
	switch {
	case g.left < 0:
		g.spent = g.spent || errors.Is(err, io.EOF)
	case n > 0:
		g.left = max(g.left-int64(n), 0)
		g.spent = g.left == 0
	}
	return n, err
}

func past(t time.Time) bool { return !t.IsZero() && models.Passed(t) }

// Close implements io.Closer. It returns no error: Transport would report one as
// a failed write.
func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	_ = g.body.Close()
	return nil
}

// shut ends all reading and reports whether the last byte had passed.
func (g *gate) shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.spent
}
