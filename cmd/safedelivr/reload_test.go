//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// SIGHUP reloads the configuration. One with mistakes is refused with all of them, and the process goes on.
func TestReloadBySignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "safedelivr.yaml")
	write := func(more ...string) {
		lines := append([]string{"listen: 127.0.0.1:0", "metrics: {listen: 'off'}", "data_dir: " + dir + "/data"}, more...)
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	}
	write("log: info")
	out := &testkit.Output{}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "serve", "-c", file) //nolint:gosec // this test itself
	cmd.Env = childEnv()
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	says := func(text string) {
		t.Helper()
		said := func() bool { return strings.Contains(out.String(), text) }
		require.Eventually(t, said, testkit.Patience, 5*time.Millisecond, "%s", text)
	}
	says("msg=serving")

	write("log: loud", "roles: [baker]")
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	says("configuration not reloaded")
	says("loud")
	says("baker")

	write("log: warn", "limits: {retries: 3}")
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	says("configuration reloaded")
	says("settings=limits.retries")

	// The new level hides the next message of success, and not the warning.
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	require.Eventually(t, func() bool { return strings.Count(out.String(), "settings=limits.retries") == 2 },
		testkit.Patience, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	require.Equal(t, 1, strings.Count(out.String(), "configuration reloaded"))
}
