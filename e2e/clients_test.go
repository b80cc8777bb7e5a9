//go:build full

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestClients makes the packages of the clients in other languages, installs them as their users do, and runs their
// tests and the examples of their pages against the product.
func TestClients(t *testing.T) {
	r := newRig(t, testkit.Embedded(), simulator.Options{}, "SAFEDELIVR_ENDPOINT_NETWORKS=127.0.0.0/8")
	r.start(r.addr, nil, "serve")
	t.Run("TypeScript", func(t *testing.T) {
		p := newPackage(t, r, "typescript")
		p.run(p.source, "npm", "ci", "--prefer-offline")
		p.run(p.source, "npm", "run", "generate")
		p.made("src/schema.ts")
		archive := strings.TrimSpace(p.run(p.source, "npm", "pack", "--silent"))
		archive = archive[strings.LastIndex(archive, "\n")+1:]
		p.run(p.user, "npm", "install", "--prefer-offline", filepath.Join(p.source, archive))
		p.example("ts", "example.mjs")
		p.run(p.user, "node", "--test", "--test-timeout=60000", "test/")
		require.Contains(t, p.run(p.user, "node", "example.mjs"), "ann@example.com delivered\nbob@example.com delivered\n")
	})
	t.Run("Python", func(t *testing.T) {
		p := newPackage(t, r, "python")
		bin := filepath.Join(p.user, "venv", "bin")
		p.run(p.user, "python3", "-m", "venv", "venv")
		p.run(p.source, filepath.Join(bin, "pip"), "install", "--quiet", ".[dev]")
		p.run(p.source, filepath.Join(bin, "python"), "generate.py")
		p.made("src/safedelivr/schema.py")
		p.example("python", "example.py")
		p.run(p.source, filepath.Join(bin, "mypy"))
		p.run(p.user, filepath.Join(bin, "mypy"), "--strict", "example.py", "test")
		p.run(p.user, filepath.Join(bin, "python"), "-m", "unittest", "discover", "-s", "test", "-v")
		out := p.run(p.user, filepath.Join(bin, "python"), "example.py")
		require.Contains(t, out, "ann@example.com delivered\nbob@example.com delivered\n")
	})
}

// clientPackage is the package of a client in another language.
type clientPackage struct {
	t        *testing.T
	rig      *rig
	original string
	source   string // copy of original
	user     string // folder of a user of the package; it has the tests
}

func newPackage(t *testing.T, r *rig, name string) *clientPackage {
	t.Helper()
	root, user := t.TempDir(), t.TempDir()
	p := &clientPackage{t, r, filepath.Join("..", "client", name), filepath.Join(root, "client", name), user}
	copied := func(to, from string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		require.NoError(t, exec.Command("cp", "-r", from, to).Run())
	}
	copied(filepath.Join(root, "api", "openapi.yaml"), "../api/openapi.yaml")
	copied(filepath.Join(root, "LICENSE"), "../LICENSE")
	copied(p.source, p.original)
	copied(filepath.Join(user, "test"), filepath.Join(p.original, "test"))
	for _, made := range []string{"node_modules", "dist", "build"} {
		require.NoError(t, os.RemoveAll(filepath.Join(p.source, made)))
	}
	return p
}

// run runs a command, which must succeed, and returns what it printed.
func (p *clientPackage) run(folder, command string, args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), command, args...)
	cmd.Dir = folder
	key := strings.TrimSpace(p.rig.command("key", "add", "tester"))
	cmd.Env = append(os.Environ(), "SAFEDELIVR_URL=http://"+p.rig.addr, "KEY="+key)
	out, err := cmd.CombinedOutput()
	require.NoError(p.t, err, "%s %v: %s", command, args, out)
	return string(out)
}

// made requires that a file which is made from the description of the API is checked in as it is made.
func (p *clientPackage) made(file string) {
	p.t.Helper()
	want, err := os.ReadFile(filepath.Join(p.source, file))
	require.NoError(p.t, err)
	have, err := os.ReadFile(filepath.Join(p.original, file))
	require.NoError(p.t, err)
	require.Equal(p.t, string(want), string(have), "%s is not made from api/openapi.yaml as it is; see its page", file)
}

// example writes the first example of the package's page, with the address of the product.
func (p *clientPackage) example(language, file string) {
	p.t.Helper()
	page, err := os.ReadFile(filepath.Join(p.original, "README.md"))
	require.NoError(p.t, err)
	found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(page)
	require.NotNil(p.t, found)
	text := strings.ReplaceAll(string(found[1]), "http://127.0.0.1:8080", "http://"+p.rig.addr)
	require.NoError(p.t, os.WriteFile(filepath.Join(p.user, file), []byte(text), 0o600))
}
