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

// Pace lets the computing for a long request give way to that for others.
type Pace struct {
	enter func() (leave func(), err error) // nil: nothing gives way
	leave func()                           // nil: not entered
}

// NewPace returns the Pace of a request that calls enter before it computes. enter may be nil.
func NewPace(enter func() (leave func(), err error)) *Pace { return &Pace{enter: enter} }

func (p *Pace) begin() (err error) {
	if p.enter != nil && p.leave == nil {
		p.leave, err = p.enter()
	}
	return err
}

// Pause says that the caller computes no more between reads of the body.
func (p *Pace) Pause() {
	if p.leave != nil {
		p.leave()
		p.leave = nil
	}
}

// yield lets others compute, if there are any.
func (p *Pace) yield() error {
	if p.leave == nil {
		runtime.Gosched()
		return nil
	}
	p.Pause()
	return p.begin()
}

// Body returns a reader of the request's body. What its caller computes between two reads gives way to other work if
// the body is long. The caller must call Pause when it stops reading.
func (p *Pace) Body(body io.Reader) io.Reader { return &pacedBody{body: body, pace: p} }

type pacedBody struct {
	body io.Reader
	pace *Pace
	read int
}

// Read implements io.Reader.
func (b *pacedBody) Read(p []byte) (int, error) {
	b.pace.Pause()
	n, err := b.body.Read(p)
	if b.read += n; b.read > longBody && err == nil {
		err = b.pace.begin()
	}
	return n, err
}
