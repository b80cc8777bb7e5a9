package models

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPlainWasAlwaysQueued: if a view is plain, so that nothing of it is published, no log of it had another state when
// fewer entries and facts were known.
func TestPlainWasAlwaysQueued(t *testing.T) {
	t.Parallel()
	plain := 0
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		for i := range h.facts {
			if len(h.facts[i].Events) > 0 && rapid.IntRange(0, 5).Draw(t, "parsed again") == 0 {
				again := h.facts[i].Events[0]
				again.Kind, again.Reason, again.ParseRevision = Processed, "", int64(i+1)
				h.facts = append(h.facts, Fact{Key: ParseRevisionKey(int64(i+1), NewInboxID(t0)), Events: []Event{again}})
			}
		}
		full := Resolve(h.size, h.entries, h.facts)
		view := full.ForFeed()
		if _, pending := (&Published{}).Pending(&view); pending || full.Version == 0 {
			return
		}
		plain++
		var facts []Fact
		for _, f := range h.facts {
			if rapid.Bool().Draw(t, "known") {
				facts = append(facts, f)
			}
		}
		entries := h.entries[:rapid.IntRange(0, len(h.entries)).Draw(t, "entries")]
		for _, s := range append(states(Resolve(h.size, entries, facts)), states(full)...) {
			require.True(t, s.Open())
		}
		require.Empty(t, Resolve(h.size, entries, facts).ForFeed().events)
	})
	require.NotZero(t, plain)
}

// TestPendingLeadsToView: what was published and the pending changes of a view make the view. Numbers have no
// holes, and after that no change is pending.
func TestPendingLeadsToView(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		published := Published{Chunk: NewBatchID(t0)}
		numbers, events := make([]int, h.size+1), make([]int, h.size+1)
		for n := range len(h.entries) + len(h.facts) {
			v := Resolve(h.size, h.entries[:min(n, len(h.entries))], h.facts[:max(0, n-len(h.entries))])
			view := v.ForFeed()
			pending, ok := published.Pending(&view)
			if !ok {
				continue
			}
			for _, c := range pending.Changes {
				n := numbers
				if c.Event != "" {
					n = events
				}
				for r := range c.Recipients.All() {
					n[r]++
					require.Equal(t, n[r], c.Number)
				}
			}
			published.Apply(&FeedEntry{Number: n + 1, Chunks: []FeedChunk{pending}})
			require.Equal(t, !slices.ContainsFunc(states(v), State.Open), published.Ended)
			before := published
			published.Apply(&FeedEntry{Number: n + 1, Chunks: []FeedChunk{{}}})
			require.Equal(t, before, published, "an entry counts once")
			for r := 1; r <= h.size; r++ {
				now := FeedChange{State: Queued}
				for _, c := range published.Changes {
					if c.Recipients.Has(r) {
						now = c
					}
				}
				s := v.Status(r)
				if s.State.Open() {
					require.Equal(t, Queued, now.State)
					continue
				}
				require.True(t, now.same(&FeedChange{State: s.State, Reason: s.Reason, Provider: s.Provider}))
			}
			_, ok = published.Pending(&view)
			require.False(t, ok)
		}
	})
}
