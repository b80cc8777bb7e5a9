package simulator

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"iter"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A letter is a parsed send request. It holds views of the request body until
// free is called.
type letter interface {
	// count returns the number of recipients, as far as they could be read.
	count() int
	// addresses yields them.
	addresses() iter.Seq[[]byte]
	// refuse returns the vendor's answer to a call in which the addresses that
	// match are not valid, or nil if none matches.
	refuse(match func(addr []byte) bool) *answer
	// dry reports whether the call is only to be checked.
	dry() bool
	// pack adds metadata and copies to p and returns the rest. fate decides on
	// outcome and group of an address. Content is rendered if keep is set.
	pack(p *packer, keep bool, fate func(addr []byte) (outcome, uint8)) (h *head, content []Content, test bool)
	free()
}

// An answer is a whole HTTP response.
type answer struct {
	status int
	kind   string // content type
	header map[string]string
	body   string
}

// vendor is what a provider brings to an exchange.
type vendor struct {
	limit        int // bytes of the body
	gzip         bool
	authorized   func(r *http.Request) bool
	unauthorized answer
	tooLarge     answer
	dryAnswer    answer
	// parse reads a request. The letter is never nil; problem is the answer to a
	// request that is not valid.
	parse func(r *http.Request, body []byte) (l letter, problem *answer)
	// dress sets what every response of the vendor has.
	dress func(h http.Header)
}

var (
	bodies  = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	packers = sync.Pool{New: func() any { return new(packer) }}
)

// pooledBody is the largest buffer that is kept for the next call.
const pooledBody = 4 << 20

// exchange serves one request to send mail: faults, checks, storing, answer.
func (a *account) exchange(w http.ResponseWriter, r *http.Request, v *vendor) {
	begun := time.Now()
	call := Call{At: begun}
	own, total := a.tally.Load(), a.s.total.Load()
	own.enter()
	total.enter()
	defer func() {
		call.Took = time.Since(begun)
		a.calls.add(call)
		total.leave(call.Status)
		own.leave(call.Status)
	}()

	faults := &a.s.faults
	if verdict := faults.judge(a.name, nil, classUnread); verdict.answer != nil {
		call.Fault = verdict.mode()
		panic(http.ErrAbortHandler)
	}

	buf := bodies.Get().(*bytes.Buffer)
	buf.Reset()
	l, problem, err := a.read(r, buf, v)
	call.Bytes = buf.Len()
	if err != nil {
		putBody(buf)
		panic(http.ErrAbortHandler) // the client left in the middle of the request
	}
	call.Recipients = l.count()
	verdict := faults.judge(a.name, l.addresses(), classAnswer, classSpoil, classDelay, classMail)
	call.Fault = verdict.mode()
	ans, m := a.decide(r, l, problem, verdict, v)
	l.free()
	putBody(buf)
	if m != nil {
		call.Stored = true
		own.accepted.Add(int64(m.n))
		total.accepted.Add(int64(m.n))
	}

	hang := func() {
		own.hung.Add(1)
		total.hung.Add(1)
		a.pause(r.Context(), 1<<62)
		panic(http.ErrAbortHandler)
	}
	if !a.pause(r.Context(), time.Duration(a.latency.Load())+verdict.delay) {
		panic(http.ErrAbortHandler)
	}
	switch verdict.mode() {
	case ModeHang, ModeHangAfterBody:
		hang()
	case ModeAcceptThenClose, ModeCloseUnread:
		panic(http.ErrAbortHandler)
	case ModeTruncate:
		v.dress(w.Header())
		ans.truncate(w)
	}
	call.Status = ans.status
	v.dress(w.Header())
	ans.write(w)
}

// read reads the whole body into buf and parses it. It fails only if the client
// went away.
func (a *account) read(r *http.Request, buf *bytes.Buffer, v *vendor) (letter, *answer, error) {
	if n := r.ContentLength; n > 0 && n <= int64(v.limit) {
		buf.Grow(int(n) + bytes.MinRead) // MinRead: or ReadFrom grows once more
	}
	var body io.Reader = r.Body
	if v.gzip && r.Header.Get("Content-Encoding") == "gzip" {
		unzip, err := gzip.NewReader(r.Body)
		if err != nil {
			l, problem := v.parse(r, nil)
			return l, problem, nil //nolint:nilerr // the vendor's answer to it is the problem
		}
		body = unzip
	}
	n, err := buf.ReadFrom(io.LimitReader(body, int64(v.limit)+1))
	switch {
	case err != nil && body != r.Body:
		buf.Reset() // not gzip, whatever the header says
	case err != nil:
		return nil, nil, err
	case n > int64(v.limit):
		// Read on for a while: a server that closes early makes the client see a
		// broken pipe instead of the answer.
		io.CopyN(io.Discard, r.Body, int64(v.limit))
		l, _ := v.parse(r, nil)
		return l, &v.tooLarge, nil
	}
	l, problem := v.parse(r, buf.Bytes())
	return l, problem, nil
}

// decide finds the answer and stores the mail if it is taken.
func (a *account) decide(r *http.Request, l letter, problem *answer, verdict verdict, v *vendor) (ans answer, m *mailing) {
	f := verdict.answer
	refused := func(addr []byte) bool { return outcomeOf(addr, a.name) == outRefused }
	if f != nil && f.Mode == ModeRefuse {
		pattern := f.pattern
		refused = pattern.match
		f = nil
	}
	if !v.authorized(r) {
		problem = &v.unauthorized
	} else if problem == nil {
		problem = l.refuse(refused)
	}
	if f != nil && f.class == classAnswer {
		if f.Store && problem == nil && !l.dry() {
			m = a.accept(l, verdict.mail)
		}
		return a.provider.answer(f), m
	}
	switch {
	case problem != nil:
		return *problem, nil
	case l.dry():
		return v.dryAnswer, nil
	}
	m = a.accept(l, verdict.mail)
	return a.provider.accepted(m), m
}

// accept stores the letter and schedules its events.
func (a *account) accept(l letter, mail []*fault) *mailing {
	p := packers.Get().(*packer)
	defer packers.Put(p)
	p.reset()
	fate := func(addr []byte) (o outcome, number uint8) {
		o = outcomeOf(addr, a.name)
		if len(mail) == 0 {
			return o, 0
		}
		var g group
		for _, f := range mail {
			if !f.pattern.match(addr) {
				continue
			}
			switch {
			case f.suspends():
				g.park = f
			case f.Mode == ModeEventsOff:
				g.mute = f
			case f.Mode == ModeEventsDelay:
				g.delay += f.Delay
			default:
				o = f.outcome
			}
		}
		return o, p.group(g)
	}
	h, content, test := l.pack(p, a.s.opts.KeepContent, fate)
	h.keys = append([]string(nil), p.keys...)
	if last := a.lastHead.Load(); last.same(h) {
		h = last
	} else {
		h.finish(a.s.opts.RecipientKey, a.provider.reserved)
		a.lastHead.Store(h)
	}
	m := p.mailing(a, h)
	m.at, m.serial, m.test = time.Now().UnixNano(), a.serial.Add(1), test
	if content != nil {
		if m.extra == nil {
			m.extra = &extra{}
		}
		m.extra.content = content
	}
	if !test {
		a.s.store.Load().add(m, a.tally.Load(), a.s.total.Load())
	}
	begin := m.at + a.latency.Load() + a.s.eventDelay.Load()
	a.outbox.schedule(m, p.counts, begin)
	return m
}

// pause waits for d. It reports false if the client left or the simulator was
// closed meanwhile.
func (a *account) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-a.s.ctx.Done():
	}
	return false
}

func putBody(buf *bytes.Buffer) {
	if buf.Cap() <= pooledBody {
		bodies.Put(buf)
	}
}

func (ans answer) write(w http.ResponseWriter) {
	ans.writeHeader(w, len(ans.body))
	io.WriteString(w, ans.body)
}

func (ans answer) writeHeader(w http.ResponseWriter, size int) {
	h := w.Header()
	if ans.kind != "" {
		h.Set("Content-Type", ans.kind)
	}
	for name, value := range ans.header {
		h.Set(name, value)
	}
	h.Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(ans.status)
}

// truncate sends half of the body that it announces and closes the connection.
func (ans answer) truncate(w http.ResponseWriter) {
	body := ans.body
	if len(body) < 2 {
		body = "this answer ends in the middle of the body"
	}
	ans.writeHeader(w, len(body))
	io.WriteString(w, body[:len(body)/2])
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}
