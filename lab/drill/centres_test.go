//go:build full

package drill

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/models"
)

// TestTwoDataCentres: of three nodes of Cassandra the first and the third are in one data centre, and the second is in
// another. With LOCAL_SERIAL each data centre would decide for itself, so a store refuses to open. With SERIAL
// one entry of a number is appended, whichever data centre a process uses, and the loss of one stops nothing.
func TestTwoDataCentres(t *testing.T) {
	t.Setenv("SAFEDELIVR_CASSANDRA_CENTRES", "2")
	c := &cluster{server: "cassandra"}
	c.start(t)
	config := func(node int, centre string) cassandra.Config {
		return cassandra.Config{
			Hosts: []string{c.addr(node)}, LocalDC: centre, Keyspace: "centres", Migrate: true, Timeout: time.Minute,
			Replication: "{'class': 'NetworkTopologyStrategy', 'datacenter1': 2, 'datacenter2': 1}",
		}
	}
	_, err := cassandra.Open(t.Context(), config(0, "datacenter1"))
	require.ErrorIs(t, err, models.ErrInvalid)
	require.ErrorContains(t, err, "SAFEDELIVR_CASSANDRA_SERIAL_CONSISTENCY=SERIAL")
	require.ErrorContains(t, err, "datacenter1, datacenter2")

	var stores []models.Store
	for i, centre := range []string{"datacenter1", "datacenter2"} {
		its := config(i, centre)
		its.Serial, its.Consistency = "SERIAL", "QUORUM"
		s, err := cassandra.Open(t.Context(), its)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		stores = append(stores, s)
	}
	for range 100 {
		chunk := models.NewBatchID(time.Now())
		var results [2]error
		var both errgroup.Group
		for i := range stores {
			both.Go(func() error { results[i] = appendFirst(t.Context(), stores[i], chunk); return nil })
		}
		require.NoError(t, both.Wait())
		won, lost := results[0], results[1]
		if won != nil {
			won, lost = lost, won
		}
		require.NoError(t, won)
		require.ErrorAs(t, lost, new(*models.ConflictError))
		for _, s := range stores {
			entries, _, err := s.Record(t.Context(), chunk)
			require.NoError(t, err)
			require.Len(t, entries, 1)
		}
	}
	_, err = c.services(t.Context(), "kill", c.name(1))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.down(t.Context(), 1) }, time.Minute, 50*time.Millisecond)
	for range 100 {
		require.NoError(t, appendFirst(t.Context(), stores[0], models.NewBatchID(time.Now())))
	}
}

// appendFirst appends the first entry of a chunk.
func appendFirst(ctx context.Context, s models.Store, chunk models.ID) error {
	return s.Append(ctx, chunk, models.Entry{
		Number: 1, Token: models.NewToken(), Kind: models.Attempt, At: time.Now().UTC(), Provider: "sg",
	})
}
