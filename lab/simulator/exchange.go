package simulator

import (
	"compress/gzip"
	"context"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// exchange serves one request to send mail: faults, checks, storing, answer.
func (a *account) exchange(w http.ResponseWriter, r *http.Request, e *provider.Send) {
	begun := time.Now()
	call := Call{At: begun}
	counts := a.tallies()
	counts.enter()
	defer func() {
		call.Took = time.Since(begun)
		a.calls.add(call)
		counts.leave(call.Status)
	}()

	if verdict := a.s.faults.judge(a.name, nil, classUnread); verdict.answer != nil {
		call.Fault = verdict.mode()
		panic(http.ErrAbortHandler)
	}
	answer, verdict, end := a.take(r, e, &call)
	defer end()
	if !a.s.pause(r.Context(), time.Duration(a.latency.Load())+verdict.delay) {
		panic(http.ErrAbortHandler)
	}
	switch verdict.mode() {
	case ModeHang, ModeHangAfterBody:
		counts.count(func(st *Stats) { st.Hung++ })
		a.s.pause(r.Context(), math.MaxInt64)
		panic(http.ErrAbortHandler)
	case ModeAcceptThenClose, ModeCloseUnread:
		panic(http.ErrAbortHandler)
	case ModeTruncate:
		a.provider.Truncate(w, answer)
	}
	call.Status = answer.Status
	a.provider.Write(w, answer)
}

// take reads the request, stores the mail if it is accepted, and fills in the call. end must be called when the
// exchange has ended.
func (a *account) take(r *http.Request, e *provider.Send, call *Call) (answer provider.Answer, v verdict, end func()) {
	var body strings.Builder
	c, problem := a.read(r, &body, e)
	call.Bytes = body.Len()
	recipients := c.Addresses()
	call.Recipients = len(recipients)
	v = a.s.faults.judge(a.name, recipients, classAnswer, classSpoil, classDelay, classMail)
	call.Fault = v.mode()
	release := func(*provider.Answer) {}
	if status := a.provider.Unauthorized(r); status != 0 {
		said := a.provider.Say(status)
		problem = &said
	} else {
		var earlier *provider.Answer
		earlier, release = a.provider.Keys.Begin(a.provider, a.provider.Key(r, c), body.String())
		if earlier != nil {
			problem = earlier
		}
	}
	answer, stored := a.decide(c, problem, v)
	call.Stored = stored != nil
	return answer, v, func() { release(stored) }
}

// read reads the whole body into buf and parses it.
func (a *account) read(r *http.Request, buf *strings.Builder, e *provider.Send) (*provider.Call, *provider.Answer) {
	if n := r.ContentLength; n > 0 && n <= int64(e.Limit) {
		buf.Grow(int(n))
	}
	body := io.Reader(r.Body)
	if e.GZIP && r.Header.Get("Content-Encoding") == "gzip" {
		unzip, err := gzip.NewReader(r.Body)
		if body = unzip; err != nil {
			body = strings.NewReader("") // not gzip, in spite of the header
		}
	}
	n, err := io.Copy(buf, io.LimitReader(body, int64(e.Limit)+1))
	switch {
	case err != nil && body != r.Body:
		buf.Reset()
	case err != nil:
		panic(http.ErrAbortHandler) // the client left in the middle of the request
	case n > int64(e.Limit):
		// Read on for a while. If the server closed early, the client would see a broken pipe instead of the answer.
		io.CopyN(io.Discard, r.Body, int64(e.Limit))
		c, _ := e.Parse(r, "")
		problem := a.provider.Say(http.StatusRequestEntityTooLarge)
		return c, &problem
	}
	return e.Parse(r, buf.String())
}

// decide returns the answer. It stores the mail if it is accepted; stored is what the provider says of it then.
func (a *account) decide(c *provider.Call, problem *provider.Answer, v verdict) (
	answer provider.Answer, stored *provider.Answer,
) {
	f := v.answer
	refused := func(addr string) bool { return message.OutcomeOf(addr, a.name) == message.Refused }
	if f != nil && f.Mode == ModeRefuse {
		refused = f.pattern.Match
		f = nil
	}
	if problem == nil {
		problem = c.Refuse(refused)
	}
	if problem == nil {
		problem = c.Dry
	}
	instead := f != nil && f.class == classAnswer
	if problem == nil && (!instead || f.Store) {
		answer = c.Accept(a.accept(c.Batches(a.s.opts.KeepContent), v.mail))
		stored = &answer
	}
	switch {
	case instead:
		return f.answer(a.provider), stored
	case problem != nil:
		return *problem, nil
	}
	return answer, stored
}

// accept stores the mail and schedules its events.
func (a *account) accept(list []*message.Batch, faults []*fault) []*message.Batch {
	for i, batch := range list {
		b := &stored{Batch: *batch, account: a}
		list[i] = &b.Batch
		b.Identify(a.s.opts.RecipientKey)
		now := time.Now()
		for i := range b.Copies {
			c := &b.Copies[i]
			c.Outcome = message.OutcomeOf(c.Address, a.name)
			var g group
			if len(faults) > 0 {
				c.Outcome, g = treat(c.Address, c.Outcome, faults)
				b.groups, c.Group = addGroup(b.groups, g)
			}
			if dropped, ok := a.provider.Lists.Drops(c.Address, now); ok {
				c.Outcome = dropped
			} else if a.s.opts.Suppress && g.park == nil {
				a.list(c.Address, c.Outcome, now.Add(g.delay))
			}
		}
		b.Time, b.Serial = time.Now().UnixNano(), a.serial.Add(1)
		if !b.Test {
			a.s.store.Load().add(b, a.tallies())
		}
		// The copies of what counts as accepted are there.
		a.tallies().count(func(st *Stats) { st.Accepted += int64(len(b.Copies)) })
		a.outbox.schedule(b, b.Time+a.latency.Load()+a.s.eventDelay.Load())
	}
	return list
}

// treat returns what the faults make of a copy with the given outcome.
func treat(addr string, o message.Outcome, faults []*fault) (message.Outcome, group) {
	var g group
	for _, f := range faults {
		if !f.pattern.Match(addr) {
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
	return o, g
}

// pause waits for d. It reports false if the client left or the simulator was closed meanwhile.
func (s *Simulator) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return false
}
