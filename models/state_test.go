package models

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		"accepted":          {[]Entry{sg}, []Fact{answer(1, Accepted, 1)}, Sent, "", "sg"},
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
			Failed, ProviderUnavailable, "sg",
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
		"complaint about delivered mail": {
			[]Entry{sg},
			[]Fact{event(1, "sg", Delivered, "", 1), event(1, "sg", Complained, "", 1)},
			Success, "", "sg",
		},
		"an open implies the delivery": {
			[]Entry{sg},
			[]Fact{answer(1, Accepted, 1), event(1, "sg", Opened, "", 1)},
			Success, Implied, "sg",
		},
		"an unsubscribe implies the delivery of unknown mail": {
			[]Entry{sg, ending(2, OutcomeUnknown, 1), {Number: 3, Kind: Release, Recipients: SetOf(1), MayDouble: true}},
			[]Fact{answer(1, Unknown, 1), event(1, "sg", Unsubscribed, "", 1)},
			Success, Implied, "sg",
		},
		"a complaint implies the delivery of accepted mail": {
			[]Entry{sg},
			[]Fact{answer(1, Accepted, 1), event(1, "sg", Complained, "", 1)},
			Success, Implied, "sg",
		},
		"a delivery confirms what a click implied": {
			[]Entry{sg},
			[]Fact{event(1, "sg", Clicked, "", 1), event(1, "sg", Delivered, "", 1)},
			Success, "", "sg",
		},
		"bounce beats an open": {
			[]Entry{sg},
			[]Fact{event(1, "sg", Opened, "", 1), event(1, "sg", Bounced, MailboxInvalid, 1)},
			Failed, MailboxInvalid, "sg",
		},
		"no reroute after a complaint": {
			[]Entry{sg},
			[]Fact{event(1, "sg", Complained, "", 1), event(1, "sg", Blocked, PolicyReputation, 1)},
			Failed, optedOut, "sg",
		},
		"no release after an unsubscribe": {
			[]Entry{sg, ending(2, NoProviderLeft, 1), {Number: 3, Kind: Release, Recipients: SetOf(1), MayDouble: true}},
			[]Fact{event(1, "sg", Unsubscribed, "", 1), event(1, "sg", Blocked, PolicyReputation, 1)},
			Failed, optedOut, "sg",
		},
		"event of another provider": {[]Entry{sg}, []Fact{event(1, "mg", Bounced, MailboxInvalid, 1)}, Queued, "", ""},
		"event of no attempt":       {[]Entry{sg}, []Fact{event(7, "sg", Bounced, MailboxInvalid, 1)}, Queued, "", ""},
		"late event of attempt 1": {
			[]Entry{sg, mg},
			[]Fact{answer(1, Unavailable, 1), answer(2, Accepted, 1), event(1, "sg", Blocked, PolicyReputation, 1)},
			Sent, "", "mg",
		},
		"processed shows that it was accepted": {[]Entry{sg}, []Fact{event(1, "sg", Processed, "", 1)}, Sent, "", "sg"},
		"asked to wait by the receiver": {
			[]Entry{sg},
			[]Fact{answer(1, Accepted, 1), event(1, "sg", Deferred, Greylisted, 1)},
			Sent, "", "sg",
		},
		"unknown outcome": {[]Entry{sg}, []Fact{answer(1, Unknown, 1)}, Queued, "", ""},
		"accepted, and another call has an unknown outcome": {
			[]Entry{sg, mg},
			[]Fact{answer(1, Accepted, 1), answer(2, Unknown, 1)},
			Sent, "", "sg",
		},
		"accepted, then released": {
			[]Entry{sg, ending(2, NoFinalEvent, 1), {Number: 3, Kind: Release, MayDouble: true, Recipients: SetOf(1)}},
			[]Fact{answer(1, Accepted, 1)},
			Queued, "", "",
		},
		"accepted, and the wait for its report is over": {
			[]Entry{sg, ending(2, NoFinalEvent, 1)},
			[]Fact{answer(1, Accepted, 1)},
			Failed, NoFinalEvent, "sg",
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

// Chunks that are being sent are resolved often and concurrently. Without events, their
// logs must share memory.
func TestResolveSharesStatus(t *testing.T) {
	t.Parallel()
	entries := []Entry{{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetTo(1000), At: t0}}
	facts := []Fact{answer(1, Accepted, slices.Collect(SetTo(1000).All())...)}
	v := Resolve(1000, entries, facts)
	tries, standings := map[*Try]bool{}, map[*Result]bool{}
	for r := 1; r <= 1000; r++ {
		tries[v.attempts[0].of(r)] = true
		standings[v.Status(r).Result] = true
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
		f.Outcome.Parts[0].Reason = [...]Reason{StartByPassed, NotComposed}[n%2]
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
