package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRatios: ratios are those of each round, and a row is worse if it is in every round. More of a rate is better, and
// less of everything else.
func TestRatios(t *testing.T) {
	t.Parallel()
	rows := map[string]*figures{
		"rate":  {"mails/s", [2][]float64{{100, 200, 100}, {90, 190, 120}}},
		"slow":  {"mails/s", [2][]float64{{100, 200, 100}, {90, 190, 99}}},
		"time":  {"s", [2][]float64{{10, 20, 10}, {5, 8, 6}}},
		"large": {"MB", [2][]float64{{10, 20, 10}, {11, 21, 12}}},
	}
	var b strings.Builder
	require.EqualError(t, printRatios(&b, rows), "worse in every round: large; slow")
	require.Contains(t, b.String(), "| time | 10.0 s | 6.0 s | 0.50 | 0.40 to 0.60 |\n")
	require.Contains(t, b.String(), "| rate | 100 mails/s | 120 mails/s | 0.95 | 0.90 to 1.20 |\n")

	rows = map[string]*figures{"rate": {"mails/s", [2][]float64{{100}, nil}}}
	require.Error(t, printRatios(&b, rows))
}
