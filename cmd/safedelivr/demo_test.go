//go:build full

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestDemoLinesCanBePasted runs the demo as people do: the link that it prints logs in an operator, and the lines that
// it prints work in bash and in zsh.
func TestDemoLinesCanBePasted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Patience)
	defer cancel()
	for _, shell := range []string{"bash", "zsh", "curl"} {
		if _, err := exec.LookPath(shell); err != nil {
			t.Skip("needs " + shell + ": apt-get install " + shell)
		}
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	demo := exec.CommandContext(ctx, exe, "demo", "--recipients", "100", "--listen", "127.0.0.1:0")
	demo.Env, demo.Stderr = childEnv(), os.Stderr
	out, err := demo.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, demo.Start())
	defer func() {
		_ = demo.Process.Signal(syscall.SIGTERM)
		require.NoError(t, demo.Wait())
	}()
	var batch, text string
	hints := map[string]string{} // the command after each text
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		if _, link, ok := strings.Cut(line, "dashboard    "); ok {
			require.Contains(t, page(t, link, "/operations"), "Operations", "the link logs in an operator")
		}
		if _, url, ok := strings.Cut(line, "its page: "); ok {
			batch = url[strings.LastIndex(url, "/")+1:]
		}
		command, ok := strings.CutPrefix(line, "  ")
		if ok && (strings.HasSuffix(text, ":") || strings.HasSuffix(text, ".")) {
			hints[strings.TrimRight(text, ":.")] = command
		}
		if text = line; strings.Contains(line, "complain@") {
			for _, word := range strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' }) {
				if name, ok := strings.CutSuffix(word, "@"); ok {
					name, _, _ = strings.Cut(name, "+")
					require.Contains(t, strings.Join(append(simulator.Outcomes(), "blocked-sg"), " "), name)
				}
			}
		}
		if line == "Ctrl-C ends it." {
			break
		}
	}
	require.NotEmpty(t, batch)
	shell := func(shell, hint string) string {
		t.Helper()
		require.NotEmpty(t, hints[hint], "%v", hints)
		cmd := exec.CommandContext(ctx, shell, "-c", hints[hint])
		cmd.Env = childEnv()
		raw, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s\n%s", shell, hints[hint], raw)
		return string(raw)
	}
	faults := func() string {
		url := regexp.MustCompile(`'(http[^?']+/control/faults)\?`).FindStringSubmatch(hints["Heal SendGrid"])
		require.NotNil(t, url, "%v", hints)
		raw, err := exec.CommandContext(ctx, "curl", "-s", url[1]).Output()
		require.NoError(t, err)
		return string(raw)
	}
	for _, sh := range []string{"bash", "zsh"} {
		require.Contains(t, shell(sh, "The batch"), `"id":"`+batch+`"`)
		require.Contains(t, shell(sh, "The story of one recipient, whose mail SendGrid could not deliver"), `"timeline"`)
		require.Contains(t, shell(sh, "The recipients whose mail failed"), "hardbounce")
		require.Contains(t, shell(sh, "The health of the providers"), `"sg"`)
		require.Contains(t, shell(sh, "Send one message yourself"), `"recipients":1`)
		var fault struct{ ID string }
		require.NoError(t, json.Unmarshal([]byte(shell(sh, "Break SendGrid: it answers 503 to everything")), &fault))
		require.NotEmpty(t, fault.ID)
		require.Contains(t, shell(sh, "Send 3,000 messages, and watch them on the page Batches"), `"recipients":3001`)
		require.Contains(t, faults(), fault.ID)
		shell(sh, "Heal SendGrid")
		require.NotContains(t, faults(), fault.ID)
		require.NotContains(t, page(t, strings.TrimSpace(shell(sh, "Log in again")), "/batches"), "<title>Log in",
			"logging in again shows the demo's mail")
		require.Contains(t, page(t, strings.TrimSpace(shell(sh, "Log in again")), "/batches"), batch)
	}
}
