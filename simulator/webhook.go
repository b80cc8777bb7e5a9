package simulator

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// maxDrain is how much of an answer is read so that its connection can be used
// again.
const maxDrain = 64 << 10

// postJSON makes one webhook request and returns the status of the answer, or 0
// if there was none.
func (a *account) postJSON(url string, body []byte, header http.Header) (status int) {
	// The body must not be reused: the transport may still read it after the
	// answer came.
	r, err := http.NewRequestWithContext(a.s.ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		a.s.log.Error("simulator: webhook", "account", a.name, "err", err)
		return 0
	}
	r.Header = header
	r.Header["Content-Type"] = []string{"application/json"}
	resp, err := a.s.client.Do(r)
	if err != nil {
		if a.s.ctx.Err() == nil {
			a.s.log.Warn("simulator: webhook", "account", a.name, "err", errors.Unwrap(err)) // unwrapped: without the URL
		}
		return 0
	}
	io.CopyN(io.Discard, resp.Body, maxDrain)
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		a.s.log.Debug("simulator: webhook refused", "account", a.name, "status", resp.StatusCode)
	}
	return resp.StatusCode
}

// forge reports whether a fault wants the signature of this request to be wrong.
func (a *account) forge(p *post) bool {
	for _, f := range a.s.faults.standing(a.name, func(f *fault) bool { return f.Mode == ModeBadSignature }) {
		if p.concerns(f) && a.s.faults.take(f) {
			return true
		}
	}
	return false
}
