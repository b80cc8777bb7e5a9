package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// TestReleaseWarnsOfWaiting: a release of mail that something else withholds says what the
// mail waits for. Without such an obstacle there is no such warning.
func TestReleaseWarnsOfWaiting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		withhold func(t *testing.T, f *commandRig, id models.ID) error
		want     string
	}{
		"stopped": {func(t *testing.T, f *commandRig, id models.ID) error {
			_, _, err := f.Commands.Batch(t.Context(), f.who, models.StopBatch, id.String(), "", Repeat{})
			return err
		}, "when the batch is resumed."},
		"paused": {func(t *testing.T, f *commandRig, _ models.ID) error {
			_, _, err := f.People.Control(t.Context(), operator, models.PauseUser, "ada", "", Repeat{})
			return err
		}, "when the user is resumed."},
		"held": {func(t *testing.T, f *commandRig, _ models.ID) error {
			return f.Operate.HoldOld(t.Context(), operator, "restored")
		}, "when an operator lifts the hold that followed a restore."},
		"offline": {func(t *testing.T, f *commandRig, _ models.ID) error {
			_, _, err := f.Operate.ControlProvider(t.Context(), operator, models.ProviderOffline, "sg", "", Repeat{})
			return err
		}, "when a provider that it may use is online."},
		"blocked": {func(t *testing.T, f *commandRig, _ models.ID) error {
			_, _, err := f.Operate.AddBlock(t.Context(), operator, models.Block{User: "ada"}, "", Repeat{})
			return err
		}, "when the block rule for it is removed."},
	} {
		for _, what := range []string{"retry", "release", "log", "range"} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				f := newCommandRig(t)
				f.Audit.Sole = true
				free, withheld := f.batch(), f.batch()
				f.putHeld(free)
				warning, err := releaseCommands(f, free)[what]()
				require.NoError(t, err)
				require.NotContains(t, warning, "goes out yet", "without an obstacle")
				f.putHeld(withheld)
				require.NoError(t, c.withhold(t, f, withheld))
				warning, err = releaseCommands(f, withheld)[what]()
				require.NoError(t, err)
				if what == "range" {
					require.Contains(t, warning, "Of 1 of the batches nothing goes out yet")
					return
				}
				require.Contains(t, warning, "Nothing goes out yet")
				require.Contains(t, warning, c.want)
				require.NoError(t, f.store.Append(t.Context(), withheld, models.Entry{
					Number:     2,
					Token:      models.NewToken(),
					Kind:       models.Release,
					At:         time.Now(),
					Recipients: models.SetOf(1),
					Command:    f.Audit.Follower.Rules().UpTo(),
				}))
				warning, err = releaseCommands(f, withheld)["log"]()
				require.NoError(t, err)
				require.Contains(t, warning, c.want, "released already, and queued")
			})
		}
	}
}

// releaseCommands returns the commands that send held mail of a batch again. Each returns
// the warning of its answer.
func releaseCommands(f *commandRig, id models.ID) map[string]func() (string, error) {
	ctx := f.Context()
	return map[string]func() (string, error){
		"retry": func() (string, error) {
			v, _, err := f.Commands.Batch(ctx, f.who, models.RetryBatch, id.String(), "", Repeat{})
			return v.Warning, err
		},
		"release": func() (string, error) {
			v, _, err := f.Commands.Batch(ctx, f.who, models.ReleaseBatch, id.String(), "", Repeat{})
			return v.Warning, err
		},
		"log": func() (string, error) {
			v, _, err := f.Commands.ReleaseLog(ctx, f.who, id.Log(1).String(), "", Repeat{})
			return v.Warning, err
		},
		"range": func() (string, error) {
			rel := client.Release{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)}
			v, _, err := f.Commands.ReleaseRange(ctx, f.who, rel, Repeat{})
			return v.Warning, err
		},
	}
}
