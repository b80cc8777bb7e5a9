package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestReleasedAndWaiting: what is let go while another order keeps it says so, and
// says what it waits for; what nothing keeps says nothing of the kind.
func TestReleasedAndWaiting(t *testing.T) {
	t.Parallel()
	const waiting = "Nothing goes out yet"
	boss := Caller{By: "boss", Operator: true}
	for name, c := range map[string]struct {
		keep func(t *testing.T, f *orderRig, id models.ID) error
		want string
	}{
		"stopped": {func(t *testing.T, f *orderRig, id models.ID) error {
			_, _, err := f.Steer(t.Context(), f.who, models.StopBatch, id.String(), "", Repeat{})
			return err
		}, "when the batch is resumed."},
		"paused": {func(t *testing.T, f *orderRig, _ models.ID) error {
			_, _, err := f.SwitchUser(t.Context(), boss, models.PauseUser, "ada", "", Repeat{})
			return err
		}, "when the user is resumed."},
		"held": {func(t *testing.T, f *orderRig, _ models.ID) error {
			return f.HoldOld(t.Context(), boss, "restored")
		}, "when an operator lifts the hold since the restore."},
		"offline": {func(t *testing.T, f *orderRig, _ models.ID) error {
			_, _, err := f.SwitchProvider(t.Context(), boss, models.ProviderOffline, "sg", "", Repeat{})
			return err
		}, "when a provider that it may use is online."},
		"blocked": {func(t *testing.T, f *orderRig, _ models.ID) error {
			_, _, err := f.AddBlock(t.Context(), boss, models.Block{User: "ada"}, "", Repeat{})
			return err
		}, "when the block rule that meets it is removed."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newOrderRig(t)
			f.cfg.Sole = true
			id := f.batch()
			end := models.Entry{
				Number:     1,
				Token:      models.NewToken(),
				Kind:       models.Ending,
				At:         time.Now(),
				Recipients: models.SetOf(1),
				Reason:     models.OutcomeUnknown,
			}
			require.NoError(t, f.store.Append(t.Context(), id, end))
			require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: "aaaa", Chunk: id,
				Summary: models.Summary{
					Version:  1,
					Accepted: 1,
					Failed:   1,
					Reasons:  map[models.Reason]int64{models.OutcomeUnknown: 1},
				}}))
			orders := map[string]func() (string, error){
				"retry": func() (string, error) {
					v, _, err := f.Steer(t.Context(), f.who, models.RetryBatch, id.String(), "", Repeat{})
					return v.Warning, err
				},
				"release": func() (string, error) {
					v, _, err := f.Steer(t.Context(), f.who, models.ReleaseBatch, id.String(), "", Repeat{})
					return v.Warning, err
				},
				"log": func() (string, error) {
					v, _, err := f.ReleaseLog(t.Context(), f.who, id.Log(1).String(), "", Repeat{})
					return v.Warning, err
				},
				"range": func() (string, error) {
					v, _, err := f.ReleaseRange(
						t.Context(),
						f.who,
						Release{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)},
						Repeat{},
					)
					return v.Warning, err
				},
			}
			for what, order := range orders {
				warning, err := order()
				require.NoError(t, err)
				require.NotContains(t, warning, "goes out yet", "%s of what nothing keeps", what)
			}
			require.NoError(t, c.keep(t, f, id))
			for what, order := range orders {
				warning, err := order()
				require.NoError(t, err)
				if what == "range" {
					require.Contains(t, warning, "Of 1 of the batches nothing goes out yet")
					continue
				}
				require.Contains(t, warning, waiting, what)
				require.Contains(t, warning, c.want, what)
			}
			require.NoError(
				t,
				f.store.Append(
					t.Context(),
					id,
					models.Entry{
						Number:     2,
						Token:      models.NewToken(),
						Kind:       models.Release,
						At:         time.Now(),
						Recipients: models.SetOf(1),
						Order:      2,
					},
				),
			)
			warning, err := orders["log"]()
			require.NoError(t, err)
			require.Contains(t, warning, c.want, "released already, and queued")
		})
	}
}
