package condition_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/condition"
)

// TestTableOfPage: docs/operating.md says where each condition is shown, as the code does.
func TestTableOfPage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(raw), "<!-- conditions -->\n")
	require.True(t, found)
	got, _, found := strings.Cut(rest, "<!-- end -->")
	require.True(t, found)
	head, line := "\n| condition |", "|---|"
	for _, place := range condition.Places {
		head, line = head+" "+string(place)+" |", line+":-:|"
	}
	want := head + "\n" + line + "\n"
	for _, kind := range condition.Kinds {
		want += "| `" + string(kind) + "` |"
		for _, place := range condition.Places {
			mark := " |"
			if slices.Contains(condition.Shown[kind], place) {
				mark = " yes |"
			}
			want += mark
		}
		want += "\n"
	}
	require.Equal(t, want+"\n", got)
}
