package safedelivr_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestComposeHasNoDefaultPasswords(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docker-compose.yml")
	require.NoError(t, err)
	compose := string(raw)
	passwords := regexp.MustCompile(`\$\{\w*PASSWORD[^}]*\}`).FindAllString(compose, -1)
	require.GreaterOrEqual(t, len(passwords), 5)
	for _, p := range passwords {
		require.Contains(t, p, ":?", "without a value nothing starts")
	}
	for _, m := range regexp.MustCompile(`(?m)^ +image: (\S+)`).FindAllStringSubmatch(compose, -1) {
		if m[1] != "safedelivr" {
			require.Regexp(t, `^\w+:\d+\.\d+(\.\d+)?(-\w+)?(@sha256:\w{64})?$`, m[1], "images are pinned")
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^ +ports:\n +- (\S+)`).FindAllStringSubmatch(compose, -1) {
		require.Regexp(t, `^\$\{\w+:-127\.0\.0\.1:\d+\}:\d+$`, m[1], "ports are on loopback")
	}
	for _, server := range []string{"rabbitmq", "cassandra", "postgres"} {
		_, block, found := strings.Cut(compose, "\n  "+server+":\n")
		require.True(t, found)
		block = regexp.MustCompile(`\n  \S`).Split(block, 2)[0]
		require.NotContains(t, block, "ports:", "%s is not published", server)
	}
	require.Regexp(t, `\n  postgres:\n.*\n +profiles: \["postgres"\]\n`, compose,
		"PostgreSQL is not started unless it is named")
	require.Contains(t, compose, "s/AllowAllAuthenticator/PasswordAuthenticator/")
}

// TestComposeHealthChecksAreCheap: what is run every five seconds starts no virtual machine of Java or Erlang.
func TestComposeHealthChecksAreCheap(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docker-compose.yml")
	require.NoError(t, err)
	tests := regexp.MustCompile(`(?m)^ +test: (.+)$`).FindAllStringSubmatch(string(raw), -1)
	require.Len(t, tests, 4)
	for _, m := range tests {
		require.Regexp(t, `^\["CMD", ("/safedelivr", "health", "--live"|"bash", "-c", "exec 3<>/dev/tcp/[0-9./]+"|"pg_isready"[^\]]*)\]$`, m[1])
	}
}

func TestEnvScriptMakesPasswords(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile(".env.example")
	require.NoError(t, err)
	require.NotRegexp(t, `(?m)^\w*PASSWORD=.`, string(example), "no password is published")
	write := func(dir string) (string, error) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".env.example"), example, 0o600))
		out, err := exec.CommandContext(t.Context(), "scripts/env", dir).CombinedOutput()
		return string(out), err
	}
	made := regexp.MustCompile(`(?m)^(?:RABBITMQ|CASSANDRA|POSTGRES)_PASSWORD=([0-9a-f]{48})$`)
	seen := map[string]bool{}
	for range 2 {
		dir := t.TempDir()
		out, err := write(dir)
		require.NoError(t, err, out)
		env, err := os.ReadFile(filepath.Join(dir, ".env"))
		require.NoError(t, err)
		for _, m := range made.FindAllStringSubmatch(string(env), -1) {
			seen[m[1]] = true
		}
		info, err := os.Stat(filepath.Join(dir, ".env"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		out, err = write(dir)
		require.Error(t, err)
		require.Contains(t, out, "exists already")
	}
	require.Len(t, seen, 6, "each password is another")
}

func TestBaseImageHasDigest(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^ARG GO_IMAGE=golang:\d+\.\d+\.\d+@sha256:[0-9a-f]{64}$`, string(raw))
}
