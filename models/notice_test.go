package models

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTextOfNotices: a notice says since when, and its reason; that no provider accepts mail says what happens to the
// mail.
func TestTextOfNotices(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 28, 10, 53, 41, 0, time.UTC)
	stopped := Notice{Kind: SendingStopped, Since: since, Why: "Mail is accepted and waits."}
	require.Equal(t, "No provider accepts mail since 10:53:41 UTC on 28 November. Mail is accepted and waits.",
		stopped.Text())
	stopped.Why = ""
	require.Equal(t, "No provider accepts mail since 10:53:41 UTC on 28 November.", stopped.Text())
	failing := Notice{Kind: FailoverStarted, Provider: "sg", Since: since, Why: "503"}
	require.Equal(t, "Calls to provider sg fail since 10:53:41 UTC on 28 November. Other providers carry its mail if they accept it. "+
		"Reason: 503", failing.Text())
}
