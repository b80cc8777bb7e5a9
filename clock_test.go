package safedelivr_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// waits is the number of places where tests wait for a wall clock. It may only fall.
const waits = 13

// onWallClock are the folders whose tests run whole programs or servers, which have no other clock.
var onWallClock = []string{"e2e/", "lab/drill/", "cassandra/", "rabbit/", "postgres/"}

// waiting matches a wait for a time, or for a state that is looked at again and again.
var waiting = regexp.MustCompile(`\b(Eventually|Eventuallyf|EventuallyWithT|Never)\(|time\.Sleep\(`)

// TestWallClock counts the waits in tests of other folders. See docs/testing.md.
func TestWallClock(t *testing.T) {
	t.Parallel()
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, folder := range onWallClock {
			if strings.HasPrefix(filepath.ToSlash(path), folder) {
				return nil
			}
		}
		raw, err := os.ReadFile(filepath.Clean(path))
		if err != nil || strings.Contains(string(raw), "//go:build browser") {
			return err
		}
		if !strings.Contains(string(raw), "testing/synctest") {
			found += len(waiting.FindAll(raw, -1))
		}
		return nil
	}))
	require.LessOrEqual(t, found, waits, "wait for a signal, or use testing/synctest")
	require.Equal(t, waits, found, "it fell: change the constant, too")
}
