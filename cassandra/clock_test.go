package cassandra

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// A clock must continue from the quickest of its readings, and be read again after a
// while and when the wall clock was set.
func TestClock(t *testing.T) {
	t.Parallel()
	var (
		mine   = time.Now()
		wall   = mine.Add(-24 * time.Hour)
		server = mine.Add(time.Hour)
		reads  int
		took   = []time.Duration{400 * time.Millisecond, 10 * time.Millisecond, 200 * time.Millisecond}
	)
	pass := func(d time.Duration) { mine, wall, server = mine.Add(d), wall.Add(d), server.Add(d) }
	c := newClock(func() time.Time { return mine }, func(context.Context) (time.Time, error) {
		d := took[reads%len(took)]
		reads++
		pass(d / 2)
		at := server
		pass(d - d/2)
		return at, nil
	})
	c.wall = func() time.Time { return wall }
	says := func(want int) {
		t.Helper()
		got, err := c.time(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, server, got, time.Microsecond)
		require.WithinDuration(t, server, c.about(), time.Microsecond)
		require.Equal(t, want*clockReadings, reads)
	}
	says(1)
	pass(readingKeep / 2)
	says(1)
	pass(readingKeep)
	says(2)

	wall = wall.Add(-time.Hour) // the wall clock was set
	says(3)
	says(3)
	wall, server = wall.Add(time.Hour), server.Add(time.Hour) // the machine slept
	says(4)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.lock <- struct{}{} // another caller is reading it without an answer
	pass(2 * readingKeep)
	_, err := c.time(ended)
	require.ErrorIs(t, err, models.ErrUnavailable)
	<-c.lock
	c.read = func(context.Context) (time.Time, error) { return time.Time{}, models.ErrUnavailable }
	_, err = c.time(t.Context())
	require.ErrorIs(t, err, models.ErrUnavailable)
}

// An entry that is due by a clock that is ahead must still exist when it is due by the
// other clocks.
func TestEntryScheduledByClockAhead(t *testing.T) {
	const keep = 30 * 24 * time.Hour // after it was due
	const ahead = 2 * keep
	c := newConfig(t)
	c.Now = func() time.Time { return time.Now().Add(ahead) }
	s := open(t, c)
	e := models.AgendaEntry{Due: c.Now(), Kind: models.LookAtBatch, ID: models.NewBatchID(time.Now())}
	require.NoError(t, s.Schedule(t.Context(), e))
	rows, err := s.Engine().Scan(t.Context(), engineOf(s).tableOf("agenda").Table,
		binary.BigEndian.AppendUint32(nil, uint32(e.ID.Shard(s.Shards()))), shapes.Range{Limit: 10})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.InDelta(t, (ahead + keep).Seconds(), rows[0].TTL.Seconds(), 60)
}

// While no server answers, no caller may wait for more than one reading. A caller that
// gave up must not make the others fail.
func TestClockWithoutServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		c := newClock(time.Now, func(ctx context.Context) (time.Time, error) {
			reads++
			select {
			case <-time.After(10 * time.Second):
				return time.Time{}, models.ErrUnavailable
			case <-ctx.Done():
				return time.Time{}, ended(ctx)
			}
		})
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.time(hasty)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
		synctest.Wait()
		began := time.Now()
		for range 20 {
			all.Go(func() {
				_, err := c.time(t.Context())
				assert.ErrorIs(t, err, models.ErrUnavailable)
			})
		}
		all.Wait()
		require.Equal(t, 11*time.Second, time.Since(began))
		require.Equal(t, 2, reads)
		_, err := c.time(t.Context())
		require.ErrorIs(t, err, models.ErrUnavailable)
		require.Equal(t, 3, reads, "a later caller asks again")
	})
}
