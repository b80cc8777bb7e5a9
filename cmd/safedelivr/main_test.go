package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
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

// childEnv returns the environment of a process that runs the product, without the settings of this process.
func childEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "SAFEDELIVR_") && !strings.HasPrefix(v, "SAFEDELIVR_TEST_")
	})
	return append(env, childMark+"=yes")
}
