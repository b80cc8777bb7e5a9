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

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func attempt(n int, provider string, who ...int) Entry {
	return Entry{
		Number:     n,
		Kind:       Attempt,
		Provider:   provider,
		Recipients: SetOf(who...),
		At:         t0.Add(time.Duration(n) * time.Second),
	}
}

func answer(n int, class Class, who ...int) Fact {
	return Fact{
		Key: OutcomeKey(n),
		Outcome: &Outcome{Attempt: n, At: t0.Add(time.Duration(n)*time.Second + 500*time.Millisecond),
			Parts: []Part{{Class: class, Recipients: SetOf(who...)}}},
	}
}

func event(n int, provider string, kind EventKind, reason Reason, r int) Fact {
	e := Event{
		ID:        fmt.Sprint(n, provider, kind, reason, r),
		Attempt:   n,
		Provider:  provider,
		Kind:      kind,
		Reason:    reason,
		Recipient: r,
		At:        t0.Add(time.Minute),
	}
	return Fact{Key: "e" + e.ID, Events: []Event{e}}
}

func ending(n int, reason Reason, who ...int) Entry {
	return Entry{
		Number:     n,
		Kind:       Ending,
		Reason:     reason,
		Recipients: SetOf(who...),
		At:         t0.Add(time.Duration(n) * time.Second),
	}
}

func TestStateOfRecipient(t *testing.T) {
	t.Parallel()
	sg, mg := attempt(1, "sg", 1), attempt(2, "mg", 1)
	for name, c := range map[string]struct {
		entries  []Entry
		facts    []Fact
		state    State
		reason   Reason
		provider string
	}{
		"nothing yet":       {nil, nil, Queued, "", ""},
		"called, no answer": {[]Entry{sg}, nil, Queued, "", ""},
		"accepted":          {[]Entry{sg}, []Fact{answer(1, Accepted, 1)}, Queued, "", ""},
		"delivered": {
			[]Entry{sg},
			[]Fact{answer(1, Accepted, 1), event(1, "sg", Delivered, "", 1)},
			Success, "", "sg",
		},
		"delivered before the answer": {[]Entry{sg}, []Fact{event(1, "sg", Delivered, "", 1)}, Success, "", "sg"},
		"refused, not ended":          {[]Entry{sg}, []Fact{answer(1, Unavailable, 1)}, Queued, "", ""},
		"refused, ended": {
			[]Entry{sg, ending(2, NoProviderLeft, 1)},
			[]Fact{answer(1, Unavailable, 1)},
			Failed, NoProviderLeft, "sg",
		},
		"hard refusal needs no ending": {[]Entry{sg}, []Fact{answer(1, RejectedRecipient, 1)}, Failed, MailboxInvalid, "sg"},
		"hard bounce needs no ending": {
			[]Entry{sg},
			[]Fact{answer(1, Accepted, 1), event(1, "sg", Bounced, MailboxInvalid, 1)},
			Failed, MailboxInvalid, "sg",
		},
		"soft bounce waits": {
			[]Entry{sg},
			[]Fact{answer(1, Accepted, 1), event(1, "sg", Blocked, PolicyReputation, 1)},
			Queued, "", "",
		},
		"bounce beats delivered": {
			[]Entry{sg},
			[]Fact{event(1, "sg", Delivered, "", 1), event(1, "sg", Bounced, MailboxInvalid, 1)},
			Failed, MailboxInvalid, "sg",
		},
		"delivered elsewhere wins": {
			[]Entry{sg, mg},
			[]Fact{event(1, "sg", Bounced, MailboxInvalid, 1), event(2, "mg", Delivered, "", 1)},
			Success, "", "mg",
		},
		"late delivery after an ending": {
			[]Entry{sg, ending(2, OutcomeUnknown, 1)},
			[]Fact{event(1, "sg", Delivered, "", 1)},
			Success, "", "sg",
		},
		"late deferral after an ending": {
			[]Entry{sg, ending(2, OutcomeUnknown, 1)},
			[]Fact{event(1, "sg", Deferred, Greylisted, 1)},
			Failed, OutcomeUnknown, "sg",
		},
		"complaint changes nothing": {
			[]Entry{sg},
			[]Fact{event(1, "sg", Delivered, "", 1), event(1, "sg", Complained, "", 1)},
			Success, "", "sg",
		},
		"open changes nothing": {
			[]Entry{sg},
			[]Fact{answer(1, Accepted, 1), event(1, "sg", Opened, "", 1)},
			Queued, "", "",
		},
		"event of another provider": {[]Entry{sg}, []Fact{event(1, "mg", Bounced, MailboxInvalid, 1)}, Queued, "", ""},
		"event of no attempt":       {[]Entry{sg}, []Fact{event(7, "sg", Bounced, MailboxInvalid, 1)}, Queued, "", ""},
		"late event of attempt 1": {
			[]Entry{sg, mg},
			[]Fact{answer(1, Unavailable, 1), answer(2, Accepted, 1), event(1, "sg", Blocked, PolicyReputation, 1)},
			Queued, "", "",
		},
		"split says nothing of one": {
			[]Entry{sg},
			[]Fact{{Key: "o1", Outcome: &Outcome{
				Attempt: 1,
				At:      t0,
				Parts:   []Part{{Class: Split, Reason: MailboxInvalid, Recipients: SetOf(1)}},
			}}},
			Queued, "", "",
		},
		"cancelled": {
			[]Entry{{Number: 1, Kind: Cancel, Recipients: SetOf(1)}},
			nil,
			Cancelled, CancelledByRq, "",
		},
		"released after an ending": {
			[]Entry{sg, ending(2, OutcomeUnknown, 1), {Number: 3, Kind: Release, Recipients: SetOf(1)}},
			nil,
			Queued, "", "",
		},
		"expired before any attempt": {[]Entry{ending(1, Expired, 1)}, nil, Failed, Expired, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := Resolve(1, c.entries, c.facts)
			s := v.Status(1)
			require.Equal(t, c.state, s.State)
			require.Equal(t, c.reason, s.Reason)
			require.Equal(t, c.provider, s.Provider)
			sum := v.Summary()
			require.True(t, sum.Balanced())
			require.Len(t, v.Timeline(NewBatchID(t0).Log(1), c.facts)[0:1], 1)
		})
	}
}

func TestUnconfirmed(t *testing.T) {
	t.Parallel()
	f := answer(1, Accepted, 1)
	f.Outcome.Parts[0].Final = true
	v := Resolve(1, []Entry{attempt(1, "lap", 1)}, []Fact{f})
	require.Equal(t, Success, v.Status(1).State)
	require.Equal(t, Unconfirmed, v.Status(1).Reason)
	require.EqualValues(t, 1, v.Summary().Unconfirmed)
}

func TestDoubledIsCounted(t *testing.T) {
	t.Parallel()
	again := attempt(2, "mg", 1)
	again.MayDouble = true
	v := Resolve(
		1,
		[]Entry{attempt(1, "sg", 1), again},
		[]Fact{event(1, "sg", Delivered, "", 1), event(2, "mg", Delivered, "", 1)},
	)
	require.Equal(t, 2, v.Status(1).Copies)
	require.True(t, v.Status(1).MayDouble)
	require.EqualValues(t, 1, v.Summary().Doubled)
}

// history is a random ledger with random facts.
type randomHistory struct {
	size    int
	entries []Entry
	facts   []Fact
}

var softKinds = []EventKind{Processed, Deferred, Opened, Clicked, Complained, Unsubscribed}

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
	kinds := append([]EventKind{Delivered, Bounced, Dropped, Blocked, Rejected}, softKinds...)
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
		require.Equal(t, before, after)
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
			}
			if delivered {
				require.Equal(t, Success, v.Status(r).State, "delivered wins across attempts")
			} else {
				require.NotEqual(t, Success, v.Status(r).State)
			}
		}
	})
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
			require.Equal(t, *alone.Status(r).Standing, *together.Status(r).Standing)
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

// Chunks that are being sent are resolved often and concurrently. Without events, their
// logs must share memory.
func TestResolveSharesStatus(t *testing.T) {
	t.Parallel()
	entries := []Entry{{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetTo(1000), At: t0}}
	facts := []Fact{answer(1, Accepted, slices.Collect(SetTo(1000).All())...)}
	v := Resolve(1000, entries, facts)
	tries, standings := map[*Try]bool{}, map[*Standing]bool{}
	for r := 1; r <= 1000; r++ {
		tries[v.attempts[0].of(r)] = true
		standings[v.Status(r).Standing] = true
	}
	require.Len(t, tries, 1)
	require.Len(t, standings, 1)
}

func BenchmarkResolveWithoutEvents(b *testing.B) {
	e := []Entry{{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetTo(1000), At: t0}}
	facts := []Fact{
		{
			Key:     OutcomeKey(1),
			Outcome: &Outcome{Attempt: 1, At: t0, Parts: []Part{{Class: Accepted, Recipients: SetTo(1000)}}},
		},
	}
	b.ReportAllocs()
	for b.Loop() {
		if v := Resolve(1000, e, facts); v.Size != 1000 {
			b.Fatal(v.Size)
		}
	}
}

func BenchmarkResolve1000(b *testing.B) {
	e := []Entry{{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetTo(1000), At: t0}}
	facts := []Fact{
		{
			Key:     OutcomeKey(1),
			Outcome: &Outcome{Attempt: 1, At: t0, Parts: []Part{{Class: Accepted, Recipients: SetTo(1000)}}},
		},
	}
	for r := 1; r <= 1000; r++ {
		facts = append(facts, event(1, "sg", Delivered, "", r))
	}
	b.ReportAllocs()
	for b.Loop() {
		v := Resolve(1000, e, facts)
		if s := v.Summary(); s.Success != 1000 {
			b.Fatal(s)
		}
	}
}

// TestNewestParseRevisionCounts checks that the highest parse revision of an event counts,
// in any order of the facts.
func TestNewestParseRevisionCounts(t *testing.T) {
	t.Parallel()
	entries := []Entry{{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetTo(1)}}
	read := func(reading int64, kind EventKind) Fact {
		e := Event{ID: "x", Recipient: 1, Attempt: 1, Provider: "sg", Kind: kind, ParseRevision: reading}
		if kind.Failure() {
			e.Reason = MailboxInvalid
		}
		return Fact{Key: ParseRevisionKey(reading, ID{}), Events: []Event{e}}
	}
	a, b, c := read(0, Delivered), read(5, Bounced), read(9, Delivered)
	for _, facts := range [][]Fact{{a, b}, {b, a}, {b, a, b, a}} {
		if s := Resolve(1, entries, facts).Status(1); s.State != Failed || s.Reason != MailboxInvalid {
			t.Errorf("%+v", s)
		}
	}
	for _, facts := range [][]Fact{{a, b, c}, {c, b, a}, {b, c}} {
		if s := Resolve(1, entries, facts).Status(1); s.State != Success {
			t.Errorf("%+v", s)
		}
	}
}

// An attempt without a call does not count as a retry, unless there are many.
func TestAttemptWithoutCallIsNoRetry(t *testing.T) {
	t.Parallel()
	uncalled := func(n int) Fact {
		f := answer(n, Unavailable, 1)
		f.Outcome.Parts[0].Reason = StartByPassed
		return f
	}
	var entries []Entry
	var facts []Fact
	for n := 1; n <= uncalledFree+3; n++ {
		entries, facts = append(entries, attempt(n, "sg", 1)), append(facts, uncalled(n))
		want := max(0, n-uncalledFree-1)
		require.Equal(t, want, Resolve(1, entries, facts).Status(1).Retries, n)
	}
	entries, facts = []Entry{
		attempt(1, "sg", 1),
		attempt(2, "sg", 1),
		attempt(3, "mg", 1),
	}, []Fact{
		uncalled(1),
		answer(2, Unavailable, 1),
	}
	require.Equal(t, 1, Resolve(1, entries, facts).Status(1).Retries, "the second call is the first retry")
}
