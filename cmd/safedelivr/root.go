package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/config"
)

// streams are where commands write.
type streams struct{ out, err io.Writer }

// cli is what all commands share.
type cli struct {
	streams
	environ    []string // nil: the process's own
	args       []string
	app        *app   // the process that runs a handed-over command; else nil
	ranBy      string // who handed it over
	configFile string
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, s streams, environ []string) int {
	return (&cli{streams: s, environ: environ, args: args}).run(ctx)
}

// run executes the command line of c.
func (c *cli) run(ctx context.Context) int {
	root := &cobra.Command{
		Use:           "safedelivr",
		Short:         "An email gateway that fails over between providers, and loses and doubles nothing",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetArgs(c.args)
	root.PersistentFlags().StringVarP(&c.configFile, "config", "c", "", "configuration file (YAML); the environment goes over it")
	root.AddCommand(c.serveCommand(), c.migrateCommand(), c.simulatorCommand(), c.demoCommand(), c.userCommand(), c.keyCommand(), c.loginCommand(), c.healthCommand(), c.versionCommand())
	root.AddCommand(c.batchCommand(), c.logCommand(), c.releaseCommand(), c.providerCommand(), c.blockCommand(), c.queuesCommand(), c.parkedCommand(), c.workersCommand(), c.auditCommand())
	root.AddCommand(c.pauseCommands()...)
	root.AddCommand(c.checkCommand(), c.replayCommand(), c.holdCommand(), c.rehearseCommand(), c.rehearsedCommand())
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
		return 1
	}
	return 0
}

// unknownCommand is an error where the arguments name a group of commands and then
// none of it: cobra would show the group's help, and call that a success.
func unknownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err == nil && !cmd.Runnable() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("unknown command %q for %q; see %s --help", rest[0], cmd.CommandPath(), cmd.CommandPath())
	}
	return nil // whatever else is wrong cobra finds, who knows more commands than are there yet
}

// takes checks how many arguments a command has: least to most of them, any number
// from least on where most is negative.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return fmt.Errorf("usage: %s", cmd.UseLine())
		}
		return nil
	}
}

// exitCode ends the program without another word.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// load reads the configuration. That of a command that was handed over is the
// server's own, with the address at which it really listens.
func (c *cli) load() (config.Config, error) {
	if c.app != nil {
		cfg := *c.app.cfg
		cfg.Listen = c.app.addr()
		return cfg, nil
	}
	cfg, err := config.Load(c.configFile, c.environ)
	if err != nil {
		return cfg, fmt.Errorf("the configuration has mistakes:\n%w", err)
	}
	return cfg, nil
}

func (c *cli) logger(cfg *config.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Log)) // checked by config
	o := &slog.HandlerOptions{Level: level}
	if cfg.LogJSON {
		return slog.New(slog.NewJSONHandler(c.err, o))
	}
	return slog.New(slog.NewTextHandler(c.err, o))
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: takes(0, 0),
		Run: func(*cobra.Command, []string) { fmt.Fprintln(c.out, version()) },
	}
}

// version is the module's version, or the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v += "-" + s.Value[:12]
			}
		}
	}
	return "safedelivr " + v + " " + info.GoVersion
}
