package simulator_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestModesOfPage: docs/simulator.md has a row for each mode, as the code describes it, and no other.
func TestModesOfPage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/simulator.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(raw), "<!-- modes -->\n")
	require.True(t, found)
	got, _, found := strings.Cut(rest, "<!-- end -->")
	require.True(t, found)
	want := "\n| mode | what happens |\n|---|---|\n"
	for _, m := range simulator.Modes() {
		require.NoError(t, simulator.Fault{Mode: m.Example}.Validate())
		want += fmt.Sprintf("| `%s` | %s |\n", m.Example, m.Effect)
	}
	require.Equal(t, want+"\n", got)
}
