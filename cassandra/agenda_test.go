package cassandra

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/store/shapes"
)

// A mark that lies in the future, because a server's clock was ahead, is replaced
// by the next. SetAgendaMark itself stores none that does.
func TestAgendaMarkInFuture(t *testing.T) {
	s := open(t, sharedConfig(t))
	ctx, begun := t.Context(), time.Now()
	future := begun.AddDate(1, 0, 0)
	marks := engineOf(s).tableOf("agenda_marks").Table
	require.NoError(t, s.Engine().Put(ctx, shapes.Put{Table: marks, Row: shapes.Row{Part: []byte{0, 0, 0, 3}, Version: 1,
		Value: binary.BigEndian.AppendUint64(nil, uint64(future.UnixMilli()))}}))
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
	found, err := s.Engine().Find(ctx, shapes.Address{Table: marks, Part: []byte{0, 0, 0, 4}})
	require.NoError(t, err)
	stored := time.UnixMilli(int64(binary.BigEndian.Uint64(found[0][0].Value)))
	require.WithinRange(t, stored, begun.Add(-10*time.Second), time.Now().Add(10*time.Second))
}
