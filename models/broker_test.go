package models

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestParkedWhy(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty":              "",
		"short":              "cannot be read",
		"exact":              strings.Repeat("x", MaxParkedWhy),
		"one more":           strings.Repeat("x", MaxParkedWhy+1),
		"long":               strings.Repeat("x", 1<<20),
		"runes of two bytes": strings.Repeat("ä", 1<<20),
		"shifted by one":     "x" + strings.Repeat("ä", 1<<20),
		"runes of four":      "x" + strings.Repeat("😀", MaxParkedWhy),
		"not UTF-8":          "a\xffb" + strings.Repeat("\xffx", 1<<20),
		"half a rune":        "x\xc3",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ParkedWhy(text)
			require.True(t, utf8.ValidString(got))
			require.LessOrEqual(t, len(got), MaxParkedWhy)
			require.Equal(t, got, ParkedWhy(got))
			if utf8.ValidString(text) && len(text) <= MaxParkedWhy {
				require.Equal(t, text, got)
			} else if len(text) > MaxParkedWhy {
				require.Greater(t, len(got), MaxParkedWhy-8, "no more is cut than must be")
			}
			why, ok := Park(text).IsPark()
			require.True(t, ok)
			require.Equal(t, got, why)
		})
	}
}
