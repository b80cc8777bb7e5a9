package service

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Flow is how a batch was handed over: to whom, when, and what had to go another
// way. It is read from the ledgers of some chunks alone, so that a large batch
// costs what a small one does.
type Flow struct {
	From      time.Time      // of the first step
	Step      time.Duration  // length of a step
	Providers []ProviderFlow // by name
	Troubles  []Trouble      // by time
	Sampled   int            // chunks that were read
	Chunks    int            // chunks of the batch; figures are scaled up to all of them
}

// ProviderFlow is what one provider was handed, in mails per second of each step.
type ProviderFlow struct {
	Provider string
	Taken    []float64 // mails of calls that stayed there
	Refused  []float64 // mails of calls that had to be made again as a whole
}

// Trouble is a time in which a provider took none of the calls made to it.
type Trouble struct {
	Provider string
	From, To time.Time     // of the first and the last such call
	Refused  int64         // mails of these calls
	Moved    int64         // those that were handed to another provider next
	Failover time.Duration // the shortest way from such a call to one elsewhere
	Through  []string      // the providers that they went to
	Because  string        // what the ledger says of the first
	Over     bool          // the provider took a call since
}

// flowSample is how many chunks are read.
const flowSample = 24

// flowSteps is how many steps a flow has at most.
const flowSteps = 90

// handed is one attempt of a chunk.
type handed struct {
	at       time.Time
	provider string
	mails    int64
	next     *models.Entry // the next attempt, if all of the mails needed one
}

// Flow tells how a batch was handed over.
func (s *Service) Flow(ctx context.Context, who Caller, id string) (Flow, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return Flow{}, err
	}
	out := Flow{Chunks: b.Chunks, Sampled: min(b.Chunks, flowSample)}
	var all []handed
	for i := range out.Sampled {
		entries, err := s.store.Ledger(ctx, b.ID.Chunk(i*b.Chunks/out.Sampled))
		if err != nil {
			return Flow{}, storeError("read ledger", err)
		}
		all = append(all, handedOver(entries)...)
	}
	slices.SortStableFunc(all, func(a, b handed) int { return a.at.Compare(b.at) })
	out.fill(all, float64(b.Chunks)/float64(max(1, out.Sampled)))
	return out, nil
}

// handedOver lists the attempts of one ledger.
func handedOver(entries []models.Entry) []handed {
	var out []handed
	for i := range entries {
		e := &entries[i]
		if e.Kind != models.Attempt {
			continue
		}
		h := handed{at: e.At, provider: e.Provider, mails: int64(e.Recipients.Len())}
		left := e.Recipients
		for k := i + 1; k < len(entries) && !left.Empty(); k++ {
			n := &entries[k]
			if n.Kind != models.Attempt || left.And(n.Recipients).Empty() {
				continue
			}
			if left = left.Minus(n.Recipients); h.next == nil {
				h.next = n
			}
		}
		if !left.Empty() {
			h.next = nil // some stayed: the call was taken
		}
		out = append(out, h)
	}
	return out
}

// fill sorts attempts into steps and finds the troubles.
func (f *Flow) fill(all []handed, scale float64) {
	if len(all) == 0 {
		return
	}
	f.From = all[0].at
	span := all[len(all)-1].at.Sub(f.From)
	for _, f.Step = range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
		30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour} {
		if span/f.Step < flowSteps {
			break
		}
	}
	steps := int(span/f.Step) + 1
	providers := map[string]*ProviderFlow{}
	open := map[string]*Trouble{}
	for i := range all {
		h := &all[i]
		a := providers[h.provider]
		if a == nil {
			a = &ProviderFlow{Provider: h.provider, Taken: make([]float64, steps), Refused: make([]float64, steps)}
			providers[h.provider] = a
		}
		step := min(int(h.at.Sub(f.From)/f.Step), steps-1)
		rate := float64(h.mails) * scale / f.Step.Seconds()
		if h.next == nil {
			a.Taken[step] += rate
			if t := open[h.provider]; t != nil && h.at.After(t.To) {
				t.Over = true
				f.Troubles = append(f.Troubles, *t)
				delete(open, h.provider)
			}
			continue
		}
		a.Refused[step] += rate
		t := open[h.provider]
		if t == nil {
			t = &Trouble{Provider: h.provider, From: h.at, Because: h.next.Because}
			open[h.provider] = t
		}
		t.To = h.at
		t.Refused += int64(float64(h.mails) * scale)
		if h.next.Provider == h.provider {
			continue
		}
		if after := h.next.At.Sub(h.at); t.Moved == 0 || after < t.Failover {
			t.Failover = after
		}
		t.Moved += int64(float64(h.mails) * scale)
		if !slices.Contains(t.Through, h.next.Provider) {
			t.Through = append(t.Through, h.next.Provider)
		}
	}
	for _, t := range open {
		f.Troubles = append(f.Troubles, *t)
	}
	slices.SortFunc(
		f.Troubles,
		func(a, b Trouble) int { return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Provider, b.Provider)) },
	)
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		f.Providers = append(f.Providers, *providers[name])
	}
}
