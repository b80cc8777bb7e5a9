package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestOutageTries: while the broker is down, one try is made each second and all others fail
// at once.
func TestOutageTries(t *testing.T) {
	t.Parallel()
	var o Outage
	now := time.Now()
	require.True(t, o.Begin(now))
	o.End(now, nil)
	_, ok := o.UnannouncedSince()
	require.False(t, ok)
	require.True(t, o.Begin(now))
	o.End(now, models.ErrUnroutable)
	require.True(t, o.Begin(now), "the broker is up")
	down := fmt.Errorf("%w: down", models.ErrUnavailable)
	o.End(now, down)
	since, ok := o.UnannouncedSince()
	require.True(t, ok)
	require.Equal(t, now, since)
	require.False(t, o.Begin(now.Add(time.Second/2)))
	require.True(t, o.Begin(now.Add(time.Second)))
	require.False(t, o.Begin(now.Add(time.Second)), "one try at a time")
	o.End(now.Add(2*time.Second), down)
	require.False(t, o.Begin(now.Add(5*time.Second/2)))
	require.True(t, o.Begin(now.Add(3*time.Second)))
	o.End(now.Add(3*time.Second), nil)
	require.True(t, o.Begin(now.Add(3*time.Second)))
	require.True(t, o.Begin(now.Add(3*time.Second)), "the broker is back")

	o.CaughtUp(now.Add(time.Second)) // others failed later
	since, ok = o.UnannouncedSince()
	require.True(t, ok)
	require.Equal(t, now.Add(time.Second), since)
	o.CaughtUp(now.Add(4 * time.Second))
	_, ok = o.UnannouncedSince()
	require.False(t, ok)
}
