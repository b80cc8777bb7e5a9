package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/service"
)

// withoutJSON are the commands of several calls, or of none, that have no --json, and why. Any other of them lists or
// shows something. Of a command that is one call the operation says it: those that read have --json.
var withoutJSON = map[string][]string{
	"they change something and print a line about it": {
		"backup", "migrate", "replay", "suppression import", "template push",
	},
	"they print one value":      {"login", "version"},
	"they print CSV":            {"batch rejected", "suppression export"},
	"they run, or tell a story": {"init", "send", "serve", "simulator"},
	"they write files":          {"man"},
	"the drill runs it":         {"rehearsed"},
}

// leaves calls do with each command that does something, by its name without the program's.
func leaves(cmd *cobra.Command, do func(name string, cmd *cobra.Command)) {
	if cmd.Runnable() {
		do(strings.TrimPrefix(cmd.CommandPath(), "safedelivr "), cmd)
	}
	for _, sub := range cmd.Commands() {
		leaves(sub, do)
	}
}

// TestEveryListHasJSON requires --json of each command that lists or shows something.
func TestEveryListHasJSON(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	var none []string
	for _, names := range withoutJSON {
		none = append(none, names...)
	}
	leaves(root, func(name string, cmd *cobra.Command) {
		has := cmd.Flags().Lookup("json") != nil
		want := !slices.Contains(none, name)
		if o, ok := operations()[cmd.Annotations["operation"]]; ok {
			require.True(t, want, "the operation %s says whether %s has --json", o.Name, name)
			want = o.Method() == http.MethodGet || o.Name == "preview" // which stores nothing
		}
		require.Equal(t, want, has, "%s: has --json: %t", name, has)
	})
}

// TestJSONRows requires that each list prints objects whose keys are those of its columns, and nothing else.
func TestJSONRows(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	batch := d.batch().String()
	d.run("block add --domain example.com")
	d.run("suppression add ann@example.com --why asked")
	key, _ := d.run("key add ada --name shop")
	require.NotEmpty(t, key)
	ann := service.Caller{By: "cli:ann", Operator: true}
	require.NoError(t, d.service.Operate.HoldOld(t.Context(), ann, "restored"))
	for line, want := range map[string]map[string]any{
		"user list":        {"name": "ada", "id": "aaaa", "state": []any{}, "why": nil},
		"user limits ada":  {"limit": "requests_per_second", "value": 0.0, "set": false, "used": 0.0, "until": nil},
		"key list":         {"user": "ada", "last_used": nil, "scopes": []any{"send", "read"}, "from": []any{}, "expires": nil},
		"batch list":       {"id": batch, "accepted": 1.0, "sent": 0.0, "due": nil, "user": "ada", "state": "queued"},
		"block list":       {"domain": "example.com", "provider": nil, "mail": "waits"},
		"suppression list": {"email": "ann@example.com", "until": nil, "why": "asked"},
		"hold list":        {"by": "cli:ann", "why": "restored"},
		"stats":            {"name": "all", "accepted": 0.0, "bounced": nil},
		"provider list":    {"name": "sg", "state": "no worker", "accepted_per_second": 0.0},
		"audit":            {"by": "cli:zoe", "command": "key.create"},
	} {
		out, _ := d.run(line + " --json")
		rows := strings.Split(strings.TrimSpace(out), "\n")
		var all []map[string]any
		for _, row := range rows {
			var v map[string]any
			require.NoError(t, json.Unmarshal([]byte(row), &v), "%s: %s", line, row)
			for key, value := range v {
				if text, ok := value.(string); ok && len(text) > 9 && text[4] == '-' && text[7] == '-' {
					_, err := time.Parse(time.RFC3339, text)
					require.NoError(t, err, "%s: %s", line, key)
				}
			}
			all = append(all, v)
		}
		found := slices.ContainsFunc(all, func(v map[string]any) bool {
			return !slices.ContainsFunc(keysOf(want), func(key string) bool {
				value, has := v[key]
				return !has || fmt.Sprint(value) != fmt.Sprint(want[key])
			})
		})
		require.True(t, found, "%s: %s", line, out)
	}
	for _, line := range []string{"parked list", "workers", "endpoint list", "template list", "audit access", "updates"} {
		out, errs := d.run(line + " --json")
		require.Empty(t, out+errs, "%s: an empty list is empty", line)
	}
}

func keysOf(m map[string]any) (out []string) {
	for key := range m {
		out = append(out, key)
	}
	return out
}

// TestJSONObjects requires that a command that shows one thing prints one object, as the API has it.
func TestJSONObjects(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.batch()
	for line, want := range map[string]string{
		"batch show " + id.String():      "counts",
		"log show " + id.Log(1).String(): "timeline",
		"user senders ada":               "anyone",
		"user defaults ada":              "user",
	} {
		out, errs := d.run(line + " --json")
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(out), &v), "%s: %s", line, out)
		require.Contains(t, v, want, line)
		require.Empty(t, errs, line)
	}
}

// TestVersionFlag requires that --version prints what the command version prints.
func TestVersionFlag(t *testing.T) {
	t.Parallel()
	var out, flag, errs strings.Builder
	require.Zero(t, run(t.Context(), []string{"version"}, streams{out: &out, err: &errs}, nil))
	require.Zero(t, run(t.Context(), []string{"--version"}, streams{out: &flag, err: &errs}, nil))
	require.Equal(t, app.Build()+"\n", out.String())
	require.Equal(t, out.String(), flag.String())
}

// TestExitCodes requires the code of each kind of end, and that the document has the same list.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	for _, e := range exitCodes {
		require.Contains(t, string(doc), fmt.Sprintf("\n| %d | %s |\n", e.code, e.text))
	}
	env := append(testEnv(t), "SAFEDELIVR_LISTEN=127.0.0.1:1") // no process listens there
	for line, want := range map[string]exitCode{
		"user list":             exitGood,
		"user list x":           exitUsage,
		"user lsit":             exitUsage,
		"user list --all":       exitUsage,
		"audit --all --limit 3": exitUsage,
		"release --from soon":   exitUsage,
		"block add":             exitUsage,
		"batch show x":          exitMissing,
		"user pause eve":        exitMissing,
		"health":                exitUnreachable,
		"backup " + os.DevNull:  exitFailed,
		"provider check --received " + filepath.Join(t.TempDir(), "none"): exitFailed,
	} {
		var out, errs strings.Builder
		code := run(t.Context(), strings.Fields(line), streams{out: &out, err: &errs}, env)
		require.Equal(t, int(want), code, "%s: %s", line, errs.String())
	}
}
