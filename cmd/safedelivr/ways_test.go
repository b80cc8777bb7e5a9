package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
)

// actDirectly are the commands that do not call the API.
var actDirectly = []string{"init", "serve", "rehearsed", "health", "backup", "demo", "rehearse", "simulator", "version",
	"man", "provider check"}

// way is a line and its exit code.
type way struct {
	line string
	code exitCode
}

// calls are lines that call the API, in an order in which they make sense. FOLDER has files for them. derived adds what
// the operation of a command says.
var calls = []way{
	{"user add ann", exitGood},
	{"user add ann", exitFailed},
	{"user senders ann @example.com", exitGood},
	{"user limits ann requests_per_second=100", exitGood},
	{"user defaults ann --time-zone UTC", exitGood},
	{"user pause ann", exitGood},
	{"user resume ann", exitGood},
	{"user disable ann", exitGood},
	{"user enable ann", exitGood},
	{"key add ann --scope read --expires 24h", exitGood},
	{"key list ann --json", exitGood},
	{"key requests --key x", exitGood},
	{"key requests", exitUsage},
	{"login", exitGood},
	{"migrate", exitGood},
	{"provider history --range day", exitGood},
	{"block add --domain example.com", exitGood},
	{"block add", exitUsage},
	{"block list --json", exitGood},
	{"suppression add bob@example.com --for 24h", exitGood},
	{"suppression list --user ann", exitGood},
	{"suppression show bob@example.com --json", exitGood},
	{"suppression import FOLDER/list.csv", exitGood},
	{"suppression export", exitGood},
	{"suppression remove bob@example.com --why asked", exitGood},
	{"template push FOLDER/templates --publish", exitGood},
	{"template show welcome --json", exitGood},
	{"template publish welcome 1", exitGood},
	{"template preview welcome", exitGood},
	{"template archive welcome", exitGood},
	{"endpoint add http://127.0.0.1:9/hook --header X-A:b", exitGood},
	{"send --from a@example.com --to b@example.org --subject s --dry-run", exitGood},
	{"send --from a@example.com --file FOLDER/people.csv --subject s --deliver-at 2099-01-01T00:00:00Z", exitUsage},
	{"send --from a@example.com --file FOLDER/people.csv --subject s --category news", exitGood},
	{"batch list --user ann", exitGood},
	{"batch rejected x", exitMissing},
	{"batch reschedule x --deliver-at now", exitMissing},
	{"batch retry x --dry-run", exitMissing},
	{"log list x --state failed", exitMissing},
	{"log search --part dan --from 24h", exitGood},
	{"message put FOLDER/messages.ndjson", exitGood},
	{"message show m", exitGood},
	{"release --from 24h", exitGood},
	{"hold lift", exitGood},
	{"erase carl@example.com", exitGood},
	{"updates --events all", exitGood},
	{"updates --installation --json", exitGood},
	{"stats --user ann", exitGood},
	{"audit --limit 2", exitGood},
	{"check --user ann", exitGood},
	{"check --json --user eve", exitMissing},
	{"replay", exitGood},
}

// argument finds what a command must be given.
var argument = regexp.MustCompile(`^[A-Z]+$`)

// derived returns the lines that follow from the operation of a command, unless calls has them. A thing that does not
// exist is missing. A call that reads without an ID or a name prints its answer.
func derived(name string, cmd *cobra.Command) (out []way) {
	o, ok := operations()[cmd.Annotations["operation"]]
	has := map[exitCode]bool{}
	for _, w := range calls {
		if strings.HasPrefix(w.line+" ", name+" ") {
			has[w.code] = true
		}
	}
	switch {
	case !ok:
	case strings.Contains(o.Path(), "{id}"), strings.Contains(o.Path(), "{name}"):
		if has[exitMissing] {
			return nil
		}
		line := name
		for _, word := range strings.Fields(cmd.Use)[1:] {
			if argument.MatchString(word) {
				line += " 1"
			}
		}
		return []way{{line, exitMissing}}
	case o.Method() == http.MethodGet && len(has) == 0:
		return []way{{name, exitGood}}
	}
	return nil
}

// TestBothWays: each command that calls the API does the same with a process that serves as without one.
func TestBothWays(t *testing.T) {
	t.Parallel()
	lines := slices.Clone(calls)
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	leaves(root, func(name string, cmd *cobra.Command) {
		lines = append(lines, derived(name, cmd)...)
		called := slices.ContainsFunc(lines, func(w way) bool { return strings.HasPrefix(w.line+" ", name+" ") })
		assert.NotEqual(t, called, slices.Contains(actDirectly, name), "%s has a line above: %t", name, called)
	})
	for _, from := range []string{"alone", "beside a server"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			for name, text := range map[string]string{
				"list.csv":                      "email\neve@example.com\n",
				"people.csv":                    "email,name\ndan@example.com,Dan\n",
				"messages.ndjson":               `{"id":"m","from":"a@example.com","to":"b@example.org","subject":"s","text":"t"}` + "\n",
				"templates/welcome/subject.txt": "Hello",
				"templates/welcome/body.txt":    "Hello {{name}}",
			} {
				name = filepath.Join(folder, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
				require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			}
			env := []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir(), "SAFEDELIVR_LISTEN=127.0.0.1:0",
				"SAFEDELIVR_METRICS_LISTEN=off"}
			if from != "alone" {
				cfg, err := config.Load("", env)
				require.NoError(t, err)
				a, err := app.New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
				require.NoError(t, err)
				ctx, stop := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- a.Serve(ctx) }()
				defer func() {
					stop()
					require.NoError(t, <-served)
				}()
			}
			for _, c := range lines {
				var out, errs strings.Builder
				args := strings.Fields(strings.ReplaceAll(c.line, "FOLDER", folder))
				code := run(t.Context(), args, streams{out: &out, err: &errs}, env)
				assert.Equal(t, int(c.code), code, "%s: %s%s", c.line, out.String(), errs.String())
			}
		})
	}
}

// otherwise are the operations that no command has as its only call, and what does.
var otherwise = map[string]string{
	"addTemplateVersion": "template push", "createTemplate": "template push", "templateVersions": "template show",
	"getKeyLimits": "user limits", "setKeyLimits": "user limits", "setUserLimits": "user limits",
	"setSenders": "user senders", "getUser": "all that print names", "listUserKeys": "key list",
	"getUsage": "user limits", "getCheck": "check, which recounts",
	"listRejected": "batch rejected", "exportRejected": "batch rejected", "runCheck": "check", "runReplay": "replay",
	"listNotices": "updates --installation", "countUpdates": "nothing: it counts what updates prints",
	"updateEndpoint": "nothing: it replaces all settings, with headers that no answer has",
}

// TestEveryOperationHasACommand: the command line can do all that the API can.
func TestEveryOperationHasACommand(t *testing.T) {
	t.Parallel()
	has := map[string]bool{}
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	leaves(root, func(_ string, cmd *cobra.Command) { has[cmd.Annotations["operation"]] = true })
	for name := range operations() {
		assert.NotEqual(t, has[name], otherwise[name] != "", "the operation %s has a command: %t", name, has[name])
	}
}
