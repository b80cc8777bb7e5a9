package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/operation"
)

// withoutCompletion are the arguments with a part of a path that is in no list.
var withoutCompletion = []string{"endpoint post POST", "message show ID"}

// TestCompletionOfArguments: each argument with a part of a path completes from a list whose items have what it names.
func TestCompletionOfArguments(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	var none, outside []string
	leaves(root, func(name string, cmd *cobra.Command) {
		op := operations()[cmd.Annotations["operation"]]
		parts := strings.Count(op.Path(), "{")
		if outsidePaths[cmd.CommandPath()] != "" {
			outside, parts = append(outside, cmd.CommandPath()), 1
		}
		words := strings.Fields(cmd.Use)[1:]
		require.GreaterOrEqual(t, len(words), parts, cmd.Use)
		for n, word := range words {
			r, member := valuesOf(cmd, make([]string, n))
			switch {
			case n >= parts:
				require.True(t, r == nil || word == "…]", cmd.Use)
				continue
			case r == nil:
				none = append(none, name+" "+word)
				continue
			}
			list, _ := itemsOf(&r.op)
			answer := operation.Fields(r.op.Out)
			items := answer[slices.IndexFunc(answer, func(f operation.Field) bool { return f.Name == list })].Field.Type.Elem()
			require.True(t, slices.ContainsFunc(operation.Fields(items), func(f operation.Field) bool {
				return f.Name == member && f.Field.Type.Kind() == reflect.String
			}), "%s: an item of %s has no %s", name, r.op.Name, member)
		}
	})
	require.Equal(t, withoutCompletion, none)
	require.Len(t, outside, len(outsidePaths), "a command does not exist")
}

// TestCompletion: arguments and flags complete from the lists of whom the command is about.
func TestCompletion(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "welcome"), 0o700))
	for _, name := range []string{"subject.txt", "body.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "welcome", name), []byte("Hello"), 0o600))
	}
	d.run("template push " + dir + " --user ada")
	d.run("user add eve")
	d.run("user pause eve")
	d.run("key add ada")
	d.run("key add eve")
	d.run("endpoint add https://example.com/hook --user ada")
	d.run("endpoint add https://example.com/operators --installation")
	d.run("suppression add ann@example.com --user ada")
	d.run("suppression add bob@example.com")
	d.run("block add --domain example.com --why spam")
	d.batch()
	id := regexp.MustCompile(`(?m)^[0-9a-z.-]{12,}`)
	const files, noFiles = ":0\n", ":4\n"
	for line, want := range map[string]string{
		"batch show ":                    "ID\ts\n" + noFiles,
		"batch rejected ":                "ID\ts\n" + noFiles,
		"batch show x ":                  noFiles,
		"log list ":                      "ID\ts\n" + noFiles,
		"user resume ":                   "ada\neve\tpaused\n" + noFiles,
		"key list ":                      "ada\neve\tpaused\n" + noFiles,
		"batch list --user ":             "ada\neve\tpaused\n" + noFiles,
		"user add ":                      files,
		"template push ":                 files,
		"template show --user ada ":      "welcome\n" + noFiles,
		"template preview --user ada ":   "welcome\n" + noFiles,
		"template show --user eve ":      noFiles,
		"endpoint show --user ada ":      "ID\thttps://example.com/hook\n" + noFiles,
		"endpoint show --installation ":  "ID\thttps://example.com/operators\n" + noFiles,
		"suppression remove --user ada ": "ann@example.com\tmanual\n" + noFiles,
		"suppression remove ":            "bob@example.com\tmanual\n" + noFiles,
		"block remove ":                  "ID\tspam\n" + noFiles,
		"key revoke ada ":                "ID\tada\n" + noFiles,
		"provider check ":                "sg\n" + noFiles,
		"provider check sg ":             "sg\n" + noFiles,
		"provider offline sg ":           noFiles,
		"send --provider ":               "sg\n" + noFiles,
		"init --provider ":               files,
	} {
		out, _ := d.run("__complete " + line + "x")
		require.Equal(t, want, id.ReplaceAllString(out, "ID"), line)
	}
}
