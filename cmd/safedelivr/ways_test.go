package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
)

// actDirectly are the commands that do not call the API.
var actDirectly = []string{"init", "serve", "rehearsed", "health", "backup", "demo", "rehearse", "simulator", "version",
	"man", "provider check"}

// calls are lines with each command that calls the API, in an order in which they make sense, and their exit codes.
// FOLDER has files for them.
var calls = []struct {
	line string
	code exitCode
}{
	{"user add ann", exitGood},
	{"user add ann", exitFailed},
	{"user list", exitGood},
	{"user senders ann @example.com", exitGood},
	{"user limits ann requests_per_second=100", exitGood},
	{"user defaults ann --time-zone UTC", exitGood},
	{"user pause ann", exitGood},
	{"user resume ann", exitGood},
	{"user disable ann", exitGood},
	{"user enable ann", exitGood},
	{"user end-sessions eve", exitMissing},
	{"key add ann --scope read --expires 24h", exitGood},
	{"key list", exitGood},
	{"key list ann --json", exitGood},
	{"key requests --key x", exitGood},
	{"key requests", exitUsage},
	{"key revoke ann x", exitMissing},
	{"login", exitGood},
	{"migrate", exitGood},
	{"provider list", exitGood},
	{"provider history --range day", exitGood},
	{"provider offline sg", exitMissing},
	{"provider online sg", exitMissing},
	{"provider drain sg", exitMissing},
	{"provider probe sg", exitMissing},
	{"provider suppressions sg", exitMissing},
	{"provider suppressions clear sg ann@example.com", exitMissing},
	{"block add --domain example.com", exitGood},
	{"block add", exitUsage},
	{"block list --json", exitGood},
	{"block remove x", exitMissing},
	{"suppression add bob@example.com --for 24h", exitGood},
	{"suppression list --user ann", exitGood},
	{"suppression show bob@example.com --json", exitGood},
	{"suppression import FOLDER/list.csv", exitGood},
	{"suppression export", exitGood},
	{"suppression remove bob@example.com --why asked", exitGood},
	{"template push FOLDER/templates --publish", exitGood},
	{"template list", exitGood},
	{"template show welcome --json", exitGood},
	{"template publish welcome 1", exitGood},
	{"template preview welcome", exitGood},
	{"template archive welcome", exitGood},
	{"endpoint add http://127.0.0.1:9/hook --header X-A:b", exitGood},
	{"endpoint list", exitGood},
	{"endpoint show x", exitMissing},
	{"endpoint attempts x", exitMissing},
	{"endpoint post x msg_1", exitMissing},
	{"endpoint test x", exitMissing},
	{"endpoint enable x", exitMissing},
	{"endpoint disable x", exitMissing},
	{"endpoint rotate x", exitMissing},
	{"endpoint replay x", exitMissing},
	{"endpoint remove x", exitMissing},
	{"send --from a@example.com --to b@example.org --subject s --dry-run", exitGood},
	{"send --from a@example.com --file FOLDER/people.csv --subject s --deliver-at 2099-01-01T00:00:00Z", exitUsage},
	{"send --from a@example.com --file FOLDER/people.csv --subject s --category news", exitGood},
	{"batch list --user ann", exitGood},
	{"batch show x", exitMissing},
	{"batch rejected x", exitMissing},
	{"batch reschedule x --deliver-at now", exitMissing},
	{"batch stop x", exitMissing},
	{"batch resume x", exitMissing},
	{"batch cancel x", exitMissing},
	{"batch try x", exitMissing},
	{"batch retry x --dry-run", exitMissing},
	{"batch release x", exitMissing},
	{"log list x --state failed", exitMissing},
	{"log search --part dan --from 24h", exitGood},
	{"log show x", exitMissing},
	{"log release x", exitMissing},
	{"message put FOLDER/messages.ndjson", exitGood},
	{"message show m", exitGood},
	{"release --from 24h", exitGood},
	{"hold list", exitGood},
	{"hold lift", exitGood},
	{"erase carl@example.com", exitGood},
	{"updates --events all", exitGood},
	{"updates --installation --json", exitGood},
	{"stats --user ann", exitGood},
	{"waiting", exitGood},
	{"queues", exitGood},
	{"workers", exitGood},
	{"parked list", exitGood},
	{"parked requeue x", exitMissing},
	{"parked discard x", exitMissing},
	{"unmatched list", exitGood},
	{"unmatched show x", exitMissing},
	{"audit --limit 2", exitGood},
	{"audit access", exitGood},
	{"check --user ann", exitGood},
	{"check --json --user eve", exitMissing},
	{"replay", exitGood},
}

// TestBothWays: each command that calls the API does the same with a process that serves as without one.
func TestBothWays(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"alone", "beside a server"} {
		t.Run(way, func(t *testing.T) {
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
			if way != "alone" {
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
			for _, c := range calls {
				var out, errs strings.Builder
				args := strings.Fields(strings.ReplaceAll(c.line, "FOLDER", folder))
				code := run(t.Context(), args, streams{out: &out, err: &errs}, env)
				require.Equal(t, int(c.code), code, "%s: %s%s", c.line, out.String(), errs.String())
			}
		})
	}
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	leaves(root, func(name string, _ *cobra.Command) {
		called := slices.ContainsFunc(calls, func(c struct {
			line string
			code exitCode
		}) bool {
			return strings.HasPrefix(c.line+" ", name+" ")
		})
		require.NotEqual(t, called, slices.Contains(actDirectly, name), "%s has a line above: %t", name, called)
	})
}

// otherwise are the operations that no command has as its only call, and what does.
var otherwise = map[string]string{
	"addTemplateVersion": "template push", "createTemplate": "template push", "templateVersions": "template show",
	"getKeyLimits": "user limits", "setKeyLimits": "user limits", "setUserLimits": "user limits",
	"setSenders": "user senders", "getUser": "all that print names", "listUserKeys": "key list",
	"getUsage": "user limits", "getCheck": "check, which recounts",
	"updateEndpoint": "nothing: it replaces all settings, with headers that no answer has",
}

// TestEveryOperationHasACommand: whatever the API can do, the command line can do.
func TestEveryOperationHasACommand(t *testing.T) {
	t.Parallel()
	has := map[string]bool{}
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	leaves(root, func(_ string, cmd *cobra.Command) { has[cmd.Annotations["operation"]] = true })
	for name := range operations() {
		require.NotEqual(t, has[name], otherwise[name] != "", "the operation %s has a command: %t", name, has[name])
	}
}
