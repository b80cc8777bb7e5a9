package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/simulator"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// TestOrders: a batch is stopped by command while both providers are offline, so
// that nothing goes out when they are back; after resume everything does, once.
func TestOrders(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := newRig(t, b, simulator.Options{})
		r.start(r.addr, nil, "serve")
		for _, provider := range []string{"sg", "mg"} {
			require.Contains(t, r.command("provider", "offline", provider, "--why", "a drill"), "provider.offline "+provider)
		}
		id := r.post(batchBody(2500, "", plainAddress))
		require.Contains(t, r.command("batch", "stop", id.String(), "--why", "wrong subject"), "in flight: 0")
		require.Contains(t, r.command("batch", "stop", id.String()), "nothing changed")
		for _, provider := range []string{"sg", "mg"} {
			r.command("provider", "online", provider)
		}
		other := r.post(batchBody(10, "", func(i int) string { return "other" + plainAddress(i) }))
		r.done(other) // workers see the providers
		var v service.BatchView
		r.get("/v1/batches/"+id.String(), &v)
		require.True(t, v.Stopped)
		require.Equal(t, int64(2500), v.Counts.Queued)
		early, _ := r.copies()
		require.Len(t, early, 10)
		r.command("batch", "resume", id.String())
		r.done(id)
		all, delivered := r.copies()
		require.Len(t, all, 2510)
		for log, n := range delivered {
			require.Equal(t, 1, n, log)
		}

		audit := r.command("audit")
		for _, words := range []string{"provider.offline", "a drill", "batch.stop", "wrong subject", "batch.resume", "cli:"} {
			require.Contains(t, audit, words)
		}
		require.Regexp(t, `(?m)^QUEUE +READY +WORKING +OLDEST$`, r.command("queues"))
		require.Regexp(t, `(?m)^sg\.bulk +0 +-?\d+ +-$`, r.command("queues"), "nothing waits")
		require.Eventually(t, func() bool {
			var h service.History
			r.get("/v1/providers/history", &h)
			accepted, told := int64(0), int64(0)
			for i := range h.Providers {
				accepted += h.Providers[i].Totals.Accepted
				told += h.Providers[i].Totals.Delivered
			}
			return accepted == 2510 && told >= 2510
		}, patience, 50*time.Millisecond, "what happened at the providers is known over time, too")
		require.Contains(t, r.command("workers"), "100 %")
		block := strings.TrimSpace(r.command("block", "add", "--domain", "blocked.example", "--fail"))
		require.Contains(t, r.command("block", "list"), block)
		r.command("block", "remove", block)
		require.NotContains(t, r.command("block", "list"), block)
	})
}

// lastUsed counts a user's keys of which it is known when they were used.
func lastUsed(r *rig, user string) (n int) {
	for line := range strings.Lines(r.command("key", "list", user)) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[2], "20") { // these keys have no name
			n++
		}
	}
	return n
}

// TestKeyFlags: what a key may do, until when and from where.
func TestKeyFlags(t *testing.T) {
	r := newRig(t, backends()[0], simulator.Options{})
	r.command("user", "add", "ann")
	reader := strings.TrimSpace(r.command("key", "add", "ann", "--scope", "read", "--expires", "1h", "--from-network", "127.0.0.1"))
	far := strings.TrimSpace(r.command("key", "add", "ann", "--from-network", "192.0.2.0/24"))
	require.Contains(t, r.command("key", "list", "ann"), "127.0.0.1/32")
	r.start(r.addr, nil, "serve")
	var out json.RawMessage
	get := func(secret, method, path string, status int) {
		t.Helper()
		c := &demoClient{base: r.client.base, key: secret}
		require.NoError(t, c.do(t.Context(), method, path, nil, status, &out))
	}
	get(reader, http.MethodGet, "/v1/batches", http.StatusOK)
	get(reader, http.MethodPost, "/v1/batches", http.StatusForbidden)
	get(far, http.MethodGet, "/v1/batches", http.StatusForbidden)
	require.Eventually(t, func() bool { return lastUsed(r, "ann") == 1 }, patience, 20*time.Millisecond, "the one that was let in")
	require.Contains(t, r.command("audit"), "key.create")
	for _, bad := range [][]string{{"--scope", "all"}, {"--expires", "soon"}, {"--from-network", "here"}, {"--expires", time.Now().AddDate(0, 0, -2).Format(time.DateOnly)}} {
		require.NotZero(t, run(t.Context(), append([]string{"key", "add", "ann"}, bad...), streams{out: &strings.Builder{}, err: &strings.Builder{}}, r.env), bad)
	}
}

// A command that a server runs for somebody is written down under that name, not
// under the server's own.
func TestHandedOverInOnesName(t *testing.T) {
	r := newRig(t, backends()[0], simulator.Options{})
	r.command("user", "add", "ann")
	r.start(r.addr, nil, "serve")
	var out strings.Builder
	zoe := &cli{streams: streams{out: &out, err: &out}, environ: r.env, args: []string{"pause-user", "ann", "--why", "holidays"}, ranBy: "zoe"}
	cfg, err := zoe.load()
	require.NoError(t, err)
	require.NoError(t, zoe.handOver(t.Context(), &cfg), out.String())
	require.Regexp(t, `cli:zoe +user.pause .*holidays`, r.command("audit"))
}

// Commands reach a server whose data folder has a longer path than a socket may
// have, and one that was killed leaves nothing in the way.
func TestLongDataFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "data")
	r := newRig(t, backends()[0], simulator.Options{}, "SAFEDELIVR_DATA_DIR="+dir)
	for range 2 {
		server := r.start(r.addr, nil, "serve")
		require.Contains(t, r.command("queues"), "sg.bulk")
		server.kill()
	}
	require.FileExists(t, filepath.Join(dir, adminSocket))
}

// desk is the commands on a store and a broker of their own, as a server runs them
// that was handed them.
type desk struct {
	*testing.T
	app    *app
	store  models.Store
	broker models.Broker
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	store, broker := sqlitetest.Open(t), inproctest.New(t, "sg")
	svc := service.New(service.Deps{Store: store, Broker: broker, Providers: []models.Provider{{Name: "sg"}},
		Config: service.Config{SpoolDir: t.TempDir(), Sole: true}})
	t.Cleanup(svc.Close)
	require.NoError(t, store.CreateUser(t.Context(), models.User{ID: "aaaa", Name: "ada", Created: time.Now().UTC()}))
	return &desk{T: t, app: &app{service: svc, store: store, broker: broker}, store: store, broker: broker}
}

// run runs a command, which must succeed.
func (d *desk) run(line string) (out, errs string) {
	d.Helper()
	var o, e strings.Builder
	c := &cli{streams: streams{out: &o, err: &e}, args: strings.Fields(line), app: d.app, ranBy: "zoe"}
	require.Zero(d, c.run(d.Context()), "%s: %s", line, e.String())
	return o.String(), e.String()
}

// heldBatch accepts a batch of one mail, of which nobody knows whether it went out.
func (d *desk) heldBatch() models.ID {
	d.Helper()
	in := d.app.service.NewIntake()
	defer in.Close()
	in.SetText("from", "a@one.example")
	in.SetText("subject", "s")
	in.SetText("text", "t")
	require.NoError(d, in.Add(&service.Recipient{Email: "x@y.example"}))
	a, _, err := d.app.service.Accept(d.Context(), service.Caller{User: "aaaa"}, in, service.Repeat{})
	require.NoError(d, err)
	require.NoError(d, d.store.Append(d.Context(), a.ID, models.Entry{Number: 1, Token: models.NewToken(), Kind: models.Ending, At: time.Now(),
		Recipients: models.SetOf(1), Reason: models.OutcomeUnknown}))
	require.NoError(d, d.store.PutSummaries(d.Context(), models.ChunkSummary{User: "aaaa", Chunk: a.ID,
		Summary: models.Summary{Version: 1, Accepted: 1, Failed: 1, Reasons: map[models.Reason]int64{models.OutcomeUnknown: 1}}}))
	return a.ID
}

// TestReleaseWarns: every release says that mail may arrive twice, and what it
// waits for.
func TestReleaseWarns(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	out, errs := d.run("release --from 1h")
	require.Equal(t, "released in 0 batches\n", out)
	require.Empty(t, errs, "nothing may arrive twice")
	id := d.heldBatch().String()
	out, errs = d.run("release --from 1h")
	require.Equal(t, "released in 1 batches\n", out)
	require.Contains(t, errs, "may arrive twice")
	d.run("batch stop " + id)
	for _, line := range []string{"batch release " + id, "log release " + d.heldBatch().Log(1).String(), "release --from 1h"} {
		_, errs = d.run(line)
		require.Contains(t, errs, "may arrive twice", line)
	}
	require.Contains(t, errs, "Of 1 of the batches nothing goes out yet")
	_, errs = d.run("batch retry " + id)
	require.Contains(t, errs, "when the batch is resumed")
}

// TestEndedTwice: to end again what was ended before is a success that says so.
func TestEndedTwice(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	block, _ := d.run("block add --domain example.com")
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	require.NoError(t, d.broker.Publish(t.Context(), m, m))
	ctx, cancel := context.WithCancel(t.Context())
	taken := 0
	require.NoError(t, d.broker.Subscribe(ctx, models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}, 1, func(context.Context, models.Message) models.Disposition {
		if taken++; taken == 2 {
			cancel()
		}
		return models.Park("cannot be read")
	}))
	list, _ := d.run("parked list")
	require.Regexp(t, `(?m)^1 .* cannot be read$`, list)
	for _, line := range []string{"block remove " + block, "parked requeue 1", "parked discard 2"} {
		words := strings.Fields(line)
		want := words[0] + "." + words[1] + " " + words[2]
		out, _ := d.run(line)
		require.Equal(t, want+"\n", out)
		out, _ = d.run(line)
		require.Equal(t, want+" (it stood like that before)\n", out)
	}
	audit, _ := d.run("audit")
	require.Equal(t, 1, strings.Count(audit, "block.remove"))
	require.Equal(t, 1, strings.Count(audit, "parked.requeue"))
}

// TestAuditAll: the whole trail can be read, and a part of it says that there is
// more.
func TestAuditAll(t *testing.T) {
	t.Parallel()
	const all = 1203
	d := newDesk(t)
	for n := range all {
		require.NoError(t, d.store.AppendCommand(t.Context(), models.Command{Number: n + 1, Token: models.NewToken(), At: time.Now(), By: "cli:zoe",
			Kind: models.RevokedKey, Subject: fmt.Sprintf("key-%d-", n)}))
	}
	for line, want := range map[string]int{"audit": 50, "audit --limit 3": 3, "audit --limit 700": 700, "audit --limit 5000": all, "audit --all": all} {
		out, errs := d.run(line)
		require.Equal(t, want, strings.Count(out, "key.revoke"), line)
		require.Equal(t, want < all, strings.Contains(errs, "There are more"), line)
		for n := all - want; n < all; n++ {
			require.Contains(t, out, fmt.Sprintf("key-%d-", n))
		}
	}
}

// TestHoldCommands: a hold says since when, by whom and why, and is lifted once.
func TestHoldCommands(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	require.NoError(t, d.app.service.HoldOld(t.Context(), service.Caller{By: "cli:ann", Operator: true}, "restored from a backup"))
	out, _ := d.run("hold list")
	require.Regexp(t, `^mail accepted before .* is held since .*, by cli:ann: restored from a backup\n$`, out)
	out, _ = d.run("hold lift --why checked")
	require.Contains(t, out, "lifted")
	out, _ = d.run("hold lift")
	require.Contains(t, out, "nothing is held")
}

// TestUsage: a command line that is not right ends with code 1, and says what would
// be.
func TestUsage(t *testing.T) {
	t.Parallel()
	env := []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir(), "SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid", "SAFEDELIVR_PROVIDERS_SG_API_KEY=k"}
	for line, want := range map[string]string{
		"help batch":                            "",
		"completion bash":                       "",
		"batch":                                 "",
		"batch frobnicate x":                    `unknown command "frobnicate" for "safedelivr batch"`,
		"frobnicate":                            `unknown command "frobnicate"`,
		"batch stop":                            "usage: safedelivr batch stop ID",
		"batch stop x":                          "there is no batch x",
		"log release x y":                       "usage: safedelivr log release ID",
		"log release x":                         "there is no log x",
		"pause-user eve":                        "there is no user eve",
		"user senders eve":                      "there is no user eve",
		"user senders eve --none a@example.com": "--none takes no addresses",
		"key list eve":                          "there is no user eve",
		"provider offline xx":                   "there is no provider xx",
		"block remove x":                        "there is no block rule x",
		"block add":                             "Give at least one of provider, user, sender and domain.",
		"block add --user eve":                  `--user: There is no user "eve".`,
		"parked discard x":                      "there is no parked message x",
		"parked requeue x":                      "there is no parked message x",
		"release":                               "--from is missing",
		"release --from soon":                   `--from: "soon" is no time`,
		"release --from 24h --to soon":          `--to: "soon" is no time`,
		"release --from 24h --provider xx":      `--provider: No provider is called "xx".`,
		"release --from 24h":                    "",
		"release --from 2026-01-01 --to 2026-01-02": "",
		"audit --limit 0":          "--limit 0: at least 1",
		"audit --all --limit 3":    "none of the others can be",
		"audit --all":              "",
		"parked list --limit 1000": "",
		"check --since soon":       `--since: "soon" is no time`,
	} {
		var out, errs strings.Builder
		code := run(t.Context(), strings.Fields(line), streams{out: &out, err: &errs}, env)
		if want == "" {
			require.Zero(t, code, "%s: %s", line, errs.String())
			continue
		}
		require.Equal(t, 1, code, line)
		require.Contains(t, errs.String(), want, line)
		require.NotContains(t, errs.String(), "see errors", line)
		require.Empty(t, out.String(), line)
	}
}

// TestNoDataFolder: a command in the wrong folder says so, and leaves nothing
// there.
func TestNoDataFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "elsewhere")
	for _, line := range []string{"batch stop x", "audit", "check", "hold list", "user list", "login"} {
		var out, errs strings.Builder
		require.Equal(t, 1, run(t.Context(), strings.Fields(line), streams{out: &out, err: &errs}, []string{"SAFEDELIVR_DATA_DIR=" + dir}), line)
		require.Contains(t, errs.String(), "there is no data folder "+dir)
		require.NoDirExists(t, dir)
	}
}

// TestProbe: both providers refuse their providers, which are left alone for an hour then.
// When that is mended, an order has them tried at once, and all mail goes out, once.
func TestProbe(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_TIMES_HOLD=1h")
		r.start(r.addr, nil, "serve")
		r.sim.Inject(simulator.Fault{Mode: simulator.ModeBlocked})
		id := r.post(batchBody(100, "", plainAddress))
		require.Eventually(t, func() bool {
			var seen struct{ Providers []service.Provider }
			r.get("/v1/providers", &seen)
			shut := 0
			for i := range seen.Providers {
				if h := seen.Providers[i].Health; h != nil && h.State == telemetry.Shut {
					shut++
				}
			}
			return shut == 2
		}, patience, 50*time.Millisecond)
		r.sim.ClearAll("")
		for _, provider := range []string{"sg", "mg"} {
			require.Contains(t, r.command("provider", "probe", provider, "--why", "paid"), "provider.probe "+provider)
		}
		counts := r.done(id).Counts
		require.Equal(t, []int64{100, 0}, []int64{counts.Success + counts.Failed, counts.Queued})
		all, _ := r.copies()
		require.Len(t, all, 100)
		for log, n := range all {
			require.Equal(t, 1, n, log)
		}
		require.Regexp(t, "provider.probe .*paid", r.command("audit"))
	})
}
