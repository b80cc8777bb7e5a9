package safedelivr_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/safedelivr/safedelivr/"

// allowed says which rooms a room may import. Rooms that are not listed (cmd, internal, bench, e2e) may import all.
var allowed = map[string][]string{
	"client":    {},
	"models":    {"models"},
	"config":    {"models"},
	"cassandra": {"models"},
	"rabbit":    {"models"},
	"embedded":  {"models", "embedded"},
	"providers": {"models", "providers"},
	"simulator": {},
	"tracing":   {"models"},
	"service":   {"models", "tracing"},
	"api":       {"models", "service"},
	"dashboard": {"models", "service"},
	"webhooks":  {"models"},
	"consumers": {"models", "tracing"},
}

// homes are libraries that stay inside one room each; Gin has three, and service
// is none of them.
var homes = map[string]string{
	"github.com/gocql/gocql":          "cassandra",
	"github.com/rabbitmq/amqp091-go":  "rabbit",
	"modernc.org/sqlite":              "embedded",
	"github.com/sendgrid/sendgrid-go": "providers",
	"github.com/mailgun/mailgun-go":   "providers",
	"github.com/spf13/cobra":          "cmd",
	"github.com/knadh/koanf":          "config",
	"go.opentelemetry.io/otel":        "tracing",
	"github.com/gin-gonic/gin":        "api webhooks dashboard",
}

func TestImports(t *testing.T) {
	t.Parallel()
	files := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		room, _, below := strings.Cut(filepath.ToSlash(path), "/")
		if d.IsDir() || !strings.HasSuffix(path, ".go") || !below {
			return nil
		}
		test := strings.HasSuffix(path, "_test.go")
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		require.NoError(t, err)
		files++
		for _, imp := range f.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			require.NoError(t, err)
			checkLibrary(t, path, room, name)
			ours, ok := strings.CutPrefix(name, module)
			if !ok || room == "cmd" || room == "e2e" || room == "bench" || room == "internal" {
				continue
			}
			to, _, _ := strings.Cut(ours, "/")
			// Tests may use the simulator and the embedded backends as peers, and what internal has for tests.
			if test && (to == "simulator" || to == "embedded" || to == "providers" || to == "internal" || to == room) {
				continue
			}
			// Suites below models are written against the simulator where needed.
			if room == "models" && strings.HasPrefix(path, filepath.FromSlash("models/")) && strings.Contains(filepath.Dir(path), "test") && to == "simulator" {
				continue
			}
			require.Contains(t, allowed[room], to, "%s imports %s", path, name)
		}
		return nil
	}))
	require.Greater(t, files, 50, "the walk found the code")
}

func checkLibrary(t *testing.T, path, room, name string) {
	t.Helper()
	for lib, home := range homes {
		if (name == lib || strings.HasPrefix(name, lib+"/")) && !slices.Contains(strings.Fields(home), room) {
			// The simulator's tests drive it with the providers' real SDKs.
			if room == "simulator" && strings.HasSuffix(path, "_test.go") && home == "providers" {
				continue
			}
			t.Errorf("%s imports %s, which stays in %s", path, name, home)
		}
	}
}
