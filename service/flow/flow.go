// Package flow derives from the ledgers of a batch how its mail was handed over to the
// providers.
package flow

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Flow tells which provider a batch was handed over to at which time, and which
// providers refused it. It is computed from a sample of chunks, so that it costs the same
// for a batch of any size.
type Flow struct {
	From      time.Time      // start of the first step
	Step      time.Duration  // length of a step
	Providers []ProviderFlow // by name
	Troubles  []Trouble      // by time
	Sampled   int            // number of chunks read
	Chunks    int            // number of chunks of the batch; counts are scaled up to it
}

// ProviderFlow holds the mails per second that one provider got in each step.
type ProviderFlow struct {
	Provider string
	Taken    []float64 // of calls that accepted mail
	Refused  []float64 // of calls whose mail all had to be sent again
}

// Trouble is a period in which a provider refused all calls.
type Trouble struct {
	Provider string
	From, To time.Time     // of the first and the last refused call
	Refused  int64         // mails of these calls
	Moved    int64         // mails that another provider got next
	Failover time.Duration // shortest time from a refused call to the next call at another provider
	Through  []string      // the other providers
	Because  string        // the reason in the ledger after the first refused call
	Over     bool          // whether the provider has accepted a call since
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

// Of returns the flow of a batch with a number of chunks, from the ledgers of a sample.
func Of(chunks int, ledgers [][]models.Entry) Flow {
	f := Flow{Chunks: chunks, Sampled: len(ledgers)}
	var all []call
	for _, entries := range ledgers {
		all = append(all, callsOf(entries)...)
	}
	slices.SortStableFunc(all, func(a, b call) int { return a.at.Compare(b.at) })
	f.fill(all, float64(chunks)/float64(max(1, len(ledgers))))
	return f
}

// call is one attempt in a ledger.
type call struct {
	at       time.Time
	provider string
	mails    int64
	next     *models.Entry // the next attempt if all mails of the call needed one; otherwise nil
}

// callsOf returns the attempts of one ledger.
func callsOf(entries []models.Entry) []call {
	var out []call
	for i := range entries {
		e := &entries[i]
		if e.Kind != models.Attempt {
			continue
		}
		c := call{at: e.At, provider: e.Provider, mails: int64(e.Recipients.Len())}
		left := e.Recipients
		for k := i + 1; k < len(entries) && !left.Empty(); k++ {
			n := &entries[k]
			if n.Kind != models.Attempt || left.And(n.Recipients).Empty() {
				continue
			}
			if left = left.Minus(n.Recipients); c.next == nil {
				c.next = n
			}
		}
		if !left.Empty() {
			c.next = nil // the provider accepted some mails
		}
		out = append(out, c)
	}
	return out
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

// fill sorts calls, which are ordered by time, into steps and finds the troubles.
func (f *Flow) fill(calls []call, scale float64) {
	if len(calls) == 0 {
		return
	}
	f.From = calls[0].at
	span := calls[len(calls)-1].at.Sub(f.From)
	f.Step = stepFor(span)
	n := int(span/f.Step) + 1
	providers := map[string]*ProviderFlow{}
	open := map[string]*Trouble{}
	for i := range calls {
		c := &calls[i]
		p := providers[c.provider]
		if p == nil {
			p = &ProviderFlow{Provider: c.provider, Taken: make([]float64, n), Refused: make([]float64, n)}
			providers[c.provider] = p
		}
		step := min(int(c.at.Sub(f.From)/f.Step), n-1)
		rate := float64(c.mails) * scale / f.Step.Seconds()
		if c.next != nil {
			p.Refused[step] += rate
			if open[c.provider] == nil {
				open[c.provider] = &Trouble{Provider: c.provider, From: c.at, Because: c.next.Because}
			}
			open[c.provider].add(c, scale)
			continue
		}
		p.Taken[step] += rate
		if t := open[c.provider]; t != nil && c.at.After(t.To) {
			t.Over = true
			f.Troubles = append(f.Troubles, *t)
			delete(open, c.provider)
		}
	}
	for _, t := range open {
		f.Troubles = append(f.Troubles, *t)
	}
	slices.SortFunc(f.Troubles, func(a, b Trouble) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Provider, b.Provider))
	})
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		f.Providers = append(f.Providers, *providers[name])
	}
}

// add adds a refused call.
func (t *Trouble) add(c *call, scale float64) {
	mails := int64(float64(c.mails) * scale)
	t.To = c.at
	t.Refused += mails
	if c.next.Provider == c.provider {
		return
	}
	if after := c.next.At.Sub(c.at); t.Moved == 0 || after < t.Failover {
		t.Failover = after
	}
	t.Moved += mails
	if !slices.Contains(t.Through, c.next.Provider) {
		t.Through = append(t.Through, c.next.Provider)
	}
}
