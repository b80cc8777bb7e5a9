package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/safedelivr/safedelivr/internal/app"
)

// manCommand writes the manual pages.
func manCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write a manual page for each command into a folder, for man",
		Long: `Write a manual page for each command into a folder, which is made if it does not exist. To read them:

  safedelivr man ~/.local/share/man/man1
  man safedelivr batch stop`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // everybody may read manuals
				return err
			}
			n := 0
			err := eachCommand(cmd.Root(), func(cmd *cobra.Command) error {
				n++
				path := filepath.Join(args[0], pageName(cmd)+".1")
				return os.WriteFile(path, []byte(manPage(cmd)), 0o644) //nolint:gosec // see above
			})
			if err == nil {
				fmt.Fprintf(c.out, "%s written to %s\n", count(n, "page"), args[0])
			}
			return err
		},
	}
}

// eachCommand calls do with a command and all below it that are shown.
func eachCommand(cmd *cobra.Command, do func(*cobra.Command) error) error {
	if err := do(cmd); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := eachCommand(sub, do); err != nil {
				return err
			}
		}
	}
	return nil
}

// pageName returns the name of a command's manual page.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manText escapes a text for a manual page.
var manText = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'")

// manPage returns the manual page of a command.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	long := cmd.Long
	if long == "" {
		long = cmd.Short
	}
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"Safedelivr\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n.SH "+
		"DESCRIPTION\n.nf\n%s\n.fi\n",
		strings.ToUpper(pageName(cmd)), app.Version(), manText.Replace(pageName(cmd)), manText.Replace(cmd.Short),
		manText.Replace(cmd.UseLine()), manText.Replace(long))
	if flags := flagsOf(cmd); len(flags) > 0 {
		b.WriteString(".SH OPTIONS\n")
		for _, f := range flags {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", manText.Replace(f[0]), manText.Replace(f[1]))
		}
	}
	if subs := cmd.Commands(); len(subs) > 0 {
		b.WriteString(".SH SEE ALSO\n")
		for _, sub := range subs {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, ".BR %s (1)\n", manText.Replace(pageName(sub)))
			}
		}
	}
	return b.String()
}

// flagsOf returns the flags of a command, with those of its noun, and their texts.
func flagsOf(cmd *cobra.Command) (out [][2]string) {
	add := func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		if !strings.Contains(usage, "default: ") && !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
			usage += " (default: " + f.DefValue + ")"
		}
		out = append(out, [2]string{strings.TrimSpace("--" + f.Name + " " + kind), usage})
	}
	cmd.LocalFlags().VisitAll(add)
	if cmd.HasParent() && cmd.Parent() != cmd.Root() {
		cmd.Parent().PersistentFlags().VisitAll(func(f *pflag.Flag) {
			if cmd.LocalFlags().Lookup(f.Name) == nil {
				add(f)
			}
		})
	}
	return out
}
