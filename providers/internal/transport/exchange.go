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

// An Answer is the answer to a call. Status is 0 if there was none.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Cut    bool // the body broke off, or was too long
}

// An Exchange is one request and its answer. Read it only after the request.
type Exchange struct {
	Answer
	startBy time.Time
	limit   int64 // bytes that are read of the answer
	used    atomic.Bool
	broken  atomic.Bool // writing the request failed
	unready bool        // startBy had passed before the request was ready
	gate    *gate
}

// NoAnswer classifies a call that ended with err and without an answer, and describes it.
// The class is Unavailable if the request certainly was not sent completely, and Unknown
// otherwise. After NoAnswer nothing of the request can be sent any more.
//
// The gate in front of the body decides: a provider cannot act on a request whose last byte never passed. If it passed,
// an error that WroteRequest reports still proves that the system did not take all of it.
func (x *Exchange) NoAnswer(err error) (models.Class, models.Reason, string) {
	text := words(err)
	switch left := x.gate != nil && x.gate.shut(); {
	case x.gate != nil && x.gate.late:
		return models.Unavailable, models.StartByPassed,
			"the worker was delayed until the call was no longer allowed to start"
	case x.unready, x.gate == nil && errors.Is(err, context.DeadlineExceeded):
		return models.Unavailable, models.NotComposed, "the request was not ready in time"
	case !left || x.broken.Load():
		return models.Unavailable, "", "the request could not be sent: " + text
	}
	return models.Unknown, "", "the request was sent, and no answer came: " + text
}

// words describes an error without the URL.
func words(err error) string {
	var u *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "the call timed out"
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

// A gate passes the body of a request on until it is shut, and knows whether the last byte
// passed. It cannot be rewound.
//
// It checks the time whenever bytes are read, right before they are sent: a process that
// was stopped meanwhile must not continue the call when it wakes. The read of the end, when the last byte has been
// sent, never fails: an error would be taken as proof that the request was not complete.
type gate struct {
	startBy time.Time // the first byte passes before this; zero: no limit
	end     time.Time // every byte passes before this; zero: no limit

	mu     sync.Mutex
	body   io.ReadCloser
	left   int64 // bytes that have not passed; negative: the length is not known
	begun  bool
	late   bool // nothing passed, because of startBy
	spent  bool // the last byte passed
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

// Close implements io.Closer. It returns no error, because http.Transport would report it
// as a failed write.
func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	_ = g.body.Close()
	return nil
}

// shut ends all reads and reports whether the last byte had passed.
func (g *gate) shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.spent
}
