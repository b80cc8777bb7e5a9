package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// childMark makes the test binary run the product instead of the tests.
const childMark = "SAFEDELIVR_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childMark) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := run(ctx, os.Args[1:], streams{out: os.Stdout, err: os.Stderr}, nil)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}
