package simulator

import (
	"bytes"
	"container/heap"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// maxDrain is how much of an answer is read so that its connection can be used
// again.
const maxDrain = 64 << 10

// work makes posts until there are none.
func (ob *outbox) work() {
	defer ob.s.wg.Done()
	for {
		ob.mu.Lock()
		p, ok := ob.take(time.Now().UnixNano())
		if !ok || ob.s.ctx.Err() != nil {
			ob.workers--
			ob.mu.Unlock()
			ob.nudge() // for the timer of what is left
			return
		}
		ob.mu.Unlock()
		ob.deliver(p)
	}
}

// take returns a post to be made now. The outbox is locked.
func (ob *outbox) take(now int64) (post, bool) {
	if len(ob.posts) > 0 {
		return pop(&ob.posts), true
	}
	if ob.waiting == 0 || !ob.mature(now) {
		return post{}, false
	}
	if ob.batching.Single && ob.mixUp() {
		return pop(&ob.posts), true
	}
	return ob.collect(), true
}

// mature reports whether to send the collected events now: the timer ran out, there are enough of them, or a flush was
// asked for. The outbox is locked and has waiting events.
func (ob *outbox) mature(now int64) bool {
	b := &ob.batching
	return ob.waiting >= b.Events || b.Bytes > 0 && ob.waiting*b.EventBytes >= b.Bytes ||
		ob.ready[0].gen <= ob.force || now >= ob.flushTime()
}

// flushTime returns when collected events are sent at the latest.
func (ob *outbox) flushTime() int64 { return ob.since + int64(ob.s.scaled(ob.batching.Every)) }

// collect takes waiting events for one post. The outbox is locked and has some.
func (ob *outbox) collect() (p post) {
	p.items = make([]item, 0, min(ob.batching.Events, ob.waiting))
	for len(p.items) < cap(p.items) {
		e := ob.ready[0]
		if p.items = e.take(p.items, cap(p.items)-len(p.items)); e.left == 0 {
			pop(&ob.ready)
		}
	}
	if ob.waiting -= len(p.items); ob.waiting > 0 {
		ob.since = ob.ready[0].Due
	}
	return p
}

// deliver makes one post and decides about its events.
func (ob *outbox) deliver(p post) {
	muted := p.muted
	status, sent := ob.send(&p)
	count := ob.a.tallies().count
	count(func(st *Stats) {
		if sent > 0 {
			st.Posts++
			st.EventsSent += int64(sent)
			st.PostsByStatus[status]++
		}
		st.EventsMuted += int64(p.muted - muted)
	})
	p.tries++
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if p.items[0].gen < ob.oldest {
		return // from before a reset
	}
	n := int64(len(p.items) - p.muted)
	switch {
	case sent == 0:
	case ob.a.provider.Hooks.Acknowledged(status):
		count(func(st *Stats) { st.EventsOK += n })
	case ob.retry(&p, status):
		return
	default:
		count(func(st *Stats) { st.EventsGivenUp += n })
		for _, e := range p.items {
			if p.forged && e.stage().Step.Ends() {
				ob.s.store.Load().lost.Store(e.copy, true)
			}
		}
	}
	for _, e := range p.items {
		ob.close(e.gen)
	}
}

// retry puts a failed post off. It reports false if the provider gives up. The
// outbox is locked.
func (ob *outbox) retry(p *post, status int) bool {
	now := time.Now().UnixNano()
	age := time.Duration(float64(now-p.items[0].Due) * ob.s.opts.TimeScale)
	gap, ok := ob.a.provider.Hooks.Retry(p.items[0].stage(), status, int(p.tries), age)
	if !ok {
		return false
	}
	p.at = now + int64(ob.s.scaled(gap))
	heap.Push(&ob.retries, p)
	ob.nudge()
	return true
}

// enqueue adds a post besides the one that is being sent. New says that its events
// have not been counted as open.
func (ob *outbox) enqueue(p post, new bool) {
	ob.mu.Lock()
	if p.items[0].gen >= ob.oldest {
		for _, e := range p.items {
			if new {
				ob.open[e.gen]++
			}
		}
		ob.posts = append(ob.posts, p)
	}
	ob.mu.Unlock()
	ob.nudge()
}

// close ends an event of a generation. The outbox is locked.
func (ob *outbox) close(gen uint32) {
	if ob.open[gen]--; ob.open[gen] == 0 {
		delete(ob.open, gen)
		ob.done.Broadcast()
	}
}

// send renders the post and makes the request. The status is 0 if there was no
// answer. sent is the number of events in the request, and 0 if none was made. send
// counts the events without a webhook in p.muted. It may shorten p and enqueue the
// rest.
func (ob *outbox) send(p *post) (status, sent int) {
	urls := ob.a.provider.URLs(p.items[0].stage())
	if int(p.url) >= len(urls) {
		return 0, 0
	}
	if !p.planned {
		p.planned = true
		if ob.plan(p); ob.batching.Single {
			ob.spread(p, len(urls))
		}
	}
	body, sent, counts := ob.render(p)
	if sent == 0 {
		return 0, 0
	}
	body, header, err := ob.a.provider.Hooks.Sign(ob.toSign(p, body))
	if err != nil {
		ob.s.log.Error("simulator: signing events", "account", ob.a.name, "err", err)
		return 0, sent
	}
	status = ob.postJSON(urls[p.url], body, header)
	if p.tries == 0 {
		ob.a.tallies().count(func(st *Stats) {
			st.EventsDoubled += counts.doubled
			st.EventsOvertaken += counts.overtaken
			st.EventsLate += counts.late
		})
	}
	return status, sent
}

// toSign returns what the provider signs. A repeated post has the signature of the
// first one unless Options.ResignRetries is set.
func (ob *outbox) toSign(p *post, body []byte) provider.Post {
	nonce := uint64(p.url)
	if p.repeat {
		nonce |= 1 << 8
	}
	if p.signed == 0 || ob.s.opts.ResignRetries || ob.a.provider.Hooks.Resigns {
		p.signed = time.Now().Unix()
	}
	if ob.s.opts.ResignRetries {
		nonce |= uint64(p.tries) << 16
	}
	p.forged = ob.forged(p)
	return provider.Post{
		Body:   body,
		Event:  &p.items[0].Event,
		Copy:   p.items[0].copy.Index,
		Time:   p.signed,
		Nonce:  nonce,
		Forged: p.forged,
	}
}

// render writes the events of p. What exceeds the size of a request becomes a post
// of its own. The body depends on nothing that changes from try to try, unless
// Options.NewEventIDOnRetry is set.
func (ob *outbox) render(p *post) (body []byte, sent int, counts faultCounts) {
	b := &ob.batching
	size := len(p.items) * b.EventBytes * 5 / 4
	if b.Bytes > 0 {
		size = min(size, b.Bytes)
	}
	body = append(make([]byte, 0, size+2*b.EventBytes), b.Open...)
	if p.repeat {
		counts.doubled++
	}
	var of *scheduled
	var write func([]byte, *message.Copy) []byte
	var quiet, late bool
	p.muted = 0
	for i, e := range p.items {
		if e.scheduled != of {
			of, quiet, late = e.scheduled, e.quiet(), e.group().delay > 0 && !p.repeat
			write = e.stage().Hook.Writer(ob.a.provider.View(&e.Event, int(p.tries)))
		}
		if e.times == 0 || quiet {
			p.muted++
			continue
		}
		if e.times > 1 {
			counts.doubled++
		}
		if e.behind {
			counts.overtaken++
		}
		if late {
			counts.late++
		}
		for range e.times {
			if sent++; sent > 1 {
				body = append(body, b.Separator...)
			}
			body = write(body, e.copy)
		}
		if rest := p.items[i+1:]; b.Bytes > 0 && len(body) > b.Bytes-2*b.EventBytes && len(rest) > 0 {
			ob.enqueue(post{items: rest, planned: true}, false)
			p.items = p.items[:i+1]
			break
		}
	}
	return append(body, b.Close...), sent, counts
}

// quiet reports whether no copy of the event has a webhook.
func (e *scheduled) quiet() bool {
	st := e.stage()
	f := e.group().mute
	return st.Quiet || f != nil && f.selects(st)
}

// postJSON makes one webhook request and returns the status of the answer, or 0
// if there was none.
func (ob *outbox) postJSON(url string, body []byte, header http.Header) (status int) {
	// The body must not be reused: the transport may read it after the answer.
	r, err := http.NewRequestWithContext(ob.s.ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		ob.s.log.Error("simulator: webhook", "account", ob.a.name, "err", err)
		return 0
	}
	r.Header = header
	r.Header["Content-Type"] = []string{"application/json"}
	resp, err := ob.s.client.Do(r)
	if err != nil {
		if ob.s.ctx.Err() == nil {
			// Unwrapped, the error does not hold the URL.
			ob.s.log.Warn("simulator: webhook", "account", ob.a.name, "err", errors.Unwrap(err))
		}
		return 0
	}
	io.CopyN(io.Discard, resp.Body, maxDrain)
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		ob.s.log.Debug("simulator: webhook refused", "account", ob.a.name, "status", resp.StatusCode)
	}
	return resp.StatusCode
}
