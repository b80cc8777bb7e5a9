// Package flow derives from the calls of a batch how its mail was handed over to the
// providers, and when a provider was failing.
package flow

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Flow says how much of a batch each provider accepted at which time, and which providers were failing. It is computed
// from a sample of chunks, so that it costs the same for a batch of any size.
type Flow struct {
	From      time.Time      // start of the first step
	Step      time.Duration  // length of a step
	Providers []ProviderFlow // by name
	Outages   []Outage       // by time
	Running   bool           // calls are running
	Open      []Open         // calls without an outcome, by name of the provider
	Sampled   int            // number of chunks read
	Chunks    int            // number of chunks of the batch; counts are scaled up to it
}

// Open has the messages of calls to a provider whose outcome is not known.
type Open struct {
	Provider string
	InFlight int64 // of calls that may still be running
	Unknown  int64
}

// ProviderFlow has what one provider did in each step, by the time of its answers.
type ProviderFlow struct {
	Provider string
	Accepted []float64 // messages per second that it accepted
	Failed   []int64   // messages of calls that failed
}

// Record has the calls of one chunk.
type Record struct {
	Entries  []models.Entry
	Outcomes []models.Outcome
}

// Health has the times in which calls to a provider failed, of any mail, as the workers found them.
type Health struct {
	telemetry.FailedCalls
	Now bool // its worker is running, so that the calls still fail if To is zero
}

const (
	sampleSize = 24 // chunks
	maxSteps   = 90
)

// Sample returns the numbers of the chunks to read from a batch with a number of chunks.
func Sample(chunks int) []int {
	out := make([]int, min(chunks, sampleSize))
	for i := range out {
		out[i] = i * chunks / len(out)
	}
	return out
}

// Of returns the flow of a batch with a number of chunks at a time. It reads the calls of a sample of chunks and the
// health of the providers by name.
func Of(chunks int, sample []Record, health map[string][]Health, now time.Time) Flow {
	f := Flow{Chunks: chunks, Sampled: len(sample)}
	scale := float64(chunks) / float64(max(1, len(sample)))
	var calls []call
	open := map[string]Open{}
	for i := range sample {
		calls = append(calls, callsOf(&sample[i], i, now, open)...)
	}
	for _, name := range slices.Sorted(maps.Keys(open)) {
		o := open[name]
		f.Running = f.Running || o.InFlight > 0
		scaled := func(n int64) int64 { return int64(math.Round(float64(n) * scale)) }
		f.Open = append(f.Open, Open{name, scaled(o.InFlight), scaled(o.Unknown)})
	}
	slices.SortStableFunc(calls, func(a, b call) int { return a.ended.Compare(b.ended) })
	byProvider := map[string][]call{}
	for i := range calls {
		byProvider[calls[i].provider] = append(byProvider[calls[i].provider], calls[i])
	}
	for _, name := range slices.Sorted(maps.Keys(byProvider)) {
		f.Outages = append(f.Outages, outagesOf(name, byProvider[name], health[name], scale)...)
	}
	slices.SortStableFunc(f.Outages, func(a, b Outage) int { return a.From.Compare(b.From) })
	f.fill(calls, scale, now)
	return f
}

// call is an attempt that was answered.
type call struct {
	chunk        int // of the sample
	number       int // of the entry
	provider     string
	began, ended time.Time
	accepted     int64      // messages
	failed       models.Set // recipients of the parts that say that the provider fails
	why          string     // the first of these parts, in words
	moved        models.Set // of the failed recipients, those whose next call was at another provider
	next         *models.Entry
}

// callsOf returns the calls of a chunk that were answered, and counts the messages of the others in open.
func callsOf(rec *Record, chunk int, now time.Time, open map[string]Open) (out []call) {
	outcomes := map[int]*models.Outcome{}
	for i := range rec.Outcomes { // an acceptance counts, or else the newest answer to the call and its repeats
		o := &rec.Outcomes[i]
		known := outcomes[o.Attempt]
		if known == nil || accepts(o) || !accepts(known) && o.At.After(known.At) {
			outcomes[o.Attempt] = o
		}
	}
	for i := range rec.Entries {
		e := &rec.Entries[i]
		o := outcomes[e.Number]
		switch {
		case e.Kind != models.Attempt:
			continue
		case o == nil:
			of := open[e.Provider]
			if n := int64(e.Recipients.Len()); now.Before(e.CallEnds) {
				of.InFlight += n
			} else {
				of.Unknown += n
			}
			open[e.Provider] = of
			continue
		}
		c := call{
			chunk:    chunk,
			number:   e.Number,
			provider: e.Provider,
			began:    e.At,
			ended:    models.LaterOf(o.At, e.At),
		}
		made := false
		for k := range o.Parts {
			p := &o.Parts[k]
			made = made || !p.Reason.Uncalled()
			switch {
			case p.Class == models.Accepted:
				c.accepted += int64(p.Recipients.Len())
			case p.ProviderFailed():
				if c.failed.Empty() {
					c.why = p.Words()
				}
				c.failed = c.failed.Or(p.Recipients)
			}
		}
		if !made {
			continue
		}
		c.moved, c.next = moved(c.failed, e.Provider, rec.Entries[i+1:])
		out = append(out, c)
	}
	return out
}

// accepts reports whether an answer accepted a message.
func accepts(o *models.Outcome) bool {
	return slices.ContainsFunc(o.Parts, func(p models.Part) bool { return p.Class == models.Accepted })
}

// moved returns which of the recipients of a failed call another provider got next, and the
// first entry that did so. What a user sent again is not moved because of the call.
func moved(failed models.Set, from string, later []models.Entry) (out models.Set, first *models.Entry) {
	for i := range later {
		e := &later[i]
		mine := failed.And(e.Recipients)
		if mine.Empty() || e.Kind == models.Repeat {
			continue
		}
		if e.Kind == models.Attempt && e.Provider != from {
			if out = out.Or(mine); first == nil {
				first = e
			}
		}
		if failed = failed.Minus(mine); failed.Empty() {
			break
		}
	}
	return out, first
}

// steps are the possible lengths of a step.
var steps = []time.Duration{
	250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 5 * time.Minute, 15 * time.Minute,
	time.Hour, 6 * time.Hour, 24 * time.Hour,
}

// stepFor returns the shortest step that divides a span into at most maxSteps.
func stepFor(span time.Duration) time.Duration {
	for _, step := range steps {
		if span/step < maxSteps {
			return step
		}
	}
	return steps[len(steps)-1]
}

// fill sorts calls, which are ordered by their ends, into steps. While a provider is failing,
// the steps go on until now.
func (f *Flow) fill(calls []call, scale float64, now time.Time) {
	if len(calls) == 0 {
		return
	}
	f.From = calls[0].began
	for i := range calls {
		f.From = models.EarlierOf(f.From, calls[i].began)
	}
	last := calls[len(calls)-1].ended
	if slices.ContainsFunc(f.Outages, func(o Outage) bool { return o.Lasts }) {
		last = models.LaterOf(last, now)
	}
	span := last.Sub(f.From)
	f.Step = stepFor(span)
	n := int(span/f.Step) + 1
	providers := map[string]*ProviderFlow{}
	for i := range calls {
		c := &calls[i]
		p := providers[c.provider]
		if p == nil {
			p = &ProviderFlow{Provider: c.provider, Accepted: make([]float64, n), Failed: make([]int64, n)}
			providers[c.provider] = p
		}
		step := min(int(c.ended.Sub(f.From)/f.Step), n-1)
		p.Accepted[step] += float64(c.accepted) * scale / f.Step.Seconds()
		p.Failed[step] += scaled(c.failed.Len(), scale)
	}
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		f.Providers = append(f.Providers, *providers[name])
	}
}

// scaled returns a count of the sample, scaled up to the batch.
func scaled(n int, scale float64) int64 { return int64(float64(n)*scale + .5) }
