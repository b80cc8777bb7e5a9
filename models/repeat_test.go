package models

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRepeatSettles: what the answers to a call and to its repeats say of the attempt, in any order.
func TestRepeatSettles(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	attempt := Entry{Number: 1, Kind: Attempt, Provider: "a", Recipients: SetTo(2), At: at, CallEnds: at.Add(time.Minute)}
	again := func(n int) Entry {
		return Entry{Number: n, Kind: Repeat, Repeats: 1, Provider: "a", Recipients: SetTo(2),
			At: at.Add(time.Duration(n) * time.Minute), CallEnds: at.Add(time.Duration(n+1) * time.Minute)}
	}
	given := again(2)
	given.Reason, given.CallEnds = Suppressed, time.Time{}
	answer := func(entry int, class Class) Fact {
		return Fact{Key: OutcomeKey(entry), Outcome: &Outcome{Attempt: 1, At: at,
			Parts: []Part{{Class: class, Recipients: SetTo(2)}}}}
	}
	notCalled := answer(1, Unavailable)
	notCalled.Outcome.Parts[0].Reason = StartByPassed
	for name, c := range map[string]struct {
		entries []Entry
		facts   []Fact
		want    Verdict
	}{
		"no answer at all":                {[]Entry{attempt, again(2)}, nil, VerdictPending},
		"accepted by the repeat":          {[]Entry{attempt, again(2)}, []Fact{answer(1, Unknown), answer(2, Accepted)}, VerdictAccepted},
		"accepted by the first":           {[]Entry{attempt, again(2)}, []Fact{answer(1, Accepted), answer(2, Unknown)}, VerdictAccepted},
		"refused by the repeat":           {[]Entry{attempt, again(2)}, []Fact{answer(1, Unknown), answer(2, RejectedRequest)}, VerdictRefused},
		"a late refusal of the first":     {[]Entry{attempt, again(2)}, []Fact{answer(1, Unavailable), answer(2, Unknown)}, VerdictUnknown},
		"no first call, known too late":   {[]Entry{attempt, again(2)}, []Fact{notCalled}, VerdictPending},
		"no first call, and no repeat":    {[]Entry{attempt, given}, []Fact{notCalled}, VerdictRefused},
		"a refusal before another repeat": {[]Entry{attempt, again(2), again(3)}, []Fact{answer(2, RejectedRequest)}, VerdictPending},
	} {
		for _, facts := range [][]Fact{c.facts, reversed(c.facts)} {
			v := Resolve(2, c.entries, facts)
			require.Equal(t, c.want, v.Status(1).Last.Verdict, name)
			require.Equal(t, 1, v.Status(2).Attempts, name)
			require.Zero(t, v.Status(2).Retries, name)
		}
	}
	v := Resolve(2, []Entry{attempt, again(2)}, []Fact{answer(1, Unknown)})
	require.Equal(t, at.Add(3*time.Minute), v.CallEnded(&v.Status(1).Last))
	timeline := v.Timeline(NewBatchID(at).Log(1), []Fact{answer(1, Unknown), answer(2, Accepted)})
	var what []string
	for _, m := range timeline {
		what = append(what, m.What)
	}
	require.ElementsMatch(t, []string{"accepted", "attempt", "answer", "repeat", "answer"}, what)
}

func reversed(facts []Fact) (out []Fact) {
	for i := len(facts) - 1; i >= 0; i-- {
		out = append(out, facts[i])
	}
	return out
}

// TestRepeatable: a call may be repeated until something else is decided about one of its recipients.
func TestRepeatable(t *testing.T) {
	t.Parallel()
	attempt := Entry{Number: 1, Kind: Attempt, Provider: "a", Recipients: SetTo(3)}
	again := Entry{Number: 2, Kind: Repeat, Repeats: 1, Provider: "a", Recipients: SetTo(3)}
	for name, c := range map[string]struct {
		then    []Entry
		repeats int
		ok      bool
	}{
		"nothing":           {nil, 0, true},
		"a repeat":          {[]Entry{again}, 1, true},
		"others":            {[]Entry{{Number: 2, Kind: Attempt, Recipients: SetOf(4)}}, 0, true},
		"another attempt":   {[]Entry{again, {Number: 3, Kind: Attempt, Recipients: SetOf(3)}}, 1, false},
		"an ending":         {[]Entry{{Number: 2, Kind: Ending, Recipients: SetOf(1)}}, 0, false},
		"a cancellation":    {[]Entry{{Number: 2, Kind: Cancel, Recipients: SetOf(1)}}, 0, false},
		"a repeat given up": {[]Entry{{Number: 2, Kind: Repeat, Repeats: 1, Recipients: SetTo(3), Reason: Erased}}, 0, false},
	} {
		repeats, ok := Resolve(4, append([]Entry{attempt}, c.then...), nil).Repeatable(1)
		require.Equal(t, c.ok, ok, name)
		require.Equal(t, c.repeats, repeats, name)
	}
	_, ok := Resolve(4, []Entry{attempt, again}, nil).Repeatable(2)
	require.False(t, ok, "no attempt")
}

// TestRepeatHidesNothing: a call is not repeated if another provider has the mail of a recipient: it could arrive
// twice. Nor is it if its answer refused a recipient, whose log has ended.
func TestRepeatHidesNothing(t *testing.T) {
	t.Parallel()
	before := Entry{Number: 1, Kind: Attempt, Provider: "b", Recipients: SetOf(1)}
	attempt := Entry{Number: 2, Kind: Attempt, Provider: "a", Recipients: SetTo(2)}
	refused := Fact{Key: OutcomeKey(1), Outcome: &Outcome{Attempt: 1,
		Parts: []Part{{Class: Unavailable, Recipients: SetOf(1)}}}}
	event := func(kind EventKind, attempt int, provider string) Fact {
		return Fact{Key: "e", Events: []Event{{ID: "1", Kind: kind, Attempt: attempt, Provider: provider, Recipient: 1}}}
	}
	answer := func(class Class) Fact {
		return Fact{Key: OutcomeKey(2), Outcome: &Outcome{Attempt: 2, Parts: []Part{
			{Class: class, Recipients: SetOf(1)}, {Class: Unknown, Recipients: SetOf(2)}}}}
	}
	for name, c := range map[string]struct {
		then Fact
		ok   bool
	}{
		"nothing is known":                 {answer(Unknown), true},
		"an event of its own provider":     {event(Delivered, 2, "a"), true},
		"the provider before has the mail": {event(Processed, 1, "b"), false},
		"the provider before delivered it": {event(Delivered, 1, "b"), false},
		"one recipient was refused":        {answer(RejectedRecipient), false},
		"one recipient was accepted":       {answer(Accepted), true},
	} {
		_, ok := Resolve(2, []Entry{before, attempt}, []Fact{refused, c.then}).Repeatable(2)
		require.Equal(t, c.ok, ok, name)
	}
}
