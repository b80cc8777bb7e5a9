//go:build full

package models

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Scanning takes time linear in the length of any text. The quadratic scan of one of
// these took minutes.
func TestPlaceholderScanIsLinear(t *testing.T) {
	const size = 256 << 10
	scan := func(unit, end string, size int) time.Duration {
		s := strings.Repeat(unit, size/len(unit)) + end
		best := time.Hour
		for range 3 {
			start, n := time.Now(), 0
			EachPlaceholder(s, func(x string) { n += len(x) }, func(string) {})
			MalformedPlaceholder(s)
			require.LessOrEqual(t, n, len(s))
			best = min(best, time.Since(start))
		}
		return best
	}
	for _, unit := range []string{"{", "{{", "{{a", "{{ ", "{{a ", "{{a}", " ", "{ {", "{{é"} {
		for _, end := range []string{"", "}}"} {
			linear := false
			for try := 0; try < 10 && !linear; try++ { // other processes may disturb some of them
				linear = scan(unit, end, 4*size) < 10*scan(unit, end, size)+5*time.Millisecond
			}
			require.True(t, linear, "four times of %q cost more than ten times as much", unit)
		}
	}
}
