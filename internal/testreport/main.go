// Command testreport judges the logs of "go test -json" that scripts/test wrote.
//
// It fails if a test failed, was skipped, or ran on the embedded backends only although it has a twin on real servers.
// A failed test that uses a real clock, a server or a browser runs again, alone, twice. If both runs pass, it is listed
// as flaky and does not fail the run. More than two flaky tests fail it. Other tests never run again.
//
// With -limit, a test that took longer fails the run, unless a file lists it with a reason.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
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
func goTest(ctx context.Context) func(*failure, string) bool {
	return func(f *failure, log string) bool {
		out, err := os.Create(filepath.Clean(log))
		if err != nil {
			return false
		}
		defer func() { _ = out.Close() }()
		args := append([]string{"test"}, f.flags...)
		args = append(args, "-count=2", "-failfast", "-v", "-run", "^"+f.root()+"$", f.pkg)
		cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the flags are those of scripts/test
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		if cmd.Run() != nil {
			return false
		}
		text, err := os.ReadFile(filepath.Clean(log))
		return err == nil && passedTwice(f.root(), string(text))
	}
}

// passedTwice reports whether the output of go test -v says that a test passed twice, and skipped nothing.
func passedTwice(test, output string) bool {
	return strings.Count("\n"+output, "\n--- PASS: "+test+" ") == 2 && !strings.Contains(output, "--- SKIP: ")
}
