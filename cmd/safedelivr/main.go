// Command safedelivr is an email gateway in one binary: the server, its commands, a demonstration, a drill of faults
// and simulated providers.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // time zones of batches, also where the system has none
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], streams{out: os.Stdout, err: os.Stderr}, nil)
	stop()
	os.Exit(code)
}
