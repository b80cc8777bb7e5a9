package provider

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whoever may send names the domains: no number of them makes a worker grow.
func TestRefusedSendersAreBounded(t *testing.T) {
	t.Parallel()
	var s refusedSenders
	now := time.Now()
	for i := range 2 * maxSenders {
		s.refuse(fmt.Sprintf("d%d.test", i), now, now.Add(time.Minute))
	}
	require.Len(t, s.left(now), maxSenders)
	require.True(t, s.refuse("late.test", now.Add(time.Minute), now.Add(2*time.Minute)), "what is over makes room")
	require.Len(t, s.left(now.Add(time.Minute)), 1)
}
