package provider

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Users name the domains, so a worker keeps a bounded number of them.
func TestRefusedSendersAreBounded(t *testing.T) {
	t.Parallel()
	var s refusedSenders
	now := time.Now()
	for i := range 2 * maxSenders {
		s.refuse(fmt.Sprintf("d%d.test", i), now, now.Add(time.Minute))
	}
	require.Len(t, s.left(now), maxSenders)
	require.True(t, s.refuse("late.test", now.Add(time.Minute), now.Add(2*time.Minute)), "expired domains make room")
	require.Len(t, s.left(now.Add(time.Minute)), 1)
}
