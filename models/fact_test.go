package models

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOutcomeKeys: the bounds hold the keys of outcomes and no other key.
func TestOutcomeKeys(t *testing.T) {
	t.Parallel()
	from, to := OutcomeKeys()
	within := func(key string) bool { return from <= key && key < to }
	for _, n := range []int{1, 10, 999_999} {
		require.True(t, within(OutcomeKey(n)))
	}
	id := NewInboxID(time.Unix(1_700_000_000, 0))
	for _, key := range []string{
		EvidenceKey(1, "look-up"), EventsKey(id), EventsKey(id, id), ParseRevisionKey(2, id), VersionFloorKey(7),
	} {
		require.False(t, within(key), key)
	}
}
