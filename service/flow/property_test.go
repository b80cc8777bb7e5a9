package flow

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// played is a call of a scripted history, of the batch or of other mail.
type played struct {
	provider     string
	began, ended time.Time
	fails        bool
	mine         bool
	chunk        int
	who          models.Set
	moved        models.Set // to another provider, because the call failed
	movedAt      time.Time
}

// history is what happened to the mail of a batch, and to other mail.
type history struct {
	calls    []*played
	chunks   []script
	accepted map[string]int64
}

var fatal = []models.Class{models.Unavailable, models.Unknown, models.Throttled, models.AccountClass}

// play invents a history: providers go down and come back, calls overlap, refused mail is
// rerouted or retried, accepted mail bounces and goes elsewhere, and users retry.
func play(r *rand.Rand) *history {
	h := &history{chunks: make([]script, 1+r.IntN(3)), accepted: map[string]int64{}}
	down := map[string][2]int{
		"sg": {r.IntN(20_000), r.IntN(20_000)},
		"mg": {r.IntN(60_000), 1 + r.IntN(5_000)},
	}
	fails := func(provider string, ms int) bool {
		d := down[provider]
		return ms >= d[0] && ms < d[0]+d[1] || r.IntN(40) == 0
	}
	next := make([]int, len(h.chunks)) // recipients of each chunk that were called so far
	for ms := 0; ms < 30_000; ms += 1 + r.IntN(700) {
		chunk := r.IntN(len(h.chunks))
		n := 1 + r.IntN(5)
		if next[chunk]+n > 1000 {
			continue
		}
		var who models.Set
		for range n {
			next[chunk]++
			who.Add(next[chunk])
		}
		h.send(r, chunk, who, ms, []string{"sg", "mg"}[r.IntN(2)], fails, 0)
	}
	for i := range h.chunks {
		e := h.chunks[i].Entries
		slices.SortStableFunc(e, func(a, b models.Entry) int { return a.At.Compare(b.At) })
		numbers := map[int]int{}
		for k := range e {
			numbers[e[k].Number], e[k].Number = k+1, k+1
		}
		for k := range h.chunks[i].Outcomes {
			o := &h.chunks[i].Outcomes[k]
			o.Attempt = numbers[o.Attempt]
		}
	}
	return h
}

// send plays a call and what comes of it.
func (h *history) send(
	r *rand.Rand, chunk int, who models.Set, ms int, provider string, fails func(string, int) bool, depth int,
) {
	s, takes := &h.chunks[chunk], 1+r.IntN(900)
	c := &played{
		provider: provider,
		began:    at(ms),
		ended:    at(ms + takes).Add(time.Duration(len(h.calls)) * time.Microsecond), // no two at once
		fails:    fails(provider, ms+takes/2),
		mine:     r.IntN(4) > 0,
		chunk:    chunk,
		who:      who,
	}
	h.calls = append(h.calls, c)
	if !c.mine {
		return // mail of another batch
	}
	class := models.Accepted
	if c.fails {
		class = fatal[r.IntN(len(fatal))]
	} else {
		h.accepted[provider] += int64(who.Len())
	}
	n := s.entry(models.Attempt, c.began, provider, who)
	s.answer(n, c.ended, models.Part{Class: class, Recipients: who, Text: c.began.String()})
	later := ms + takes + 1 + r.IntN(2000)
	other := map[string]string{"sg": "mg", "mg": "sg"}[provider]
	switch {
	case depth == 3:
	case c.fails && r.IntN(4) == 0: // the same provider again
		h.send(r, chunk, who, later, provider, fails, depth+1)
	case c.fails && r.IntN(4) == 0: // nothing is left; a user sends it again
		s.entry(models.Ending, at(later), "", who)
		s.entry(models.Release, at(later+1), "", who)
		h.send(r, chunk, who, later+2, other, fails, depth+1)
	case c.fails:
		before := len(s.Entries)
		h.send(r, chunk, who, later, other, fails, depth+1)
		if len(s.Entries) > before {
			c.moved, c.movedAt = who, at(later)
		}
	case r.IntN(5) == 0: // it bounces, and goes elsewhere
		h.send(r, chunk, who, later, other, fails, depth+1)
	}
}

// health is what a worker that made all calls reports of a provider.
func (h *history) health(provider string) (out []Health) {
	var now telemetry.FailedCalls
	var recovered time.Time
	for _, c := range h.byEnd(provider) {
		switch {
		case c.fails && now.Calls == 0 && c.began.Before(recovered):
		case c.fails:
			if now.Calls++; now.Calls == 1 {
				now.From, now.Known = c.began, c.ended
			}
			now.From, now.Last = models.EarlierOf(now.From, c.began), c.ended
		case now.Calls > 0 && !c.began.Before(now.Known):
			now.To = c.ended
			out = append(out, Health{now, true})
			now, recovered = telemetry.FailedCalls{}, c.ended
		}
	}
	if now.Calls > 0 {
		out = append(out, Health{now, true})
	}
	return out
}

// byEnd returns the calls to a provider by their ends.
func (h *history) byEnd(provider string) []*played {
	var out []*played
	for _, c := range h.calls {
		if c.provider == provider {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b *played) int { return a.ended.Compare(b.ended) })
	return out
}

// TestEveryStatementIsTrue holds all that a flow states against scripted histories.
func TestEveryStatementIsTrue(t *testing.T) {
	t.Parallel()
	outages := 0
	for seed := range uint64(300) {
		h := play(rand.New(rand.NewPCG(seed, 1))) //nolint:gosec // a script
		records := make([]Record, len(h.chunks))
		for i := range h.chunks {
			records[i] = h.chunks[i].Record
		}
		health := map[string][]Health{"sg": h.health("sg"), "mg": h.health("mg")}
		f := Of(len(records), records, health, at(200_000))
		for _, p := range f.Providers {
			sum := 0.0
			for _, rate := range p.Accepted {
				sum += rate * f.Step.Seconds()
			}
			require.InDelta(t, h.accepted[p.Provider], sum, .01, "seed %d: accepted by %s", seed, p.Provider)
		}
		for _, provider := range []string{"sg", "mg"} {
			h.checkOutages(t, provider, f.Outages)
		}
		outages += len(f.Outages)
	}
	require.Greater(t, outages, 500, "the histories have outages")
}

// checkOutages checks the outages of a provider against its calls.
func (h *history) checkOutages(t *testing.T, provider string, all []Outage) {
	t.Helper()
	calls := h.byEnd(provider)
	within := map[*played]int{}
	for i := range all {
		o := &all[i]
		if o.Provider != provider {
			continue
		}
		var failed []*played
		first := (*played)(nil) // the failure that was known first
		for _, c := range calls {
			if !c.fails || c.began.Before(o.From) || o.Over && !c.began.Before(o.To) {
				continue
			}
			if first == nil {
				first = c
			}
			if failed = append(failed, c); c.mine {
				within[c]++
			}
		}
		require.NotNil(t, first)
		require.True(
			t,
			slices.ContainsFunc(failed, func(c *played) bool { return c.began.Equal(o.From) }),
			"it begins with a call",
		)
		for _, c := range calls {
			success := !c.fails && !c.began.Before(first.ended)
			require.False(t, success && c.ended.Before(o.To), "a call succeeded before the end")
			require.False(t, success && o.Lasts, "a call succeeded although it lasts")
		}
		require.Equal(t, o.Over, slices.ContainsFunc(calls, func(c *played) bool {
			return !c.fails && !c.began.Before(first.ended) && c.ended.Equal(o.To)
		}), "it is over if a call succeeded at its end")
		require.NotEqual(t, o.Over, o.Lasts)
		h.checkCounts(t, o, failed)
	}
	for _, c := range calls {
		if c.mine && c.fails {
			require.Equal(t, 1, within[c], "each failed call is in one outage")
		}
	}
}

// checkCounts checks what an outage says of the mail of its failed calls.
func (h *history) checkCounts(t *testing.T, o *Outage, failed []*played) {
	t.Helper()
	lost, moved := map[int]models.Set{}, map[int]models.Set{}
	var began, next time.Time
	for _, c := range failed {
		if !c.mine {
			continue
		}
		if began.IsZero() || c.began.Before(began) {
			began = c.began
		}
		lost[c.chunk] = lost[c.chunk].Or(c.who)
		if moved[c.chunk] = moved[c.chunk].Or(c.moved); !c.moved.Empty() && (next.IsZero() || c.movedAt.Before(next)) {
			next = c.movedAt
		}
	}
	require.EqualValues(t, sum(lost), o.Failed)
	require.EqualValues(t, sum(moved), o.Rerouted)
	if o.Rerouted > 0 {
		require.Equal(t, next.Sub(began), o.Failover)
		require.NotContains(t, o.Through, o.Provider)
	} else {
		require.Empty(t, o.Through)
	}
	require.True(t, slices.ContainsFunc(failed, func(c *played) bool { return c.mine && c.began.String() == o.Why }))
}
