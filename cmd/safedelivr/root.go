package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/dnscheck"
	"github.com/safedelivr/safedelivr/internal/setup"
)

// streams are where commands write.
type streams struct{ out, err io.Writer }

// cli is what all commands share.
type cli struct {
	streams
	in         io.Reader // nil: that of the process
	environ    []string  // nil: that of the process
	args       []string
	handler    http.Handler      // of the API; nil: that of the process that serves, or of this one
	by         string            // who gives the command; empty: the user of the process
	flags      map[string]string // names of the flags of the command by the fields that they set
	configFile string
	resolver   dnscheck.Resolver // nil: that of the system
	json       bool              // the flag --json
	began      bool              // the command line was understood
}

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, s streams, environ []string) int {
	return (&cli{streams: s, environ: environ, args: args}).run(ctx)
}

func (c *cli) run(ctx context.Context) int {
	const what = "An email gateway that fails over between providers, and loses and doubles nothing"
	root := &cobra.Command{
		Use:           "safedelivr",
		Short:         what,
		SilenceUsage:  true,
		SilenceErrors: true,
		Long:          what + exitHelp(),
		Version:       app.Build(),
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetArgs(c.args)
	root.PersistentFlags().StringVarP(
		&c.configFile,
		"config",
		"c",
		"",
		"configuration file (YAML); the environment takes precedence (default: SAFEDELIVR_CONFIG, or safedelivr.yaml)",
	)
	c.addCommands(root)
	err := unknownCommand(root, c.args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err != nil {
		var quiet exitCode
		if errors.As(err, &quiet) {
			return int(quiet)
		}
		fmt.Fprintln(c.err, "safedelivr:", err)
		return int(c.codeOf(err))
	}
	return int(exitGood)
}

// runGroup is the group of commands that act by themselves, and of help.
const runGroup = "run"

// addCommands adds all commands, in groups.
func (c *cli) addCommands(root *cobra.Command) {
	add := func(id, title string, commands ...func(*cli) *cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, command := range commands {
			cmd := command(c)
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	add(runGroup, "Run:", initCommand, serveCommand, healthCommand, loginCommand, migrateCommand, backupCommand,
		demoCommand, rehearseCommand, simulatorCommand, versionCommand, manCommand, rehearsedCommand)
	add("send", "Send:", sendCommand, batchCommand, logCommand, messageCommand, templateCommand, endpointCommand)
	add("operate", "Operate:", userCommand, keyCommand, providerCommand, blockCommand, suppressionCommand, updatesCommand,
		statsCommand, waitingCommand, queuesCommand, workersCommand, auditCommand)
	add("repair", "Repair:", checkCommand, parkedCommand, unmatchedCommand, releaseCommand, holdCommand, replayCommand,
		eraseCommand)
	root.SetHelpCommandGroupID(runGroup)
	root.SetCompletionCommandGroupID(runGroup)
	root.SetFlagErrorFunc(unknownFlag)
	c.completeFlags(root)
	c.noteBegin(root)
}

// unknownCommand returns an error if the arguments name no command, or a group of commands and then none of the group.
// Cobra would show the group's help and call that a success.
func unknownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil {
		cmd, rest = root, slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "-") })
	}
	if cmd.Runnable() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") ||
		slices.Contains([]string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}, rest[0]) {
		return nil // cobra finds other mistakes; it adds commands of its own when it executes
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	return fmt.Errorf("unknown command %q for %q%s; see %s --help", rest[0], cmd.CommandPath(),
		didYouMean(rest[0], names), cmd.CommandPath())
}

// unknownFlag adds to the error about a flag which one was meant.
func unknownFlag(cmd *cobra.Command, err error) error {
	typed, ok := strings.CutPrefix(err.Error(), "unknown flag: ")
	if !ok {
		return err
	}
	var names []string
	add := func(f *pflag.Flag) { names = append(names, "--"+f.Name) }
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	return fmt.Errorf("%w%s; see %s --help", err, didYouMean(typed, names), cmd.CommandPath())
}

// didYouMean suggests the nearest of names, if one is near.
func didYouMean(typed string, names []string) string {
	if name := config.Nearest(typed, names); name != "" {
		return fmt.Sprintf(" (did you mean %q?)", name)
	}
	return ""
}

// takes requires the arguments that the use of a command names. Those in brackets may be left out, and … is any number.
func takes(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	if i := slices.IndexFunc(names, func(word string) bool { return word[0] == '-' }); i >= 0 {
		names = names[:i]
	}
	least := slices.IndexFunc(names, func(word string) bool { return word[0] == '[' })
	if least < 0 {
		least = len(names)
	}
	switch {
	case len(args) < least:
		return fmt.Errorf("%s missing; usage: %s", strings.Join(names[len(args):least], " and "), cmd.UseLine())
	case len(args) > len(names) && !strings.Contains(cmd.Use, "…"):
		return fmt.Errorf("unexpected argument %q; usage: %s", args[len(names)], cmd.UseLine())
	}
	return nil
}

// stdin returns the input of the command.
func (c *cli) stdin() io.Reader {
	if c.in != nil {
		return c.in
	}
	return os.Stdin
}

// env returns the environment of the command.
func (c *cli) env() []string {
	if c.environ != nil {
		return c.environ
	}
	return os.Environ()
}

// load reads the configuration.
func (c *cli) load() (config.Config, error) {
	cfg, err := config.Load(c.configPath(), c.environ)
	if err != nil {
		return cfg, mistakes(err)
	}
	return cfg, nil
}

// configPath returns the configuration file: that of the flag, of SAFEDELIVR_CONFIG, or the one in this folder that
// init has made; "" if there is none.
func (c *cli) configPath() string {
	if c.configFile != "" {
		return c.configFile
	}
	for _, v := range slices.Backward(c.env()) {
		if path, ok := strings.CutPrefix(v, "SAFEDELIVR_CONFIG="); ok {
			return path
		}
	}
	if _, err := os.Stat(setup.ConfigFile); err == nil && c.environ == nil {
		return setup.ConfigFile
	}
	return ""
}

// mistakes returns the error of a configuration with mistakes.
func mistakes(err error) error {
	return fmt.Errorf("the configuration has mistakes:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  "))
}

func (c *cli) logger(cfg *config.Config) *slog.Logger {
	return c.loggerWith(cfg, &slog.HandlerOptions{Level: logLevel(cfg)})
}

// logLevel returns the configured level of the log.
func logLevel(cfg *config.Config) (level slog.Level) {
	_ = level.UnmarshalText([]byte(cfg.Log)) // config has checked it
	return level
}

func (c *cli) loggerWith(cfg *config.Config, o *slog.HandlerOptions) *slog.Logger {
	if cfg.LogJSON {
		return slog.New(slog.NewJSONHandler(c.err, o))
	}
	return slog.New(slog.NewTextHandler(c.err, o))
}

func versionCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and its date",
		Run:   func(*cobra.Command, []string) { fmt.Fprintln(c.out, app.Build()) },
	}
}
