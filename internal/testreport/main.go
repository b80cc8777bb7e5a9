// Command testreport judges the logs of "go test -json" that scripts/test wrote.
//
// It fails if a test failed, was skipped, or ran on the embedded backends only although it has a twin on real servers.
// A failed test that uses a real clock, a server or a browser runs again, alone, twice. If both runs pass, it is listed
// as flaky and does not fail the run. More than two flaky tests fail it. Other failed tests never run again.
//
// With -limit, a test that took longer runs again, alone, twice. It fails the run if it takes longer both times, unless a
// file lists it with a reason.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	limit := flag.Duration("limit", 0, "a test that takes longer fails the run (0: no limit)")
	slow := flag.String("slow", "", "files, separated by commas, that list tests which may take longer")
	names := flag.Bool("names", false, "print the names of all cases and judge nothing")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "Usage: testreport [-limit 2s] [-slow FILE] [-names] FOLDER")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	r := report{out: os.Stdout, again: goTest(ctx), limit: *limit}
	good, err := r.folder(flag.Arg(0), *slow, *names)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !good {
		cancel()
		os.Exit(1) //nolint:gocritic // cancel was called
	}
}

// goTest returns a function that runs a test alone, twice, and writes its output to a file.
func goTest(ctx context.Context) func(*failure, string) rerun {
	return func(f *failure, log string) rerun {
		out, err := os.Create(filepath.Clean(log))
		if err != nil {
			return rerun{}
		}
		defer func() { _ = out.Close() }()
		args := append([]string{"test"}, f.flags...)
		args = append(args, "-count=2", "-failfast", "-v", "-run", "^"+f.root()+"$", f.pkg)
		cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the flags are those of scripts/test
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		if cmd.Run() != nil {
			return rerun{}
		}
		text, err := os.ReadFile(filepath.Clean(log))
		if err != nil {
			return rerun{}
		}
		return readRerun(f.root(), string(text))
	}
}

// readRerun reads the output of go test -v. A test that skipped something has not passed.
func readRerun(test, output string) rerun {
	var times []time.Duration
	for line := range strings.Lines(output) {
		rest, ok := strings.CutPrefix(line, "--- PASS: "+test+" (")
		took, err := time.ParseDuration(strings.TrimSuffix(strings.TrimSpace(rest), ")"))
		if ok && err == nil {
			times = append(times, took)
		}
	}
	if len(times) != 2 || strings.Contains(output, "--- SKIP: ") {
		return rerun{}
	}
	return rerun{passed: true, shorter: slices.Min(times)}
}
