package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// lines is an output that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestUpdatesCommand prints updates, and follows them until it is ended.
func TestUpdatesCommand(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	w := feed.NewWriter(d.store)
	end := func() models.ID {
		id := d.heldBatch()
		entries, facts, err := d.store.Record(t.Context(), id)
		require.NoError(t, err)
		view := models.Resolve(1, entries, facts).ForFeed()
		require.NoError(t, w.Publish(t.Context(), "aaaa", []feed.Chunk{{ID: id, View: view}}))
		return id
	}
	out, _ := d.run("updates")
	require.Empty(t, out)
	first := end()
	out, _ = d.run("updates --user ada")
	require.Regexp(t, `(?m)^20\S+Z  `+first.Log(1).String()+`  1  failed +outcome_unknown$`, out)
	out, _ = d.run("updates --json --state failed --batch " + first.String())
	require.JSONEq(t, `"`+first.Log(1).String()+`"`, strings.SplitN(strings.SplitN(out, `"log":`, 2)[1], ",", 2)[0])
	out, _ = d.run("updates --state delivered")
	require.Empty(t, out)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var o, e lines
	ended := make(chan int, 1)
	go func() {
		c := &cli{streams: streams{out: &o, err: &e}, args: []string{"updates", "--follow"}, handler: d.api, by: "zoe"}
		ended <- c.run(ctx)
	}()
	shows := func(id models.ID) func() bool {
		return func() bool { return strings.Contains(o.String(), id.String()) }
	}
	require.Eventually(t, shows(first.Log(1)), testkit.Patience, time.Millisecond)
	second := end()
	require.Eventually(t, shows(second.Log(1)), testkit.Patience, time.Millisecond)
	stop()
	require.Zero(t, <-ended, e.String())
}

// TestMessageCommands creates and cancels messages as a file says, and shows one.
func TestMessageCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	file := filepath.Join(t.TempDir(), "messages")
	record := `{"id": "a", "from": "shop@example.com", "to": "ann@example.com", "subject": "Hi", "text": "t"}`
	require.NoError(t, os.WriteFile(file, []byte(record+"\n"), 0o600))
	for range 2 {
		out, _ := d.run("message put --user ada --dry-run " + file)
		require.Equal(t, "a  accepted\n", out)
	}
	out, errs := d.run("message put --user ada --dry-run --json " + file)
	require.JSONEq(t, `{"id":"a","status":"accepted"}`, out)
	require.Equal(t, "Dry run: nothing was done.\n", errs)
	for _, status := range []string{"accepted", "unchanged"} {
		out, _ := d.run("message put --user ada " + file)
		require.Regexp(t, `^a  `+status+`  \S{36}\n$`, out)
	}
	list := file + ".json"
	require.NoError(
		t,
		os.WriteFile(list, []byte(`[{"id": "a", "action": "cancel"}, {"id": "b", "action": "cancel"}]`), 0o600),
	)
	fails := func(args, want string) {
		var o, e lines
		c := &cli{streams: streams{out: &o, err: &e}, args: strings.Fields("message put " + args + list), handler: d.api}
		require.Equal(t, 1, c.run(t.Context()), e.String())
		require.Regexp(t, want, o.String())
	}
	fails("--strict ", `(?s)^a  rejected  other_rejected .*b  rejected  not_found`)
	fails("--dry-run ", `(?s)^a  cancelled .*b  rejected  not_found`)
	fails("", `(?s)^a  cancelled .*b  rejected  not_found`)
	shown, _ := d.run("message show a --json")
	require.Regexp(t, `^{"id":"a","log":{.*"history":\[.*\]}\n$`, shown)
	out, _ = d.run("message show a")
	require.Regexp(t, `(?s)cancelled  cancelled  the sender has cancelled the message\nann@example.com  cancelled`, out)
}

// TestFollowThroughSocket: a command with --follow prints updates as they come from the process that holds the data
// folder. That process ends the request when the user ends the command.
func TestFollowThroughSocket(t *testing.T) {
	t.Parallel()
	env := []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir(), "SAFEDELIVR_LISTEN=127.0.0.1:0"}
	cfg, err := config.Load("", env)
	require.NoError(t, err)
	a, err := app.New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-served)
	}()
	command := func(ctx context.Context, out io.Writer, line string) int {
		var errs lines
		c := &cli{streams: streams{out: out, err: &errs}, environ: env, args: strings.Fields(line), by: "zoe"}
		code := c.run(ctx)
		require.Empty(t, errs.String(), line)
		return code
	}
	require.Zero(t, command(t.Context(), io.Discard, "user add ann"))
	require.Zero(t, command(t.Context(), io.Discard, "migrate"))
	follows, end := context.WithCancel(t.Context())
	defer end()
	var printed lines
	ended := make(chan int, 1)
	go func() { ended <- command(follows, &printed, "updates --user ann --events all --follow") }()
	for _, address := range []string{"one@example.com", "two@example.com"} {
		require.Zero(t, command(t.Context(), io.Discard, "suppression add --user ann "+address))
		shown := func() bool { return strings.Contains(printed.String(), address) }
		require.Eventually(t, shown, testkit.Patience, time.Millisecond)
	}
	end()
	require.Zero(t, <-ended)
}
