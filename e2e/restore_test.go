package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestRestoredMailIsHeld restores a backup, which does not know what was sent since it was made. Served with
// --after-restore, nothing of it may be sent again before an operator lifts the hold, and new mail is sent meanwhile.
// The data folder is all of the embedded store; Cassandra has backups of its own.
func TestRestoredMailIsHeld(t *testing.T) {
	const n = 500
	r := newRig(t, testkit.Embedded(), simulator.Options{})
	data := r.dataFolder()
	providers := func(do string) {
		t.Helper()
		for _, provider := range []string{"sg", "mg"} {
			r.command("provider", do, provider)
		}
	}
	first := r.start(r.addr, nil, "serve")
	providers("offline") // no call may be running when it is killed
	id := r.post(mail{n: n})
	first.kill()
	require.NoError(t, os.RemoveAll(filepath.Join(data, app.AdminSocket))) // it is no file
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(data)))

	second := r.start(r.addr, nil, "serve")
	providers("online")
	require.EqualValues(t, n, r.done(id).Counts.Delivered)
	second.kill()
	require.NoError(t, os.RemoveAll(data))
	require.NoError(t, os.CopyFS(data, os.DirFS(backup)))

	r.start(r.addr, nil, "serve", "--after-restore")
	providers("online")
	for range 3 { // each takes about as long as the agenda needs to read everything
		require.EqualValues(t, 1, r.done(r.post(mail{n: 1})).Counts.Delivered)
	}
	require.EqualValues(t, n, r.batch(id).Counts.Queued)
	require.NotContains(t, r.command("hold", "list"), "nothing is held")
	once := func(most int) {
		t.Helper()
		all, _ := r.copies()
		for _, l := range r.logs(id, "") {
			require.Equal(t, most, all[l.ID], l.ID)
		}
	}
	once(1)
	r.command("hold", "lift")
	require.EqualValues(t, n, r.done(id).Counts.Delivered)
	once(2) // as the operator decided
}
