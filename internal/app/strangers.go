package app

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/internal/perclient"
)

// A client gets so many answers to requests that nothing verified: no key, no session and no signature. Further answers
// wait, so that guesses of keys and links cost the client time, and not the users. Too many that wait are dropped.
const (
	strangerRate  = 10 // per second
	strangerBurst = 100
	strangerWait  = 5 * time.Second                              // the longest of one answer
	strangerWaits = strangerRate * int(strangerWait/time.Second) // answers that wait at the same time: those with a turn
)

// slowStrangers delays the answers of clients that send many unverified requests. The waits end with the client's
// connection and when stopped is closed. late is called for each.
func slowStrangers(next http.Handler, stopped <-chan struct{}, late func()) http.Handler {
	rates := perclient.NewRates(strangerRate, strangerBurst)
	var waiting perclient.Counts
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, ctx := perclient.Address(r), r.Context()
		s := &strangerWriter{ResponseWriter: w, wait: func() bool {
			return waitTurn(ctx, client, rates.Of(client), &waiting, stopped, late)
		}}
		next.ServeHTTP(s, r.WithContext(known.With(ctx, func() { s.wait = nil; known.Mark(ctx) })))
		if s.begin(); s.dropped {
			drop(w)
		}
	})
}

// drop ends a connection without an answer. Its client would connect again at once, which costs more than the request,
// so the connection stays open for a while. A stream of HTTP/2 is reset.
func drop(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if p, ok := placeOf(c); ok && p.drop() {
		time.AfterFunc(strangerWait, func() { _ = c.Close() })
		return
	}
	_ = c.Close()
}

// waitTurn waits until a client may have another answer. It returns false if too many answers of the client wait.
func waitTurn(
	ctx context.Context, client netip.Addr, limiter *rate.Limiter, waiting *perclient.Counts, stopped <-chan struct{},
	late func(),
) bool {
	turn := limiter.Reserve()
	wait := turn.Delay()
	if wait == 0 {
		return true
	}
	late()
	if wait > strangerWait {
		turn.Cancel() // no client collects waits
		wait = strangerWait
	}
	if !waiting.Add(client, 1, int64(strangerWaits)) {
		return false
	}
	defer waiting.Remove(client, 1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-stopped:
	}
	return true
}

// strangerWriter waits before an answer begins, unless the request was verified by then.
type strangerWriter struct {
	http.ResponseWriter
	wait    func() bool // nil: the answer has begun, or need not wait
	dropped bool
}

// begin waits once, and reports whether there is an answer.
func (s *strangerWriter) begin() bool {
	if wait := s.wait; wait != nil {
		s.wait = nil
		s.dropped = !wait()
	}
	return !s.dropped
}

// WriteHeader implements http.ResponseWriter.
func (s *strangerWriter) WriteHeader(status int) {
	if s.begin() {
		s.ResponseWriter.WriteHeader(status)
	}
}

// Write implements io.Writer.
func (s *strangerWriter) Write(p []byte) (int, error) {
	if !s.begin() {
		return 0, net.ErrClosed
	}
	return s.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (s *strangerWriter) Flush() {
	if s.begin() {
		_ = http.NewResponseController(s.ResponseWriter).Flush() // the next write has the error, too
	}
}

// Unwrap is for http.ResponseController.
func (s *strangerWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
