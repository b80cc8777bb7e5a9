package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// dataFolder returns the data folder of the embedded store.
func (r *rig) dataFolder() string {
	r.t.Helper()
	for _, v := range r.env {
		if dir, ok := strings.CutPrefix(v, "SAFEDELIVR_DATA_DIR="); ok {
			return dir
		}
	}
	r.t.Fatal("the store is not embedded")
	return ""
}

// TestBackupWhileSending makes a backup while mail is being sent, and starts a server on it with
// the documented command. Nothing is sent twice.
func TestBackupWhileSending(t *testing.T) {
	const n = 3000
	r := newRig(t, testkit.Embedded(), simulator.Options{})
	first := r.start(r.addr, nil, "serve")
	id := r.post(mail{n: n})
	require.Eventually(t, func() bool { all, _ := r.copies(); return len(all) > 0 }, testkit.Patience, time.Millisecond)
	backup := filepath.Join(t.TempDir(), "backup")
	require.Contains(t, r.command("backup", backup), "has a copy")
	require.Contains(t, r.commandFails("backup", backup), "exist")
	late := r.post(mail{n: 1}) // the backup does not have it
	require.EqualValues(t, 1, r.done(late).Counts.Delivered)
	require.EqualValues(t, n, r.done(id).Counts.Delivered)
	first.kill()

	info, err := os.Stat(filepath.Join(backup, "safedelivr.db"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	r.start(r.addr, []string{"SAFEDELIVR_DATA_DIR=" + backup}, "serve", "--after-restore")
	for range 3 { // each takes about as long as the agenda needs to read everything
		require.EqualValues(t, 1, r.done(r.post(mail{n: 1})).Counts.Delivered)
	}
	require.Positive(t, r.batch(id).Counts.Accepted)
	all, _ := r.copies()
	for log, copies := range all {
		require.Equal(t, 1, copies, log)
	}
	require.Len(t, all, n+1+3)
}
