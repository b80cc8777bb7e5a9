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

// allowed is the table of imports between the rooms of this module. A room is a folder;
// a name that ends in "/..." matches a folder and all below it. A file may import its
// own room. Tests may import more: see testAllowed.
var allowed = map[string][]string{
	"models":              {},
	"models/codec":        {"models"},
	"models/control":      {"models"},
	"models/telemetry":    {"models", "models/codec"},
	"models/suppression":  {"models", "models/codec", "models/control", "models/feed"},
	"models/subscribers":  {"models"},
	"models/feed":         {"models", "models/codec"},
	"models/policy":       {"models", "models/control"},
	"models/documents":    {"models"},
	"models/endpoint":     {"client", "models", "models/documents", "models/feed", "models/shape"},
	"models/shape":        {"client", "models", "models/feed"},
	"models/clientid":     {"models"},
	"models/condition":    {"models", "models/control", "models/endpoint", "models/feed", "models/telemetry"},
	"models/drift":        {"models"},
	"models/softbounce":   {"models"},
	"models/storetest":    {"models", "models/..."},
	"models/brokertest":   {"models", "models/..."},
	"models/providertest": {"models", "models/...", "lab/simulator/..."},
	"config":              {"models", "models/nearest", "models/settings"},
	"models/nearest":      {},
	"models/settings":     {},
	"tracing":             {"models"},
	"cassandra/...":       {"internal/priority", "models", "models/...", "store/...", "cassandra/..."},
	"sqlite/...":          {"internal/priority", "models", "models/...", "store/...", "sqlite/..."},
	"store/shapes/...":    {"models", "store/shapes/..."},
	"store":               {"models", "models/...", "store/..."},
	"store/memory":        {"models", "models/...", "store", "store/shapes"},
	"postgres/...":        {"models", "models/...", "store/...", "postgres/..."},
	"inproc/...":          {"models", "models/...", "inproc/..."},
	"rabbit/...":          {"models", "models/...", "rabbit/..."},
	"postgres/queue":      {"models", "models/subscribers"},
	"providers/...":       {"models", "models/...", "providers/..."},
	"lab/simulator/...":   {"lab/simulator/..."},
	"service/problem":     {"models"},
	"service/intake": {"models", "models/codec", "models/nearest", "service/templates", "service/problem",
		"service/mailparse", "service/table"},
	"service/liquid":    {"models"},
	"service/rawmail":   {"models", "service/intake", "service/mailparse", "service/problem"},
	"service/mailparse": {"models"},
	"service/templates": {"client", "internal/priority", "models", "models/documents", "service/caller",
		"service/idempotency", "service/liquid", "service/operation", "service/problem"},
	"service/idempotency": {"models", "service/problem"},
	"service/accesslog":   {"models", "service/background"},
	"service/background":  {},
	"service/cached":      {},
	"service/changes":     {"models", "models/clientid", "service/intake", "service/problem"},
	"models/announce":     {"models"},
	"service/drafts":      {"models", "models/documents", "service/problem"},
	"service/erase": {"client", "models", "models/clientid", "service/audit", "service/caller", "service/idempotency",
		"service/intake", "service/operation", "service/problem"},
	"service/flow":   {"models", "models/telemetry"},
	"service/caller": {"models", "service/problem"},
	"service/operation": {"client", "models", "models/nearest", "service/caller", "service/idempotency",
		"service/problem"},
	"service/endpoints": {"client", "internal/outbound", "models", "models/documents", "models/endpoint", "models/feed",
		"models/shape", "service/caller", "service/idempotency", "service/operation", "service/problem"},
	"service/requestlog": {"models", "models/codec", "service/background"},
	"service/table":      {"models"},
	"service/updates":    {"client", "models", "models/feed", "service/operation", "service/problem"},
	"service/walk":       {"models"},
	"service/backlog":    {"models", "service/walk"},
	"service/quota":      {"models", "models/telemetry"},
	"service/audit": {"client", "models", "models/control", "service/caller", "service/intake",
		"service/operation", "service/problem"},
	"service/people": {"client", "models", "models/control", "models/feed", "service/accesslog", "service/audit",
		"service/cached", "service/caller", "service/idempotency", "service/intake", "service/operation",
		"service/problem", "service/quota", "service/requestlog"},
	"service/stats": {"client", "models", "models/telemetry", "service/cached", "service/caller", "service/operation",
		"service/people", "service/problem"},
	"service/mail": {"client", "models", "models/clientid", "models/control", "models/policy", "models/settings",
		"models/telemetry", "service/audit", "service/backlog", "service/cached", "service/caller", "service/flow",
		"service/intake",
		"service/operation", "service/people", "service/problem", "service/stats", "service/table", "service/walk"},
	"service/suppressions": {"client", "internal/priority", "models", "models/drift", "models/suppression",
		"service/audit", "service/caller", "service/idempotency", "service/intake", "service/mail",
		"service/operation", "service/people", "service/problem", "service/table"},
	"service/operate": {"client", "models", "models/condition", "models/control", "models/drift",
		"models/endpoint", "models/feed", "models/telemetry", "service/audit", "service/cached", "service/caller",
		"service/idempotency", "service/intake", "service/operation", "service/people", "service/problem"},
	"service/commands": {"client", "models", "models/control", "service/audit", "service/caller",
		"service/idempotency", "service/intake", "service/mail", "service/operation", "service/people",
		"service/problem"},
	"service": {"client", "internal/outbound", "internal/priority", "models", "models/...", "service/...",
		"tracing"},
	"webhooks":           {"internal/known", "internal/perclient", "internal/priority", "models", "models/..."},
	"consumers/provider": {"models/settings", "models", "models/control", "models/telemetry"},
	"consumers/cluster":  {"models", "models/control", "models/telemetry", "consumers/provider"},
	"consumers/dispatch": {"internal/priority",
		"models/settings",
		"models/telemetry",
		"models",
		"models/control",
		"models/suppression",
		"tracing",
		"models/policy",
		"consumers/provider",
	},
	"consumers/agenda": {"internal/priority",
		"models/settings",
		"models",
		"models/control",
		"models/telemetry",
		"consumers/dispatch",
		"models/policy",
		"consumers/provider",
	},
	"consumers/events": {
		"models/settings",
		"internal/priority",
		"models",
		"models/softbounce",
		"models/suppression",
		"models/telemetry",
		"tracing",
		"consumers/dispatch",
		"consumers/jobs",
		"consumers/provider",
	},
	"consumers/evidence": {"models/settings", "models", "models/telemetry", "consumers/dispatch", "models/policy",
		"consumers/provider"},
	"consumers/rollup": {"models/settings", "internal/priority", "models", "models/feed", "models/telemetry",
		"consumers/dispatch", "consumers/jobs"},
	"consumers/guard":   {"models", "models/control"},
	"consumers/lists":   {"models", "models/drift", "models/suppression", "consumers/jobs", "consumers/provider"},
	"consumers/reports": {"models", "consumers/jobs", "consumers/provider"},
	"consumers/jobs":    {"models"},
	"consumers/retention": {"models/settings", "models", "models/clientid", "models/control", "models/feed",
		"models/softbounce", "models/telemetry", "consumers/jobs"},
	"consumers/endpoints": {"client", "internal/outbound", "models", "models/endpoint", "models/feed"},
	"consumers/notices":   {"models", "models/condition", "models/control", "models/feed", "models/telemetry", "consumers/jobs"},
	"consumers":           {"internal/outbound", "internal/priority", "models", "models/...", "consumers/..."},
	"api":                 {"api/dialect", "client", "internal/known", "models", "models/...", "service/..."},
	"api/dialect": {"client", "models", "service", "service/intake", "service/mailparse", "service/operation",
		"service/problem", "service/suppressions"},
	"api/resend":   {"api/dialect", "models", "service", "service/..."},
	"api/postmark": {"api/dialect", "client", "models", "service", "service/..."},
	"api/sendgrid": {"api/dialect", "client", "models", "service", "service/..."},
	"api/mailgun": {"api/dialect", "client", "models", "models/feed", "models/shape", "service", "service/...",
		"service/mailparse"},
	"submission":          {"api/dialect", "internal/known", "internal/perclient", "models", "service", "service/..."},
	"unsubscribe":         {"internal/known", "internal/perclient", "models", "service", "service/..."},
	"dashboard":           {"client", "models", "models/...", "service/...", "dashboard/..."},
	"dashboard/web":       {"internal/known", "internal/perclient", "models", "models/...", "service", "service/..."},
	"dashboard/...":       {"client", "models", "models/...", "service/...", "dashboard/web"},
	"dashboard/mail":      {"client", "models", "models/...", "service/...", "dashboard/web", "dashboard/chart"},
	"dashboard/providers": {"client", "models", "models/...", "service/...", "dashboard/web", "dashboard/chart"},
	"dashboard/attention": {"client", "models", "models/...", "service/...", "dashboard/web", "dashboard/providers"},
	"dashboard/settings":  {"client", "models", "models/...", "service/...", "dashboard/web", "dashboard/providers"},
	"dashboard/compose":   {"client", "models", "models/...", "service/...", "dashboard/web", "dashboard/templates"},
	"dashboard/operations": {"client", "models", "models/...", "service/...", "dashboard/web", "dashboard/attention",
		"dashboard/providers", "dashboard/settings"},
	"dashboard/overview": {"client", "models", "models/...", "service/...", "dashboard/web", "dashboard/attention",
		"dashboard/chart", "dashboard/mail", "dashboard/providers"},
	"client":             {},
	"internal/app":       {"..."},
	"lab/attack":         {},
	"lab/tcpproxy":       {},
	"internal/outbound":  {},
	"lab/receiver":       {"client"},
	"internal/known":     {},
	"internal/perclient": {},
	"internal/priority":  {},
	"lab/simulated":      {"lab/simulator/...", "providers"},
	"internal/testkit":   {"models", "postgres"},
	"lab/demo": {"client", "config", "dashboard", "dashboard/login", "models", "service", "lab/simulator/...",
		"internal/app", "lab/receiver", "lab/simulated"},
	"lab/drill": {"client", "config", "models", "models/telemetry", "cassandra", "postgres", "rabbit", "sqlite",
		"lab/simulator/...", "internal/app", "lab/attack", "lab/receiver", "lab/simulated", "lab/tcpproxy",
		"internal/testkit"},
	"internal/...": {"..."},
	"cmd/...":      {"..."},
	"lab/bench": {"client", "config", "models", "models/...", "cassandra", "postgres", "sqlite", "internal/app",
		"lab/simulator/...", "lab/attack", "lab/simulated"},
	"e2e": {"..."},
}

// testAllowed lists what the tests of every room may import besides: the simulator and
// the backends that need nothing but Go.
var testAllowed = []string{
	"lab/simulator/...", "sqlite/...", "store/...", "inproc/...", "providers/...", "models/...",
	"lab/tcpproxy", "internal/priority", "internal/outbound", "internal/testkit", "internal/testkit/life", "client", "api/...",
}

// covers reports whether a name of the table matches a room.
func covers(name, room string) bool {
	if below, ok := strings.CutSuffix(name, "..."); ok {
		return room == strings.TrimSuffix(below, "/") || strings.HasPrefix(room, below)
	}
	return name == room
}

// mayImport returns what a room may import, and whether the room is in the table.
func mayImport(room string) (names []string, ok bool) {
	if names, ok = allowed[room]; ok {
		return names, true
	}
	for name, names := range allowed {
		if covers(name, room) {
			return names, true
		}
	}
	return nil, false
}

// usersOfLab are the rooms that may import the lab: the product itself never does.
var usersOfLab = []string{"lab", "cmd", "e2e"}

// homes are libraries that stay inside one room each; Gin has three, and service
// is none of them.
var homes = map[string]string{
	"github.com/gocql/gocql":          "cassandra",
	"github.com/rabbitmq/amqp091-go":  "rabbit",
	"modernc.org/sqlite":              "sqlite",
	"github.com/jackc/pgx/v5":         "postgres",
	"github.com/sendgrid/sendgrid-go": "providers",
	"github.com/mailgun/mailgun-go":   "providers",
	"github.com/emersion/go-imap":     "providers",
	"github.com/emersion/go-message":  "service",
	"github.com/spf13/cobra":          "cmd",
	"github.com/knadh/koanf":          "config cmd",
	"github.com/osteele/liquid":       "service",
	"github.com/santhosh-tekuri":      "service",
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
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir // programs in testdata are modules of their own
		}
		room, _, below := strings.Cut(filepath.ToSlash(path), "/")
		if d.IsDir() || !strings.HasSuffix(path, ".go") || !below {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		require.NoError(t, err)
		files++
		own := filepath.ToSlash(filepath.Dir(path))
		names, known := mayImport(own)
		require.True(t, known, "%s is in no room of the table", path)
		for _, imp := range f.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			require.NoError(t, err)
			checkLibrary(t, path, room, name)
			to, ours := strings.CutPrefix(name, module)
			if !ours || to == own {
				continue
			}
			fits := func(name string) bool { return covers(name, to) }
			if strings.HasSuffix(path, "_test.go") && slices.ContainsFunc(testAllowed, fits) {
				continue
			}
			require.False(t, strings.HasPrefix(to, "lab/") && !slices.Contains(usersOfLab, room) &&
				own != "models/providertest" && !strings.HasSuffix(path, "_test.go"), "%s imports %s", path, to)
			require.True(t, slices.ContainsFunc(names, fits), "%s imports %s", path, to)
		}
		return nil
	}))
	require.Greater(t, files, 50, "the walk found the code")
}

func checkLibrary(t *testing.T, path, room, name string) {
	t.Helper()
	for lib, home := range homes {
		if (name == lib || strings.HasPrefix(name, lib+"/")) && !slices.Contains(strings.Fields(home), room) {
			// The tests of the simulator and of dialects drive them with the providers' real SDKs.
			if (room == "lab" || room == "api") && home == "providers" &&
				(strings.HasSuffix(path, "_test.go") || strings.Contains(filepath.ToSlash(path), "/simtest/")) {
				continue
			}
			t.Errorf("%s imports %s, which stays in %s", path, name, home)
		}
	}
}
