package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// A process that serves in a terminal stops when the terminal is closed, although that sends SIGHUP, too.
func TestClosedTerminalStops(t *testing.T) {
	t.Parallel()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer master.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)

	out := &testkit.Output{}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "serve") //nolint:gosec // this test itself
	cmd.Env = append(childEnv(), "SAFEDELIVR_LISTEN=127.0.0.1:0",
		"SAFEDELIVR_METRICS_LISTEN=off", "SAFEDELIVR_DATA_DIR="+t.TempDir())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, terminal.Close())
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "msg=serving") },
		testkit.Patience, 5*time.Millisecond)
	require.NoError(t, master.Close())
	require.NoError(t, cmd.Wait())
	require.Contains(t, out.String(), "the terminal was closed")
	require.Contains(t, out.String(), "msg=stopped")
}
