package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/models"
)

func TestParseSince(t *testing.T) {
	t.Parallel()
	got, err := parseSince("")
	require.NoError(t, err)
	require.True(t, got.IsZero())
	got, err = parseSince("2026-01-31")
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC), got)
	got, err = parseSince("2026-01-31T12:00:00+01:00")
	require.NoError(t, err)
	require.Equal(t, int64(11), got.Unix()/3600%24)
	got, err = parseSince("90m")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(-90*time.Minute), got, time.Minute)
	for _, bad := range []string{"yesterday", "-5m", "2026-13-01"} {
		_, err = parseSince(bad)
		require.ErrorContains(t, err, bad)
	}
}

// testEnv returns the settings of a new data folder with a provider.
func testEnv(t *testing.T) []string {
	t.Helper()
	return []string{
		"SAFEDELIVR_DATA_DIR=" + t.TempDir(),
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY=k",
	}
}

// runner returns a function that runs a command with an environment, requires its exit code and returns what it prints.
func runner(t *testing.T, env *[]string) func(want int, args ...string) string {
	return func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		require.Equal(t, want, run(t.Context(), args, streams{&out, &errs}, *env), "%s%s", out.String(), errs.String())
		return out.String() + errs.String()
	}
}

// TestCheckCommands requires that check, replay and hold work on a new data folder and say what is wrong with their
// arguments.
func TestCheckCommands(t *testing.T) {
	t.Parallel()
	env := testEnv(t)
	command := runner(t, &env)
	command(0, "user", "add", "ada")
	require.Contains(t, command(0, "check"), "1 user, 0 batches, 0 recipients, 0 days: 0 differences")
	require.Contains(t, command(0, "check", "--json", "--user", "ada"), `"differences":0`)
	require.Contains(t, command(3, "check", "--user", "eve"), "there is no user eve")
	require.Contains(t, command(2, "check", "--since", "soon"), "is no time")
	require.Contains(t, command(0, "replay"), "0 posts read again")
	require.Contains(t, command(0, "hold", "list"), "nothing is held")
	require.Contains(t, command(0, "hold", "lift"), "nothing is held")
}

// TestDataCommands requires that an erasure and a backup say what they have done, and that a backup replaces nothing.
func TestDataCommands(t *testing.T) {
	t.Parallel()
	env := testEnv(t)
	command := runner(t, &env)
	command(0, "user", "add", "ada")
	require.Contains(t, command(0, "erase", "Bob@example.com"), "erased: 0 recipients, 0 webhook posts; 0 batches read\n")
	trail := command(0, "audit")
	require.Contains(t, trail, "address.erased")
	require.Contains(t, trail, "@example.com")
	require.NotContains(t, strings.ToLower(trail), "bob")
	require.Contains(t, command(2, "erase", "eve"), "eve")
	require.Contains(t, command(2, "erase", "bob@example.com", "--cursor", "x"), "cursor")
	to := filepath.Join(t.TempDir(), "copy")
	require.Contains(t, command(0, "backup", to), to+" has a copy of ")
	require.Contains(t, command(1, "backup", to), "exist")
	env = append(env, "SAFEDELIVR_DATA_DIR="+to)
	require.Contains(t, command(0, "user", "list"), "ada")
}

// TestCheckAsJSON requires that the differences and the counts are one JSON object, also if the check breaks off.
func TestCheckAsJSON(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.heldBatch()
	wrong := models.Summary{Version: 1, Repairs: 1, Accepted: 1, Success: 1}
	require.NoError(t, d.store.PutSummaries(t.Context(), models.ChunkSummary{User: "aaaa", Chunk: id, Summary: wrong}))
	engine, err := consumers.New(d.store, d.broker, nil, settings.Default[consumers.Config]())
	require.NoError(t, err)
	c := api.Config{}
	c.Work.Check = app.CheckWork(func() (*consumers.Engine, error) { return engine, nil }, time.Millisecond)
	d.api = api.New(d.service, c).Local()
	check := func(ctx context.Context) (out struct {
		Found []struct {
			What, User, ID string
			Shown, Counted *client.Counts
		}
		Users, Differences int
		Error              string
	}) {
		t.Helper()
		var printed bytes.Buffer
		c := &cli{streams: streams{out: &printed, err: io.Discard}, handler: d.api}
		o, end, err := c.connect(t.Context())
		require.NoError(t, err)
		defer end()
		sum, err := checkAsJSON(ctx, c, o, client.NewCheck{})
		require.Equal(t, ctx.Err() != nil, err != nil)
		require.NoError(t, json.Unmarshal(printed.Bytes(), &out), printed.String())
		require.Equal(t, sum.Differences, out.Differences)
		require.Len(t, out.Found, out.Differences)
		return out
	}
	out := check(t.Context())
	require.NotEmpty(t, out.Found)
	require.Equal(t, 1, out.Users)
	require.Equal(t, []any{"chunk", "aaaa", id.String()}, []any{out.Found[0].What, out.Found[0].User, out.Found[0].ID})
	require.EqualValues(t, 1, out.Found[0].Shown.Delivered)
	require.EqualValues(t, 1, out.Found[0].Counted.Failed)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NotEmpty(t, check(ended).Error)
}
