package provider

import (
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// Seen returns the events up to those that look-ups show, oldest first, and the time from which on they show them, in
// Unix nanoseconds.
func (a *Account) Seen(now time.Time) (log []message.Event, oldest int64) {
	if a.Options.LookupWindow > 0 {
		oldest = now.Add(-a.Options.LookupWindow).UnixNano()
	}
	return a.Log(now.Add(-a.Options.LookupLag)), oldest
}

// A Logged is a batch with its events that look-ups show, oldest first.
type Logged struct {
	*message.Batch
	provider *Provider
	events   []*message.Event
}

// Logged returns the batches that match and have events, oldest first.
func (p *Provider) Logged(now time.Time, match func(*message.Batch) bool) (list []Logged) {
	at := map[*message.Batch]int{}
	log, oldest := p.Seen(now)
	for i := range log {
		e := &log[i]
		if e.Batch.Time < oldest || !match(e.Batch) {
			continue
		}
		n, ok := at[e.Batch]
		if !ok {
			n = len(list)
			at[e.Batch] = n
			list = append(list, Logged{Batch: e.Batch, provider: p})
		}
		list[n].events = append(list[n].events, e)
	}
	return list
}

// Mail returns the batch with an id, if it has events.
func (p *Provider) Mail(id string) (l Logged, ok bool) {
	list := p.Logged(time.Now(), func(b *message.Batch) bool { return p.ID(b) == id })
	if len(list) == 0 {
		return l, false
	}
	return list[0], true
}

// Of returns the events of a copy, oldest first, and its status.
func (l *Logged) Of(c *message.Copy) (events []View, status string) {
	for _, e := range l.events {
		if e.Includes(c) {
			v := l.provider.View(e, 0)
			v.Copy = c
			if v.Stage.Status != "" {
				status = v.Stage.Status
			}
			events = append(events, v)
		}
	}
	return events, status
}

// View returns what the forms of a copy read, without an event.
func (l *Logged) View(c *message.Copy) View {
	p := l.provider
	_, status := l.Of(c)
	return View{Account: p.Account, Batch: l.Batch, Copy: c, ID: p.ID(l.Batch), Status: status}
}

// View returns what the forms of an event read, without its copy.
func (p *Provider) View(e *message.Event, tries int) View {
	return View{Account: p.Account, Batch: e.Batch, Event: e, Stage: &p.Stages[e.Outcome][e.Stage], ID: p.ID(e.Batch),
		Tries: tries}
}

// A limiter counts the look-ups of the current second. It is safe for concurrent use.
type limiter struct {
	mu     sync.Mutex
	second int64
	n      int
}

// allow reports whether another look-up is allowed, and when the limit begins anew. A limit of 0 allows all.
func (l *limiter) allow(limit int, now time.Time) (reset time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.second != now.Unix() {
		l.second, l.n = now.Unix(), 0
	}
	l.n++
	return time.Unix(l.second+1, 0), limit == 0 || l.n <= limit
}
