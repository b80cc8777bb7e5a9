//go:build full

package testkit

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// Install runs a command in a folder that installs a program, at most five minutes, and returns what it printed.
func Install(t *testing.T, folder, command string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command, args...) //nolint:gosec // of a test
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// InstallNode installs packages for Node.js in a folder, and returns the folder of their programs.
func InstallNode(t *testing.T, folder string, packages ...string) string {
	t.Helper()
	Install(t, folder, "npm", append([]string{"install", "--prefer-offline", "--no-audit", "--no-fund"}, packages...)...)
	return filepath.Join(folder, "node_modules", ".bin")
}

// InstallPython installs packages for Python in a folder, and returns the folder of their programs.
func InstallPython(t *testing.T, folder string, packages ...string) string {
	t.Helper()
	Install(t, folder, "python3", "-m", "venv", "venv")
	bin := filepath.Join(folder, "venv", "bin")
	Install(t, folder, filepath.Join(bin, "pip"), append([]string{"install", "--quiet"}, packages...)...)
	return bin
}

// StartServer runs a server that somebody else wrote until the test ends, and returns its address. %s in the arguments
// is its port. A failed test logs what the server printed.
func StartServer(t *testing.T, folder, command string, args ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	require.NoError(t, l.Close())
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "%s", port)
	}
	cmd := exec.Command(command, args...) //nolint:gosec,noctx // of a test, which ends it
	cmd.Dir, cmd.SysProcAttr = folder, &syscall.SysProcAttr{Setpgid: true}
	log, err := os.CreateTemp(folder, "log")
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = log.Close()
		if said, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s", said)
		}
	})
	for begun := time.Now(); ; models.Pause(t.Context(), 50*time.Millisecond) {
		c, err := net.Dial("tcp", address) //nolint:noctx // of a test
		if err == nil {
			_ = c.Close()
			return address
		}
		require.Less(t, time.Since(begun), time.Minute, "%s does not listen", command)
	}
}
