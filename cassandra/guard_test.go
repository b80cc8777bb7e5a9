package cassandra

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestAlteredReplication: a process makes no compare-and-set after the keyspace was replicated to a second data centre,
// in which another process could decide otherwise. It goes on when that has ended. What cannot be read changes nothing.
func TestAlteredReplication(t *testing.T) {
	t.Parallel()
	const network = "org.apache.cassandra.locator.NetworkTopologyStrategy"
	var now map[string]string
	var down error
	g := &guard{consistency: "LOCAL_QUORUM", serial: "LOCAL_SERIAL", log: slog.New(slog.DiscardHandler),
		read: func(context.Context) (replication, error) {
			if down != nil {
				return replication{}, down
			}
			return parseReplication(now)
		}}
	r := &runner{guard: g} // without a session: a statement would panic
	refused := func() error {
		_, _, err := r.cas(t.Context(), deciding, "UPDATE x IF y")
		return err
	}
	now = map[string]string{"class": network, "dc1": "3", "dc2": "3"}
	g.look(t.Context())
	err := refused()
	require.ErrorIs(t, err, models.ErrUnavailable)
	require.NotErrorIs(t, err, models.ErrOutcomeUnknown, "nothing was done")
	require.ErrorContains(t, err, "SERIAL")
	require.ErrorContains(t, err, "dc1, dc2")
	down = errors.New("no node answers")
	g.look(t.Context())
	require.Error(t, refused())
	down, now = nil, map[string]string{"class": network, "dc1": "3"}
	g.look(t.Context())
	require.NoError(t, g.err())
	down = errors.New("no node answers")
	g.look(t.Context())
	require.NoError(t, g.err())
}

// TestStoreLooksAtReplication: the guard of an open store reads the keyspace as it is.
func TestStoreLooksAtReplication(t *testing.T) {
	c := sharedConfig(t)
	s := open(t, c)
	e := engineOf(s)
	e.guard.look(t.Context())
	require.NoError(t, e.guard.err())
	rep, err := e.guard.read(t.Context())
	require.NoError(t, err)
	require.Len(t, rep.centres, 1)
	is := e.guard
	g := &guard{consistency: is.consistency, serial: "LOCAL_SERIAL", log: slog.New(slog.DiscardHandler),
		read: func(ctx context.Context) (replication, error) { // as if a node of another data centre had joined
			rep, err := is.read(ctx)
			rep.centres = append(rep.centres, "elsewhere")
			return rep, err
		}}
	e.runner.guard = g
	g.look(t.Context())
	_, err = s.Lease(t.Context(), "x", "w", time.Second)
	require.ErrorIs(t, err, models.ErrUnavailable)
	require.ErrorContains(t, err, "elsewhere")
}
