package app

import (
	"net/http"
	"time"
)

const (
	// answerTime is how long a client may take to read 64 KiB of an answer.
	answerTime  = 30 * time.Second
	answerPiece = 64 << 10

	// A client has few requests at a time on one connection of HTTP/2. What it sends is buffered within these bounds.
	maxStreams = 32
	perStream  = 256 << 10
	perClient  = 1 << 20
)

// http2 are the bounds of a connection of HTTP/2.
func http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          maxStreams,
		MaxReceiveBufferPerStream:     perStream,
		MaxReceiveBufferPerConnection: perClient,
		SendPingTimeout:               answerTime,
		WriteByteTimeout:              answerTime,
	}
}

// limitAnswers ends answers that the client does not read: each piece has a deadline of its own, so that a slow client
// gets all of a long answer.
func limitAnswers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := &timedWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		t.setDeadline(time.Time{}) // that of the request before on this connection
		next.ServeHTTP(t, r)
		t.setDeadline(time.Now().Add(answerTime)) // for what is still buffered
	})
}

// timedWriter is the answer to a request, with a deadline that moves while it is read.
type timedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write implements io.Writer.
func (t *timedWriter) Write(p []byte) (n int, err error) {
	for {
		piece := p[n:min(len(p), n+answerPiece)]
		t.setDeadline(time.Now().Add(answerTime))
		k, err := t.ResponseWriter.Write(piece)
		if n += k; err != nil || n == len(p) {
			return n, err
		}
	}
}

// Flush implements http.Flusher.
func (t *timedWriter) Flush() {
	t.setDeadline(time.Now().Add(answerTime))
	_ = t.control.Flush() // the next write has the error, too
}

// Unwrap is for http.ResponseController.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// setDeadline sets the deadline for writing. A ResponseWriter that is no connection has none.
func (t *timedWriter) setDeadline(at time.Time) { _ = t.control.SetWriteDeadline(at) }

// quarter returns how many of all connections one address may have: no address keeps out the others.
func quarter(total, perAddress int) int { return min(perAddress, max(total/4, 1)) }
