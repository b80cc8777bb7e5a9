package provider

import (
	"io"
	"net/http"
	"strconv"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// An Endpoint is how requests to send mail are read and answered.
type Endpoint struct {
	Limit        int  // bytes of the body
	GZIP         bool // the body may be compressed
	Authorized   func(r *http.Request) bool
	Unauthorized Answer
	TooLarge     Answer
	DryAnswer    Answer // to a Request that is Dry
	// Parse reads a request. The Request is never nil; problem is the answer to a
	// request that is not valid.
	Parse func(r *http.Request, body []byte) (req Request, problem *Answer)
	// Dress sets the header fields of every response.
	Dress func(h http.Header)
}

// A Request is a parsed request to send mail. It may hold views of the body.
type Request interface {
	// Addresses returns the recipients that could be read.
	Addresses() []string
	// Refuse returns the answer to a call in which the addresses that match are
	// not valid, or nil if none matches.
	Refuse(match func(addr string) bool) *Answer
	// Dry reports whether the call is only checked.
	Dry() bool
	// Batch returns the mail without outcomes, IDs and time. It renders content if keep
	// is set.
	Batch(keep bool) message.Batch
}

// An Answer is a whole HTTP response.
type Answer struct {
	Status int
	Type   string // content type
	Header map[string]string
	Body   string
}

// Write sends the answer.
func (a Answer) Write(w http.ResponseWriter) {
	a.writeHeader(w, len(a.Body))
	io.WriteString(w, a.Body)
}

func (a Answer) writeHeader(w http.ResponseWriter, size int) {
	h := w.Header()
	if a.Type != "" {
		h.Set("Content-Type", a.Type)
	}
	for name, value := range a.Header {
		h.Set(name, value)
	}
	h.Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(a.Status)
}

// Truncate sends half of the body that it announces and closes the connection.
func (a Answer) Truncate(w http.ResponseWriter) {
	body := a.Body
	if len(body) < 2 {
		body = "this answer ends in the middle of the body"
	}
	a.writeHeader(w, len(body))
	io.WriteString(w, body[:len(body)/2])
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}
