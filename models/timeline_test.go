package models

import (
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
	var told []EventKind
	for _, m := range Resolve(1, []Entry{sg}, facts).Timeline(log, facts) {
		if m.What == "event" {
			told = append(told, m.Event)
		}
	}
	require.Equal(t, []EventKind{Delivered, Opened}, told)
}
