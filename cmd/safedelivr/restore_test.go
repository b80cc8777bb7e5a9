package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/simulator"
)

// A backup does not know what went out since it was made. Served with
// --after-restore, nothing of it is sent again before an operator lifts the hold,
// and new mail goes out meanwhile. The data folder is the whole of the embedded
// store; Cassandra's backups are Cassandra's.
func TestRestored(t *testing.T) {
	const n = 500
	r := newRig(t, backends()[0], simulator.Options{})
	data := ""
	for _, v := range r.env {
		if dir, ok := strings.CutPrefix(v, "SAFEDELIVR_DATA_DIR="); ok {
			data = dir
		}
	}
	providers := func(do string) {
		t.Helper()
		for _, provider := range []string{"sg", "mg"} {
			r.command("provider", do, provider)
		}
	}
	first := r.start(r.addr, nil, "serve")
	providers("offline") // no call may be running when it is killed
	id := r.post(batchBody(n, "", plainAddress))
	first.kill()
	require.NoError(t, os.RemoveAll(filepath.Join(data, adminSocket))) // it is no file
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(data)))

	second := r.start(r.addr, nil, "serve")
	providers("online")
	require.EqualValues(t, n, r.done(id).Counts.Success)
	second.kill()
	require.NoError(t, os.RemoveAll(data))
	require.NoError(t, os.CopyFS(data, os.DirFS(backup)))

	r.start(r.addr, nil, "serve", "--after-restore")
	providers("online")
	for range 3 { // each takes about as long as the agenda needs to look at all
		require.EqualValues(t, 1, r.done(r.post(batchBody(1, "", plainAddress))).Counts.Success)
	}
	require.EqualValues(t, n, r.batch(id).Counts.Queued)
	require.NotContains(t, r.command("hold", "list"), "nothing is held")
	once := func(most int) {
		t.Helper()
		all, _ := r.copies()
		for _, l := range r.logs(id, "") {
			require.Equal(t, most, all[l.ID.String()], l.ID)
		}
	}
	once(1)
	r.command("hold", "lift")
	require.EqualValues(t, n, r.done(id).Counts.Success)
	once(2) // as the operator decided
}
