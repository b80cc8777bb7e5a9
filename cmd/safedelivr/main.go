// Command safedelivr is the whole product in one binary: serve, migrate,
// simulator, demo, and the commands for users and keys.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], streams{out: os.Stdout, err: os.Stderr}, nil)
	stop()
	os.Exit(code)
}
