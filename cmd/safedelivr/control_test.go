package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/simulator"
)

// TestOrders: a batch is stopped by command while both accounts are offline, so
// that nothing goes out when they are back; after resume everything does, once.
func TestOrders(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := newRig(t, b, simulator.Options{})
		r.start(r.addr, nil, "serve")
		for _, account := range []string{"sg", "mg"} {
			require.Contains(t, r.command("account", "offline", account, "--why", "a drill"), "account.offline "+account)
		}
		id := r.post(batchBody(2500, "", plainAddress))
		require.Contains(t, r.command("batch", "stop", id.String(), "--why", "wrong subject"), "in flight: 0")
		require.Contains(t, r.command("batch", "stop", id.String()), "nothing changed")
		for _, account := range []string{"sg", "mg"} {
			r.command("account", "online", account)
		}
		other := r.post(batchBody(10, "", func(i int) string { return "other" + plainAddress(i) }))
		r.done(other) // workers see the accounts
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
		for _, words := range []string{"account.offline", "a drill", "batch.stop", "wrong subject", "batch.resume", "cli:"} {
			require.Contains(t, audit, words)
		}
		require.Regexp(t, `(?m)^QUEUE +READY +WORKING +OLDEST$`, r.command("queues"))
		require.Regexp(t, `(?m)^sg\.bulk +0 +-?\d+ +-$`, r.command("queues"), "nothing waits")
		require.Eventually(t, func() bool {
			var h service.History
			r.get("/v1/accounts/history", &h)
			accepted, told := int64(0), int64(0)
			for i := range h.Accounts {
				accepted += h.Accounts[i].Totals.Accepted
				told += h.Accounts[i].Totals.Delivered
			}
			return accepted == 2510 && told >= 2510
		}, patience, 50*time.Millisecond, "what happened at the accounts is known over time, too")
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
