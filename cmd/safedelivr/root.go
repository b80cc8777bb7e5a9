package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
)

// streams are where commands write.
type streams struct{ out, err io.Writer }

// cli is what all commands share.
type cli struct {
	streams
	environ    []string // nil: that of the process
	args       []string
	server     *server // the process that runs a handed-over command; nil in the process of the user
	ranBy      string  // who handed it over
	configFile string
}

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, s streams, environ []string) int {
	return (&cli{streams: s, environ: environ, args: args}).run(ctx)
}

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
	root.PersistentFlags().StringVarP(&c.configFile, "config", "c", "",
		"configuration file (YAML); the environment takes precedence")
	root.AddCommand(
		c.serveCommand(), c.migrateCommand(), c.backupCommand(), c.eraseCommand(), c.versionCommand(), c.healthCommand(),
		c.simulatorCommand(), c.demoCommand(), c.rehearseCommand(), c.rehearsedCommand(),
		c.userCommand(), c.keyCommand(), c.loginCommand(),
		c.batchCommand(), c.logCommand(), c.releaseCommand(), c.holdCommand(), c.blockCommand(),
		c.pauseUserCommand(), c.resumeUserCommand(), c.providerCommand(),
		c.queuesCommand(), c.parkedCommand(), c.workersCommand(), c.auditCommand(), c.checkCommand(), c.replayCommand(),
	)
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

// handedOver are the commands that another process may hand over to the server.
func handedOver() app.Commands {
	return app.Commands{
		Names: []string{"user", "key", "login", "batch", "log", "release", "pause-user", "resume-user", "provider", "block",
			"queues", "parked", "workers", "audit", "check", "replay", "hold", "erase"},
		Run: func(ctx context.Context, a *app.App, cmd app.Command) int {
			c := &cli{
				streams: streams{out: cmd.Out, err: cmd.Err},
				args:    cmd.Args,
				server:  serverOf(a),
				ranBy:   cmd.RanBy,
			}
			return c.run(ctx)
		},
	}
}

// unknownCommand returns an error if the arguments name a group of commands and then none of the group. Cobra would
// show the group's help and call that a success.
func unknownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err == nil && !cmd.Runnable() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("unknown command %q for %q; see %s --help", rest[0], cmd.CommandPath(), cmd.CommandPath())
	}
	return nil // cobra finds other mistakes; it adds commands of its own when it executes
}

// takes requires from least to most arguments. A negative most is no limit.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			missing := "an argument"
			if names := strings.Fields(cmd.Use)[1:]; len(names) >= least {
				missing = strings.Join(names[len(args):least], " and ")
			}
			return fmt.Errorf("%s missing; usage: %s", missing, cmd.UseLine())
		case most >= 0 && len(args) > most:
			return fmt.Errorf("unexpected argument %q; usage: %s", args[most], cmd.UseLine())
		}
		return nil
	}
}

// exitCode ends the program without a message.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// env returns the environment of the command.
func (c *cli) env() []string {
	if c.environ != nil {
		return c.environ
	}
	return os.Environ()
}

// load reads the configuration. A handed-over command has that of the server, with the address that it listens on.
func (c *cli) load() (config.Config, error) {
	if c.server != nil {
		return c.server.cfg, nil
	}
	cfg, err := config.Load(c.configFile, c.environ)
	if err != nil {
		return cfg, mistakes(err)
	}
	return cfg, nil
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

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  takes(0, 0),
		Run:   func(*cobra.Command, []string) { fmt.Fprintln(c.out, app.Version()) },
	}
}
