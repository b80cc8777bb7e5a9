package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestStopAndResume stops a batch while both providers are offline: nothing may be sent when they are online again, and
// everything must be sent, once, when the batch is resumed.
func TestStopAndResume(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{})
		r.start(r.addr, nil, "serve")
		for _, provider := range []string{"sg", "mg"} {
			require.Contains(t, r.command("provider", "offline", provider, "--why", "a drill"), provider+" is offline")
		}
		id := r.post(mail{n: 2500})
		require.Contains(t, r.command("batch", "stop", id.String(), "--why", "wrong subject"), "in flight: 0")
		require.Contains(t, r.command("batch", "stop", id.String()), "nothing changed")
		for _, provider := range []string{"sg", "mg"} {
			r.command("provider", "online", provider)
		}
		other := r.post(mail{n: 10, address: func(i int) string { return "other" + plainAddress(i) }})
		r.done(other) // workers know that the providers are online
		v := r.batch(id)
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
			h, err := r.client.ProviderHistory(t.Context(), client.Hour)
			require.NoError(t, err)
			accepted, delivered := int64(0), int64(0)
			for i := range h.Providers {
				accepted += h.Providers[i].Totals.Accepted
				delivered += h.Providers[i].Totals.Delivered
			}
			return accepted == 2510 && delivered >= 2510
		}, testkit.Patience, 50*time.Millisecond, "the history of the providers has all of it")
		require.Contains(t, r.command("workers"), "100 %")
		block := strings.TrimSpace(r.command("block", "add", "--domain", "blocked.example", "--fail"))
		require.Contains(t, r.command("block", "list"), block)
		r.command("block", "remove", block)
		require.NotContains(t, r.command("block", "list"), block)
	})
}

// TestProbeEndsSuspension has both providers refuse their credentials, which suspends them for an hour. When the
// providers work again, a probe must end the suspension, and all mail must be sent once.
func TestProbeEndsSuspension(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_TIMES_HOLD=1h")
		r.start(r.addr, nil, "serve")
		r.sim.Inject(simulator.Fault{Mode: simulator.ModeBlocked})
		id := r.post(mail{n: 100})
		require.Eventually(t, func() bool {
			list, err := r.client.ListProviders(t.Context())
			providers := list.Providers
			require.NoError(t, err)
			suspended := 0
			for i := range providers {
				if h := providers[i].Health; h != nil && h.State == telemetry.Suspended {
					suspended++
				}
			}
			return suspended == 2
		}, testkit.Patience, 50*time.Millisecond)
		r.sim.ClearAll("")
		for _, provider := range []string{"sg", "mg"} {
			require.Contains(t, r.command("provider", "probe", provider, "--why", "paid"), provider+" is being probed")
		}
		counts := r.done(id).Counts
		require.Equal(t, []int64{100, 0}, []int64{counts.Delivered + counts.Failed, counts.Queued})
		all, _ := r.copies()
		require.Len(t, all, 100)
		for log, n := range all {
			require.Equal(t, 1, n, log)
		}
		require.Regexp(t, "provider.probe .*paid", r.command("audit"))
	})
}

// lastUsed counts the keys of a user that have been used.
func lastUsed(r *rig, user string) (n int) {
	for line := range strings.Lines(r.command("key", "list", user)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], "20") { // key, user, name, created, last used
			n++
		}
	}
	return n
}

// TestKeyOptions requires that a key may be used only for its scopes, until it expires and from its networks.
func TestKeyOptions(t *testing.T) {
	r := newRig(t, testkit.Embedded(), simulator.Options{})
	r.command("user", "add", "ann")
	reader := strings.TrimSpace(
		r.command("key", "add", "ann", "--scope", "read", "--expires", "1h", "--from-network", "127.0.0.1"))
	far := strings.TrimSpace(r.command("key", "add", "ann", "--from-network", "192.0.2.0/24"))
	require.Contains(t, r.command("key", "list", "ann"), "127.0.0.1/32")
	r.start(r.addr, nil, "serve")
	list := func(key string) (status client.Response) {
		_, _ = r.clientWith(key).GetStats(t.Context(), "", "", "", "", client.Into(&status))
		return status
	}
	require.Equal(t, http.StatusOK, list(reader).Status)
	require.Equal(t, http.StatusForbidden, list(far).Status)
	_, err := r.clientWith(reader).CreateBatch(t.Context(), client.NewBatch{})
	require.Equal(t, "scope_missing", client.ErrorCode(err))
	require.Eventually(t, func() bool { return lastUsed(r, "ann") == 1 }, testkit.Patience, 20*time.Millisecond,
		"the key that was accepted")
	require.Contains(t, r.command("audit"), "key.create")
	for _, wrong := range [][]string{
		{"--scope", "all"},
		{"--expires", "soon"},
		{"--from-network", "here"},
		{"--expires", time.Now().AddDate(0, 0, -2).Format(time.DateOnly)},
	} {
		r.commandFails(append([]string{"key", "add", "ann"}, wrong...)...)
	}
}

// TestLongDataFolder requires that commands reach a server whose data folder has a longer path than a socket may
// have, and that a killed server leaves nothing that stops the next one.
func TestLongDataFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "data")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	r := newRig(t, testkit.Embedded(), simulator.Options{}, "SAFEDELIVR_DATA_DIR="+dir)
	for range 2 {
		server := r.start(r.addr, nil, "serve")
		require.Contains(t, r.command("queues"), "sg.bulk")
		server.kill()
	}
	require.FileExists(t, filepath.Join(dir, app.AdminSocket))
}
