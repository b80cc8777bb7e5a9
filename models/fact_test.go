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
		EventsKey(id), EventsKey(id, id), ParseRevisionKey(2, id), VersionFloorKey(7),
	} {
		require.False(t, within(key), key)
	}
}

func TestWordsOfAnswer(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Part{
		"503 Service Unavailable": {Class: Unavailable, Status: 503},
		"429 Too Many Requests":   {Class: Throttled, Status: 429, Text: "Too Many Requests"},
		"503 Service Temporarily Unavailable nginx": {
			Class: Unavailable, Status: 503, Text: "503 Service Temporarily Unavailable nginx",
		},
		"401 Unauthorized: the key was revoked": {Class: AccountClass, Status: 401, Text: "the key was revoked"},
		"the request could not be sent: connection refused": {
			Class: Unavailable, Text: "the request could not be sent: connection refused",
		},
		"the provider was not available": {Class: Unavailable},
		"599: a status without a name":   {Class: Unknown, Status: 599, Text: "a status without a name"},
	} {
		require.Equal(t, want, p.Words())
	}
}
