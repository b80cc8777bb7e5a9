package testkit

import (
	"cmp"
	"slices"
	"testing"
)

// SameLines fails a test if two lists differ, and prints only the lines that one of them lacks.
func SameLines(t testing.TB, want, got []string, why string) {
	t.Helper()
	if !slices.Equal(want, got) {
		t.Errorf("%s:\n%s", why, cmp.Or(missing("- ", want, got)+missing("+ ", got, want), "the order differs"))
	}
}

// missing returns the lines of one list that another one lacks.
func missing(sign string, from, in []string) (out string) {
	left := slices.Clone(in)
	for _, line := range from {
		if i := slices.Index(left, line); i >= 0 {
			left = slices.Delete(left, i, i+1)
		} else {
			out += sign + line + "\n"
		}
	}
	return out
}
