//go:build full

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// nextVersion builds the program as a later version may be: it stores every value in a new form and sends messages of a
// new version, and reads the old ones, too.
func nextVersion(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	dir := t.TempDir()
	replaced := map[string]string{}
	for file, edits := range map[string][]string{
		"models/codec/pack.go": {
			"return pack(b, formPlain, formZstd)", "return pack(b, 'm', 'n')",
			"case formPlain, formBinary:", "case formPlain, formBinary, 'm', 'c':",
			"case formZstd, formBinaryZstd:", "case formZstd, formBinaryZstd, 'n', 'd':",
		},
		"models/codec/fields.go": {
			"return pack(f.b, formBinary, formBinaryZstd)", "return pack(f.b, 'c', 'd')",
			"raw[0] != formBinary &&", "raw[0] != 'c' && raw[0] != 'd' && raw[0] != formBinary &&",
		},
		"rabbit/message.go": {"const messageVersion = 1", "const messageVersion = 2"},
	} {
		path := filepath.Join(root, filepath.FromSlash(file))
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		source := string(raw)
		for i := 0; i < len(edits); i += 2 {
			require.Contains(t, source, edits[i], file)
			source = strings.ReplaceAll(source, edits[i], edits[i+1])
		}
		replaced[path] = filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		require.NoError(t, os.WriteFile(replaced[path], []byte(source), 0o600))
	}
	raw, err := json.Marshal(map[string]any{"Replace": replaced})
	require.NoError(t, err)
	overlay, next := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "next")
	require.NoError(t, os.WriteFile(overlay, raw, 0o600))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", next, "./cmd/safedelivr")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return next
}

// TestRollingUpgrade replaces an API and a worker by those of the next version while mail is being sent. For a while
// both versions work on one store and one broker.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	b := testkit.Servers()
	t.Run(b.Name, func(t *testing.T) {
		const n = 4_000
		r := newRig(t, b, simulator.Options{Latency: 100 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=100", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=100",
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=2", "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=2")
		next, secret := nextVersion(t), strings.TrimSpace(r.command("key", "add", "tester", "--scope", "send,read,operate"))
		api := r.start(r.addr, nil, "serve", "--roles", "api,webhooks")
		worker := r.start(freeAddr(t), nil, "serve", "--roles", "worker")
		ids := []models.ID{r.post(mail{n: n})}
		r.waitAccepted(n / 10)

		old := r.client
		r.addr = freeAddr(t)
		r.startProgram(next, r.addr, nil, "serve", "--roles", "api,webhooks")
		r.startProgram(next, freeAddr(t), nil, "serve", "--roles", "worker")
		ids = append(ids, r.post(mail{n: n})) // by the old API
		r.client = r.clientWith(secret)
		ids = append(ids, r.post(mail{n: n}))
		_, err := old.Batch(t.Context(), ids[2].String())
		require.Equal(t, "stored_by_newer_version", client.ErrorCode(err))
		for _, a := range []string{"sg", "mg"} {
			r.sim.SetWebhookURL(a, "http://"+r.addr+"/webhooks/"+a)
		}
		worker.stop(t)
		api.stop(t)

		r.allDelivered(ids, n, 0)
		r.statsAgree(ids...)
		for p, err := range r.client.ListParked(t.Context(), client.ListOptions{}) {
			require.NoError(t, err)
			require.Fail(t, "a message was parked", "%+v", p)
		}
	})
}

// TestUpgradeInPlace ends a process with an embedded store while mail is being sent, and starts the next version on its
// folder. The old version, started again by mistake, must send nothing of what it cannot read, and leave it as it is.
func TestUpgradeInPlace(t *testing.T) {
	t.Parallel()
	const n = 4_000
	r := newRig(t, testkit.Embedded(), simulator.Options{Latency: 100 * time.Millisecond},
		"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=100", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=100")
	next := nextVersion(t)
	p := r.start(r.addr, nil, "serve")
	ids := []models.ID{r.post(mail{n: n})}
	r.waitAccepted(n / 10)
	p.stop(t)
	p = r.startProgram(next, r.addr, nil, "serve")
	r.done(ids[0])
	ids = append(ids, r.post(mail{n: n}))
	r.waitAccepted(n + n/10)
	p.stop(t)

	all, _ := r.copies()
	before := len(all)
	p = r.start(r.addr, nil, "serve")
	_, err := r.client.Batch(t.Context(), ids[1].String())
	require.Equal(t, "stored_by_newer_version", client.ErrorCode(err))
	const more = 3
	for range more { // each takes about as long as the agenda needs to read everything
		log := r.post(mail{n: 1}).Log(1).String() // the counts of the batch wait for a process that can read the feed
		require.Eventually(t, func() bool {
			l, err := r.client.Log(t.Context(), log)
			return err == nil && l.State == client.Delivered
		}, testkit.Patience, 50*time.Millisecond)
	}
	p.stop(t)
	all, _ = r.copies()
	require.Len(t, all, before+more)

	r.startProgram(next, r.addr, nil, "serve")
	r.allDelivered(ids, n, more)
}

// allDelivered waits until batches of n recipients each have been delivered, once, beside a number of other mails. No
// process was killed, so that no outcome is unknown.
func (r *rig) allDelivered(ids []models.ID, n, others int) {
	r.t.Helper()
	for _, id := range ids {
		require.EqualValues(r.t, n, r.done(id).Counts.Delivered)
	}
	for _, id := range ids {
		unknown, withCopy := r.oncePerLog(id, n)
		require.Zero(r.t, unknown)
		require.Equal(r.t, n*len(ids)+others, withCopy)
	}
}

// stop ends the process as an upgrade does, and waits until it has ended by itself.
func (p *process) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, p.cmd.Wait())
}
