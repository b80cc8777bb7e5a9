package intake

import (
	"io"
	"runtime"
)

// A request is long if it has more bytes than longBody, or more content or recipients than these. The work for a long
// request has low priority.
const (
	longBody    = 64 << 10
	longContent = 64 << 10
	longCount   = 1000
)

// pace lets the computing for a long request give way to that for others.
type pace struct {
	enter func() (leave func(), err error) // nil: nothing gives way
	leave func()                           // nil: not entered
}

func (p *pace) begin() (err error) {
	if p.enter != nil && p.leave == nil {
		p.leave, err = p.enter()
	}
	return err
}

func (p *pace) pause() {
	if p.leave != nil {
		p.leave()
		p.leave = nil
	}
}

// yield lets others compute, if there are any.
func (p *pace) yield() error {
	if p.leave == nil {
		runtime.Gosched()
		return nil
	}
	p.pause()
	return p.begin()
}

// Body returns a reader of the request's body. What its caller computes between two reads gives way to other work if
// the body is long. The caller must call Pause when it stops reading.
func (in *Intake) Body(body io.Reader) io.Reader { return &pacedBody{body: body, pace: &in.pace} }

// Pause says that the caller computes no more between reads of the body.
func (in *Intake) Pause() { in.pace.pause() }

type pacedBody struct {
	body io.Reader
	pace *pace
	read int
}

// Read implements io.Reader.
func (b *pacedBody) Read(p []byte) (int, error) {
	b.pace.pause()
	n, err := b.body.Read(p)
	if b.read += n; b.read > longBody && err == nil {
		err = b.pace.begin()
	}
	return n, err
}
