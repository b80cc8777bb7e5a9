package control

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
)

// TestSnapshot: rules that were stored after some commands and restored, with the commands
// that follow, are those of all commands.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	kinds := slices.Sorted(maps.Keys(maps.Collect(models.CommandKinds())))
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	batches := []models.ID{models.NewBatchID(at), models.NewBatchID(at.Add(time.Hour))}
	rapid.Check(t, func(t *rapid.T) {
		whole := NewRules()
		var half *Rules
		n := rapid.IntRange(1, 40).Draw(t, "commands")
		cut := rapid.IntRange(1, n).Draw(t, "stored after")
		for i := 1; i <= n; i++ {
			c := models.Command{
				Number:   i,
				At:       at,
				By:       "me",
				Why:      rapid.SampledFrom([]string{"", "because"}).Draw(t, "why"),
				Kind:     rapid.SampledFrom(kinds).Draw(t, "kind"),
				Batch:    rapid.SampledFrom(batches).Draw(t, "batch"),
				User:     rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user"),
				Provider: rapid.SampledFrom([]string{"sg", "mg"}).Draw(t, "provider"),
				Senders:  []string{"@example.com"},
				Block:    &models.Block{ID: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "block"), Domain: "a.example"},
				Before:   at,
				Limits:   models.Limits{"batches_per_day": int64(i)},
				Defaults: models.SendDefaults{Zone: "UTC", Window: &models.SendWindow{To: models.TimeOfDay(i), Zone: "UTC"}},
				Schedule: &models.Schedule{DeliverAt: at.AddDate(0, 0, i), ExpiresAt: at.AddDate(0, 0, i+1)},
			}
			require.True(t, whole.Apply(c))
			if half != nil {
				require.True(t, half.Apply(c))
			}
			if i == cut {
				number, raw, err := whole.Snapshot(models.ID{})
				require.NoError(t, err)
				require.Equal(t, cut, number)
				half = NewRules()
				require.NoError(t, half.restore(raw))
			}
		}
		_, want, err := whole.Snapshot(models.ID{})
		require.NoError(t, err)
		_, got, err := half.Snapshot(models.ID{})
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(got))
		_, without, err := whole.Snapshot(models.MinID(at.Add(2 * time.Hour)))
		require.NoError(t, err)
		purged := NewRules()
		require.NoError(t, purged.restore(without))
		require.Empty(t, purged.batches, "a purged batch has no rules")
	})
}

// TestNewerSnapshot: rules that a newer version stored are not misread.
func TestNewerSnapshot(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, NewRules().restore([]byte(`{"v": 2, "n": 7}`)), models.ErrNewer)
}
