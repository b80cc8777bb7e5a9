package mail

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDidWords checks that an unknown number of calls is not shown as none.
func TestDidWords(t *testing.T) {
	t.Parallel()
	require.NotContains(t, didWords("stop", "0", "", ""), "started")
	require.Contains(t, didWords("stop", "2", "", ""), "Calls with 2 messages had already started")
	require.Contains(t, didWords("cancel", uncounted, "", ""), "could not be counted")
	require.NotContains(t, didWords("retry", uncounted, "", ""), "counted")
	require.Empty(t, didWords("nothing", "2", "", ""))
	require.Contains(t, didWords("stop", "0", "5", ""), "5 messages wait.")
	require.Contains(t, didWords("cancel", "0", "1", ""), "1 message is cancelled.")
	require.Contains(t, didWords("release", "0", "1", ""), "1 held message is queued again.")
	require.Contains(t, didWords("retry", "0", "0", ""), "Nothing changed")
}
