package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

var (
	// typedCommand finds a command with its arguments, up to the end of the line or of what quotes it.
	typedCommand = regexp.MustCompile("\\bsafedelivr ([^\n`\"|;&)<\\\\]+)")
	// namedCommand finds a command without the program's name, like `show ID`.
	namedCommand = regexp.MustCompile("`([a-z]+(?: [a-z][a-z-]*)*) [A-Z]+(?: [A-Z]+)*`")
	word         = regexp.MustCompile(`^[a-z][a-z-]*$`)
	option       = regexp.MustCompile(`^--([a-z-]+)`)
)

// noCommands are words behind the name of the program where it is no command: names of connections, Python, sentences.
var noCommands = []string{"binary", "completion", "consume", "import", "is", "publish", "uses"}

// ofAllCommands are flags of each command, or of the program.
var ofAllCommands = []string{"config", "help", "version"}

// wrongCommand says what is wrong with the words that are typed behind the name of the program; "": nothing.
func wrongCommand(root *cobra.Command, typed string) string {
	typed, _, _ = strings.Cut(typed, ". ") // the next sentence
	words := strings.Fields(typed)
	if len(words) == 0 || !word.MatchString(words[0]) || slices.Contains(noCommands, words[0]) {
		return ""
	}
	cmd := root
	for _, w := range words {
		if flag := option.FindStringSubmatch(w); flag != nil {
			if cmd.Flag(flag[1]) == nil && !slices.Contains(ofAllCommands, flag[1]) {
				return fmt.Sprintf("%s has no --%s", cmd.CommandPath(), flag[1])
			}
			continue
		}
		at := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == w })
		switch {
		case at >= 0:
			cmd = cmd.Commands()[at]
		case word.MatchString(w) && !cmd.Runnable():
			return fmt.Sprintf("there is no command %s %s", cmd.CommandPath(), w)
		}
	}
	return ""
}

// TestCommandsInTexts: the commands and flags that documents, pages, alerts and texts of the program name exist.
func TestCommandsInTexts(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "safedelivr"}
	new(cli).addCommands(root)
	var names []string
	leaves(root, func(name string, _ *cobra.Command) { names = append(names, " "+name) })
	found := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		hidden := strings.HasPrefix(d.Name(), ".") && d.Name() != ".."
		switch ext := filepath.Ext(path); {
		case err != nil:
			return err
		case d.IsDir() && (hidden || d.Name() == "node_modules" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir(), strings.HasSuffix(path, "_test.go"),
			!slices.Contains([]string{".md", ".go", ".html"}, ext) && filepath.Base(path) != "alerts.yaml":
			return nil
		}
		raw, err := os.ReadFile(path)
		for _, m := range typedCommand.FindAllStringSubmatch(string(raw), -1) {
			found++
			if wrong := wrongCommand(root, m[1]); wrong != "" {
				t.Errorf("%s: %q: %s", path, m[0], wrong)
			}
		}
		if filepath.Ext(path) == ".md" {
			for _, m := range namedCommand.FindAllStringSubmatch(string(raw), -1) {
				known := slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, " "+m[1]) })
				if !known && !strings.HasPrefix(m[1], "safedelivr ") {
					t.Errorf("%s: there is no command %s", path, m[0])
				}
			}
		}
		return err
	}))
	require.Greater(t, found, 200)
}
