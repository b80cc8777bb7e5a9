package templates

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChanges(t *testing.T) {
	t.Parallel()
	require.Equal(t, []change{{"", "a"}, {"-", "b"}, {"+", "x"}, {"", "c"}, {"+", "d"}}, changes("a\nb\nc", "a\nx\nc\nd"))
	require.Equal(t, []change{{"", "a"}}, changes("a", "a"))
	require.Len(t, changes(strings.Repeat("\n", 3000), "a"), 1)
}
