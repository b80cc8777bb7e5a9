package table

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCellsAreNoFormulas: a cell of an export is no formula, whichever separator a spreadsheet uses.
func TestCellsAreNoFormulas(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Ann":         "Ann",
		"a-b; c+d":    "a-b; c+d",
		"=1+1":        "'=1+1",
		"'=1":         "''=1",
		"a;=1+1":      "a;'=1+1",
		"a\t@SUM(A1)": "a\t'@SUM(A1)",
		"\t=1":        "'\t'=1",
		`a;"=1"`:      `a;"'=1"`,
		"a; -1":       "a; '-1",
		"a\n=1":       "a\n'=1",
		"a|\r=1":      "a|'\r'=1",
	} {
		require.Equal(t, want, Harmless(in), in)
		require.Equal(t, in, Original(want), in)
	}
	require.Equal(t, "-1; 'a'", Original("-1; 'a'"), "it was not exported")
}

// FuzzCell: Original undoes exactly what Harmless does.
func FuzzCell(f *testing.F) {
	for _, s := range []string{"", "=1", "'=1", "''\t\t=", "a;'-'|\r\n@", "\xff=", `" '+`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		require.Equal(t, s, Original(Harmless(s)))
	})
}
