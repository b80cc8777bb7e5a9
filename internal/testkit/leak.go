package testkit

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakPatience is how long goroutines may take to end after the tests. On a busy machine that is longer than the half
// second which goleak waits.
const leakPatience = time.Minute

// VerifyNoLeaks runs the tests and exits with their code, or with 1 if they passed and goroutines are left, for
// TestMain.
func VerifyNoLeaks(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := leak(leakPatience); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines are left after the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leak waits until no goroutines are left, and returns those that are left after a time.
func leak(patience time.Duration) error {
	for end := time.Now().Add(patience); ; {
		if err := goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
