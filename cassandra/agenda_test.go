package cassandra

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A mark that lies in the future, because a server's clock was ahead, is replaced
// by the next. SetAgendaMark itself stores none that does.
func TestAgendaMarkInFuture(t *testing.T) {
	s := open(t, newConfig(t))
	ctx, begun := t.Context(), time.Now()
	future := begun.AddDate(1, 0, 0)
	require.NoError(t, s.exec(ctx, plain, `INSERT INTO agenda_marks (shard, mark) VALUES (3, ?)`, future.UnixMilli()))
	require.NoError(t, s.SetAgendaMark(ctx, 3, time.Time{}), "a zero mark changes nothing")
	mark, err := s.AgendaMark(ctx, 3)
	require.NoError(t, err)
	require.WithinRange(t, mark, begun.Add(-10*time.Second), time.Now().Add(10*time.Second))
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	require.NoError(t, s.SetAgendaMark(ctx, 3, at))
	mark, err = s.AgendaMark(ctx, 3)
	require.NoError(t, err)
	require.Equal(t, at, mark)

	require.NoError(t, s.SetAgendaMark(ctx, 4, future))
	ms, err := s.mark(ctx, 4)
	require.NoError(t, err)
	require.WithinRange(t, timeOf(ms), begun.Add(-10*time.Second), time.Now().Add(10*time.Second))
}
