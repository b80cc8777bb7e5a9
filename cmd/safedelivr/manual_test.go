package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// referenceMark is where the generated part of docs/commands.md begins.
const referenceMark = "## Reference\n"

// reference returns the generated part of docs/commands.md: each command with its flags.
func reference(t *testing.T) string {
	t.Helper()
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	var b strings.Builder
	b.WriteString(referenceMark + "\nGenerated from the commands: see `TestReference`. Every command has `--config " +
		"FILE` and `--help`.\n")
	cell := strings.NewReplacer("|", "\\|", "\n", " ", "{{", "{ {", "<", "&lt;")
	require.NoError(t, eachCommand(root, func(cmd *cobra.Command) error {
		if !cmd.Runnable() {
			return nil
		}
		fmt.Fprintf(&b, "\n### `%s`\n\n%s.\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"), cell.Replace(cmd.Short))
		if flags := flagsOf(cmd); len(flags) > 0 {
			b.WriteString("\n| flag | meaning |\n|---|---|\n")
			for _, f := range flags {
				fmt.Fprintf(&b, "| `%s` | %s |\n", f[0], cell.Replace(f[1]))
			}
		}
		return nil
	}))
	return b.String()
}

// TestReference: docs/commands.md has each command with its flags. To write them anew:
// SAFEDELIVR_TEST_UPDATE=yes go test ./cmd/safedelivr -run TestReference.
func TestReference(t *testing.T) {
	t.Parallel()
	const file = "../../docs/commands.md"
	want := reference(t)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	before, got, _ := strings.Cut(string(raw), referenceMark)
	if os.Getenv("SAFEDELIVR_TEST_UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, []byte(before+want), 0o644)) //nolint:gosec // a document
		return
	}
	testkit.SameLines(t, strings.Split(want, "\n"), strings.Split(referenceMark+got, "\n"),
		"docs/commands.md is not up to date: see the comment of this test")
}

// TestManual: each command that is shown has a manual page with its flags and the commands below it.
func TestManual(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "man1")
	out, _ := typed(t, 0, "", "man", folder)
	pages, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Contains(t, out, fmt.Sprintf("%d pages written to", len(pages)))
	for page, wants := range map[string][]string{
		"safedelivr.1":            {".BR safedelivr\\-batch (1)", "Exit codes:"},
		"safedelivr-batch.1":      {".BR safedelivr\\-batch\\-stop (1)"},
		"safedelivr-batch-stop.1": {`.TH "SAFEDELIVR-BATCH-STOP" 1`, ".B safedelivr batch stop ID", ".B \\-\\-why string"},
	} {
		raw, err := os.ReadFile(filepath.Join(folder, page))
		require.NoError(t, err)
		for _, want := range wants {
			require.Contains(t, string(raw), want, page)
		}
	}
}
