package models

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// randomHistory is a random ledger with random facts.
type randomHistory struct {
	size    int
	entries []Entry
	facts   []Fact
}

var (
	softKinds  = []EventKind{Processed, Deferred}
	engagement = []EventKind{Opened, Clicked, Complained, Unsubscribed}
)

func drawHistory(t *rapid.T) randomHistory {
	h := randomHistory{size: rapid.IntRange(1, 8).Draw(t, "size")}
	providers := []string{"sg", "mg", "ses"}
	who := rapid.Custom(func(t *rapid.T) Set {
		return SetOf(rapid.SliceOfN(rapid.IntRange(1, h.size), 1, h.size).Draw(t, "who")...)
	})
	reasons := []Reason{
		MailboxInvalid,
		MailboxFull,
		PolicyReputation,
		SuppressedComplaint,
		DNSOrConnect,
		BounceUnknown,
		"",
	}
	classes := []Class{
		Accepted,
		RejectedRecipient,
		RejectedRequest,
		RejectedHereClass,
		AccountClass,
		Throttled,
		Unavailable,
		Unknown,
		Split,
	}
	kinds := slices.Concat([]EventKind{Delivered, Bounced, Dropped, Blocked, Rejected}, softKinds, engagement)
	for n := 1; n <= rapid.IntRange(0, 6).Draw(t, "entries"); n++ {
		e := Entry{Number: n, At: t0.Add(time.Duration(n) * time.Minute), Recipients: who.Draw(t, "set"),
			Kind: rapid.SampledFrom([]EntryKind{Attempt, Attempt, Attempt, Ending, Cancel, Release}).Draw(t, "kind")}
		switch e.Kind {
		case Attempt:
			e.Provider = rapid.SampledFrom(providers).Draw(t, "provider")
			if rapid.Bool().Draw(t, "answered") {
				h.facts = append(
					h.facts,
					Fact{Key: OutcomeKey(n), Outcome: &Outcome{Attempt: n, At: e.At.Add(time.Second), Parts: []Part{
						{
							Class:      rapid.SampledFrom(classes).Draw(t, "class"),
							Recipients: who.Draw(t, "part"),
							Final:      rapid.Bool().Draw(t, "final"),
						}}}},
				)
			}
		case Ending:
			e.Reason = NoProviderLeft
		case Cancel, Release:
		}
		h.entries = append(h.entries, e)
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "events") {
		k := rapid.SampledFrom(kinds).Draw(t, "event")
		h.facts = append(h.facts, Fact{Key: fmt.Sprint("e", i), Events: []Event{{
			ID: fmt.Sprint("id", rapid.IntRange(0, 8).Draw(t, "id")), Attempt: rapid.IntRange(1, 7).Draw(t, "attempt"), Kind: k,
			Provider: rapid.SampledFrom(providers).Draw(t, "by"), Recipient: rapid.IntRange(1, h.size).Draw(t, "recipient"),
			Reason: rapid.SampledFrom(
				reasons,
			).Draw(
				t,
				"reason",
			), At: t0.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "at")) * time.Second)}}})
	}
	return h
}

func states(v *View) []State {
	out := make([]State, v.Size)
	for i := range v.Logs {
		out[i] = v.Logs[i].State
	}
	return out
}

func TestAnyOrderAnyRepetition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		want := Resolve(h.size, h.entries, h.facts)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)) //nolint:gosec // a test
		facts, entries := slices.Clone(h.facts), slices.Clone(h.entries)
		for range rapid.IntRange(0, 5).Draw(t, "repeats") {
			if len(facts) > 0 {
				facts = append(facts, facts[rng.IntN(len(facts))])
			}
		}
		rng.Shuffle(len(facts), func(i, k int) { facts[i], facts[k] = facts[k], facts[i] })
		rng.Shuffle(len(entries), func(i, k int) { entries[i], entries[k] = entries[k], entries[i] })
		got := Resolve(h.size, entries, facts)
		require.Equal(t, want.Logs, got.Logs)
		require.Equal(t, want.Summary(), got.Summary())
		require.Equal(t, want.Version, got.Version)
	})
}

func TestSumsAddUpAtEveryStep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		for i := range len(h.entries) + 1 {
			for k := range len(h.facts) + 1 {
				sum := Resolve(h.size, h.entries[:i], h.facts[:k]).Summary()
				require.True(t, sum.Balanced())
				require.EqualValues(t, h.size, sum.Accepted)
				require.GreaterOrEqual(t, sum.Queued, sum.Untried)
			}
		}
	})
}

func TestSoftEventsKeepFinalState(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		before := states(Resolve(h.size, h.entries, h.facts))
		soft := Event{
			ID:       "soft",
			Attempt:  rapid.IntRange(1, 7).Draw(t, "soft attempt"),
			Provider: rapid.SampledFrom([]string{"sg", "mg"}).Draw(t, "soft by"),
			Recipient: rapid.IntRange(
				1,
				h.size,
			).Draw(
				t,
				"soft recipient",
			),
			Kind: rapid.SampledFrom(softKinds).Draw(t, "soft kind"),
			At:   t0,
		}
		after := states(Resolve(h.size, h.entries, append(slices.Clone(h.facts), Fact{Key: "soft", Events: []Event{soft}})))
		for r, s := range before {
			if !s.Open() {
				require.Equal(t, s, after[r])
			}
			require.Equal(t, s.Open(), after[r].Open())
		}
	})
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		v := Resolve(h.size, h.entries, h.facts)
		for r := 1; r <= h.size; r++ {
			delivered := false
			for _, try := range v.Tries(r) {
				bounced, got := false, false
				for _, f := range h.facts {
					for _, e := range f.Events {
						if e.Recipient == r && e.Attempt == try.Attempt && e.Provider == try.Provider {
							bounced = bounced || e.Kind.Failure()
							got = got || e.Kind == Delivered
						}
					}
				}
				if bounced {
					require.Equal(t, VerdictFailed, try.Verdict, "a bounce beats delivered within an attempt")
				} else if got {
					require.Equal(t, VerdictDelivered, try.Verdict)
				}
				delivered = delivered || try.Verdict == VerdictDelivered
				if try.OptedOut {
					require.False(t, v.Status(r).Waiting(), "a recipient who opted out gets no other copy")
				}
			}
			if delivered {
				require.Equal(t, Success, v.Status(r).State, "delivered wins across attempts")
			} else {
				require.NotEqual(t, Success, v.Status(r).State)
			}
		}
	})
}

// Of two answers to one attempt the one that says more counts, whichever is read first.
func TestAnswersOfOneAttempt(t *testing.T) {
	t.Parallel()
	weakest := []Class{Unknown, Unavailable, Accepted, RejectedRecipient}
	for i, strong := range weakest {
		for _, weak := range weakest[:i] {
			for _, sources := range [][2]string{{"a", "b"}, {"b", "a"}} {
				fact := func(source string, c Class) Fact {
					return Fact{Key: source, Outcome: answer(1, c, 1).Outcome}
				}
				v := Resolve(1, []Entry{attempt(1, "sg", 1)}, []Fact{fact(sources[0], strong), fact(sources[1], weak)})
				require.Equal(t, strong, v.Tries(1)[0].Class, "%s and %s of %v", strong, weak, sources)
			}
		}
	}
}

func TestEventCountsForItsAttempt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		n := rapid.IntRange(1, 7).Draw(t, "n")
		kind := rapid.SampledFrom([]EventKind{Delivered, Bounced, Dropped}).Draw(t, "kind")
		r := rapid.IntRange(1, h.size).Draw(t, "r")
		v := Resolve(h.size, h.entries, h.facts)
		w := Resolve(h.size, h.entries, append(
			slices.Clone(h.facts),
			Fact{
				Key: "x",
				Events: []Event{
					{ID: "x", Attempt: n, Provider: v.Entry(n).Provider, Recipient: r, Kind: kind, Reason: MailboxInvalid, At: t0},
				},
			},
		))
		before, after := v.Tries(r), w.Tries(r)
		for i := range before {
			if before[i].Attempt != n {
				require.Equal(t, before[i], after[i], "an event of attempt %d changed attempt %d", n, before[i].Attempt)
			}
		}
	})
}

// Recipients with the same history share a status. The result must be that of each alone.
func TestSharedHistoryResolvesAsSeparate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		together := Resolve(h.size, h.entries, h.facts)
		for r := 1; r <= h.size; r++ {
			entries, facts := onlyOf(r, h)
			alone := Resolve(h.size, entries, facts)
			require.Equal(t, *alone.Status(r).Result, *together.Status(r).Result)
			require.Equal(t, alone.Tries(r), together.Tries(r))
		}
	})
}

// onlyOf returns the part of a history about one recipient.
func onlyOf(r int, h randomHistory) ([]Entry, []Fact) {
	entries := slices.Clone(h.entries)
	for i := range entries {
		entries[i].Recipients = entries[i].Recipients.And(SetOf(r))
	}
	var facts []Fact
	for _, f := range h.facts {
		if f.Outcome != nil {
			o := *f.Outcome
			o.Parts = slices.Clone(o.Parts)
			for i := range o.Parts {
				o.Parts[i].Recipients = o.Parts[i].Recipients.And(SetOf(r))
			}
			f.Outcome = &o
		}
		f.Events = slices.DeleteFunc(slices.Clone(f.Events), func(e Event) bool { return e.Recipient != r })
		facts = append(facts, f)
	}
	return entries, facts
}
