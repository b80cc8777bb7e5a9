package flow

import (
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Outage is a time in which calls to a provider failed, some of them with mail of the batch. It
// begins with the first of these calls, and ends when a call succeeds that began after that
// failure was known. Calls of other batches count, too: the workers tell of them.
type Outage struct {
	Provider string
	From     time.Time     // when the first failed call began
	To       time.Time     // when a call succeeded again; if none did, when the newest call had failed
	Over     bool          // a call succeeded again
	Lasts    bool          // calls are failing now
	Failed   int64         // messages of the batch's failed calls
	Rerouted int64         // of these, whose next call was at another provider
	Failover time.Duration // from the batch's first failed call to the first of these next calls
	Through  []string      // the other providers
	Why      string        // the answer to the batch's first failed call
}

// change is when a call was known to have failed or to have succeeded.
type change struct {
	at, began time.Time
	call      *call // of the batch; nil: a worker reports it
	failed    bool
}

// outagesOf returns the outages of a provider. calls are ordered by their ends.
func outagesOf(provider string, calls []call, health []Health, scale float64) []Outage {
	var changes []change
	for i := range calls {
		c := &calls[i]
		changes = append(changes, change{at: c.ended, began: c.began, call: c, failed: !c.failed.Empty()})
	}
	for i := range health {
		h := &health[i]
		changes = append(changes,
			change{at: h.Known, began: h.From, failed: true},
			change{at: h.Last, began: h.Last, failed: true},
		)
		if !h.To.IsZero() {
			changes = append(changes, change{at: h.To, began: h.To})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	runs := []*failing{{}}
	for _, c := range changes {
		run := runs[len(runs)-1]
		switch {
		case c.failed:
			k := slices.IndexFunc(runs, func(r *failing) bool { return r.end.IsZero() || c.began.Before(r.end) })
			runs[k].add(c)
		case !run.known.IsZero() && !c.began.Before(run.known):
			run.end = c.at
			runs = append(runs, &failing{})
		}
	}
	var out []Outage
	for _, run := range runs {
		if len(run.calls) > 0 {
			out = append(out, run.outage(provider, scale))
		}
	}
	if n := len(out); n > 0 && !out[n-1].Over {
		out[n-1].Lasts = slices.ContainsFunc(health, func(h Health) bool { return h.Now && h.To.IsZero() })
	}
	return out
}

// failing has the calls that failed and began after one success and before the next one.
type failing struct {
	from, known, last time.Time
	end               time.Time // zero: no call has succeeded since
	calls             []*call   // of the batch
}

func (r *failing) add(c change) {
	if r.known.IsZero() {
		r.from, r.known = c.began, c.at
	}
	r.from, r.last = models.EarlierOf(r.from, c.began), c.at
	if c.call != nil {
		r.calls = append(r.calls, c.call)
	}
}

// outage returns the outage of the failures. There are calls of the batch among them.
func (r *failing) outage(provider string, scale float64) Outage {
	o := Outage{Provider: provider, From: r.from, To: r.last, Why: r.calls[0].why}
	if !r.end.IsZero() {
		o.To, o.Over = r.end, true
	}
	failed, moved := map[int]models.Set{}, map[int]models.Set{} // by chunk
	began, next := r.calls[0].began, time.Time{}
	for _, c := range r.calls {
		failed[c.chunk] = failed[c.chunk].Or(c.failed)
		moved[c.chunk] = moved[c.chunk].Or(c.moved)
		began = models.EarlierOf(began, c.began)
		if c.next == nil {
			continue
		}
		if next.IsZero() || c.next.At.Before(next) {
			next = c.next.At
		}
		if !slices.Contains(o.Through, c.next.Provider) {
			o.Through = append(o.Through, c.next.Provider)
		}
	}
	o.Failed, o.Rerouted = scaled(sum(failed), scale), scaled(sum(moved), scale)
	if !next.IsZero() {
		o.Failover = max(0, next.Sub(began))
	}
	slices.Sort(o.Through)
	return o
}

func sum(sets map[int]models.Set) (n int) {
	for _, s := range sets {
		n += s.Len()
	}
	return n
}
