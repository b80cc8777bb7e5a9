package models

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An event that is repeated in another webhook must be one event, in Events and in the
// timeline.
func TestRepeatedEventCountsOnce(t *testing.T) {
	t.Parallel()
	log := NewBatchID(t0).Log(1)
	sg := Entry{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetOf(1), At: t0}
	delivered := Event{ID: "e1", Attempt: 1, Provider: "sg", Recipient: 1, Kind: Delivered, At: t0.Add(time.Second)}
	opened := Event{ID: "e2", Attempt: 1, Provider: "sg", Recipient: 1, Kind: Opened, At: t0.Add(time.Minute)}
	facts := []Fact{
		{
			Key:    "post one",
			Events: []Event{delivered},
		}, {Key: "post two", Events: []Event{opened, delivered}}, {Key: "post three", Events: []Event{delivered, delivered}},
	}
	require.Len(t, Events(facts), 2)
	var got []EventKind
	for _, m := range Resolve(1, []Entry{sg}, facts).Timeline(log, facts) {
		if m.What == "event" {
			got = append(got, m.Event)
		}
	}
	require.Equal(t, []EventKind{Delivered, Opened}, got)
}

// TestEventUnderTwoIDs: SendGrid may repeat an event under another ID. It is one event. Two
// bounces with different texts are two.
func TestEventUnderTwoIDs(t *testing.T) {
	t.Parallel()
	event := func(id string, kind EventKind, text string) Event {
		return Event{ID: id, Attempt: 1, Provider: "sg", Recipient: 1, Kind: kind, At: t0, Text: text}
	}
	facts := []Fact{
		{Key: "1", Events: []Event{event("a", Opened, ""), event("b", Delivered, "250"), event("c", Opened, "")}},
		{Key: "2", Events: []Event{event("d", Delivered, "250"), event("e", Bounced, "x"), event("f", Bounced, "y")}},
		{Key: "3", Events: []Event{event("e", Bounced, "x"), event("g", Bounced, "x")}},
	}
	var got []string
	for _, e := range Events(facts) {
		got = append(got, e.ID)
	}
	require.ElementsMatch(t, []string{"a", "b", "e", "f"}, got)
}

// TestWholeSecondsAreInOrder: events whose times are whole seconds come behind the answer of the
// same second, in the order in which they can happen.
func TestWholeSecondsAreInOrder(t *testing.T) {
	t.Parallel()
	log := NewBatchID(t0).Log(1)
	second := t0.Truncate(time.Second).Add(time.Minute)
	sg := Entry{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetOf(1), At: second.Add(200 * time.Millisecond)}
	answer := Outcome{Attempt: 1, At: second.Add(700 * time.Millisecond),
		Parts: []Part{{Class: Accepted, Recipients: SetOf(1)}}}
	facts := []Fact{{Key: "o1", Outcome: &answer}}
	for i, kind := range []EventKind{Complained, Clicked, Opened, Bounced, Delivered, Deferred, Processed} {
		ev := Event{ID: string(rune('a' + i)), Attempt: 1, Provider: "sg", Recipient: 1, Kind: kind, At: second}
		facts = append(facts, Fact{Key: "e" + ev.ID, Events: []Event{ev}})
	}
	late := Event{ID: "z", Attempt: 1, Provider: "sg", Recipient: 1, Kind: Processed, At: second.Add(time.Second)}
	facts = append(facts, Fact{Key: "z", Events: []Event{late}})
	var got []string
	for _, m := range Resolve(1, []Entry{sg}, facts).Timeline(log, facts) {
		got = append(got, m.What+string(m.Event))
	}
	require.Equal(t, []string{"accepted", "attempt", "answer", "eventprocessed", "eventdeferred", "eventdelivered",
		"eventbounced", "eventopened", "eventclicked", "eventcomplained", "eventprocessed"}, got)
}

// TestDropIsNotTheReceivers: a provider that drops mail without a known reason did not ask the
// receiving server.
func TestDropIsNotTheReceivers(t *testing.T) {
	t.Parallel()
	sg := Entry{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetOf(1), At: t0}
	drop := Event{ID: "e", Attempt: 1, Provider: "sg", Recipient: 1, Kind: Dropped, At: t0}
	v := Resolve(1, []Entry{sg}, []Fact{{Key: "1", Events: []Event{drop}}})
	require.Equal(t, ProviderDropped, v.Status(1).Last.Reason)
	require.NotContains(t, ProviderDropped.Words(), "receiving server")
}

// TestAttemptsOfOneRecipientAreCounted: a timeline counts the attempts of its recipient. The
// number of the ledger entry also counts attempts for others, endings and releases.
func TestAttemptsOfOneRecipientAreCounted(t *testing.T) {
	t.Parallel()
	log := NewBatchID(t0).Log(2)
	at := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Minute) }
	entry := func(n int, kind EntryKind, r int) Entry {
		return Entry{Number: n, Kind: kind, Provider: "sg", Recipients: SetOf(r), At: at(n)}
	}
	ledger := []Entry{
		entry(1, Attempt, 1),
		entry(2, Attempt, 2),
		entry(3, Attempt, 1),
		entry(4, Ending, 2),
		entry(5, Release, 2),
		entry(6, Attempt, 2),
	}
	refused := &Outcome{Attempt: 2, At: at(2), Parts: []Part{{Class: Unavailable, Recipients: SetOf(2)}}}
	accepted := &Outcome{Attempt: 6, At: at(6), Parts: []Part{{Class: Accepted, Recipients: SetOf(2)}}}
	delivered := Event{ID: "e", Attempt: 6, Provider: "sg", Recipient: 2, Kind: Delivered, At: at(7)}
	facts := []Fact{{Key: "o2", Outcome: refused}, {Key: "o6", Outcome: accepted}, {Key: "e", Events: []Event{delivered}}}
	v := Resolve(2, ledger, facts)
	var got []string
	for _, m := range v.Timeline(log, facts) {
		got = append(got, fmt.Sprint(m.What, " ", m.Attempt))
	}
	require.Equal(
		t,
		[]string{"accepted 0", "attempt 1", "answer 1", "end 0", "release 0", "attempt 2", "answer 2", "event 2"},
		got,
	)
	require.Equal(t, 2, v.Status(2).Attempts)
}
