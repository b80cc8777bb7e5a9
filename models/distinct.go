package models

import (
	"cmp"
	"slices"
)

func sortedEntries(entries []Entry) []Entry {
	sorted := func(a, b Entry) int { return cmp.Compare(a.Number, b.Number) }
	if !slices.IsSortedFunc(entries, sorted) {
		entries = slices.Clone(entries)
		slices.SortFunc(entries, sorted)
	}
	return slices.CompactFunc(slices.Clone(entries), func(a, b Entry) bool { return a.Number == b.Number })
}

// distinctFacts sorts facts by key and drops repeats, so that the order of arrival does
// not matter.
func distinctFacts(facts []Fact) []Fact {
	facts = slices.Clone(facts)
	slices.SortFunc(facts, func(a, b Fact) int { return cmp.Compare(a.Key, b.Key) })
	return slices.CompactFunc(facts, func(a, b Fact) bool { return a.Key == b.Key })
}

// lifted returns how much the facts raise the version.
func lifted(facts []Fact) (by int64) {
	for i := range facts {
		by += max(0, facts[i].VersionFloor)
	}
	return by
}

// Events lists the distinct events of facts, each in its newest parse revision.
func Events(facts []Fact) []*Event { return distinctEvents(facts) }

// distinctEvents drops repeats and sorts the rest. A repeat has the provider's ID of another
// event, or differs from it only in the ID: SendGrid may send an event again under another.
func distinctEvents(facts []Fact) []*Event {
	n := 0
	for i := range facts {
		n += len(facts[i].Events)
	}
	if n == 0 {
		return nil
	}
	out := make([]*Event, 0, n)
	again := false
	for i := range facts {
		for k := range facts[i].Events {
			out = append(out, &facts[i].Events[k])
			again = again || facts[i].Events[k].ParseRevision > 0
		}
	}
	if again {
		out = newestReadings(out)
	}
	slices.SortFunc(out, inOrder)
	kept, run := out[:0], 0 // run is where in kept the events begin that differ only in what follows the kind
	for _, e := range out {
		if len(kept) == 0 || !e.together(kept[len(kept)-1]) {
			run = len(kept)
		}
		if !slices.ContainsFunc(kept[run:], e.repeats) {
			kept = append(kept, e)
		}
	}
	clear(out[len(kept):])
	return kept
}

// together reports whether two events are of one kind, and happened at one time to one
// recipient of one attempt.
func (e *Event) together(o *Event) bool {
	return e.Kind == o.Kind && e.Provider == o.Provider && e.Attempt == o.Attempt && e.Recipient == o.Recipient &&
		e.At.Equal(o.At)
}

// repeats reports whether one of two events that happened together repeats the other.
func (e *Event) repeats(o *Event) bool {
	return e.ID == o.ID || e.Reason == o.Reason && e.Text == o.Text && e.Status == o.Status &&
		e.Enhanced == o.Enhanced && e.BounceClass == o.BounceClass
}

// inOrder compares events. It compares the fields that decide most often first, because
// sorting is the largest part of the cost of Resolve.
func inOrder(a, b *Event) int {
	if n := cmp.Or(a.Attempt-b.Attempt, a.Recipient-b.Recipient); n != 0 {
		return n
	}
	if n := a.At.Compare(b.At); n != 0 {
		return n
	}
	return cmp.Or(
		cmp.Compare(a.Provider, b.Provider),
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(a.Text, b.Text),
	)
}

// newestReadings drops events that have a newer reading.
func newestReadings(events []*Event) []*Event {
	type key struct {
		provider, id       string
		attempt, recipient int
	}
	newest := map[key]int64{}
	of := func(e *Event) key { return key{e.Provider, e.ID, e.Attempt, e.Recipient} }
	for _, e := range events {
		newest[of(e)] = max(newest[of(e)], e.ParseRevision)
	}
	return slices.DeleteFunc(events, func(e *Event) bool { return e.ParseRevision < newest[of(e)] })
}
