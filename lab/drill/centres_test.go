//go:build full

package drill

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/models"
)

// TestTwoDataCentres: of three nodes of Cassandra the first and the third are in one data centre, and the second is in
// another. With LOCAL_SERIAL both data centres decide the same compare-and-set, so a store refuses to open. With SERIAL
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
	require.Positive(t, c.decidedTwice(t), "the danger that the refusal is about")

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
	require.True(t, c.down(t.Context(), 1))
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

// decidedTwice returns for how many of a hundred rows both data centres of a cluster say, with LOCAL_SERIAL, that they
// have inserted it.
func (c *cluster) decidedTwice(t *testing.T) (twice int) {
	var sessions [2]*gocql.Session
	for i := range sessions {
		g := gocql.NewCluster(c.addr(i))
		g.SerialConsistency, g.Consistency, g.Timeout = gocql.LocalSerial, gocql.LocalQuorum, time.Minute
		g.PoolConfig.HostSelectionPolicy = gocql.DCAwareRoundRobinPolicy("datacenter" + string(rune('1'+i)))
		s, err := g.CreateSession()
		require.NoError(t, err)
		t.Cleanup(s.Close)
		sessions[i] = s
	}
	for _, ddl := range []string{
		"CREATE KEYSPACE twice WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 2, 'datacenter2': 1}",
		"CREATE TABLE twice.t (k int PRIMARY KEY, v int)",
	} {
		require.NoError(t, sessions[0].Query(ddl).Exec(), strings.Fields(ddl)[1])
	}
	require.NoError(t, sessions[1].AwaitSchemaAgreement(t.Context()))
	for k := range 100 {
		var applied [2]bool
		var both errgroup.Group
		for i, s := range sessions {
			both.Go(func() (err error) {
				applied[i], err = s.Query("INSERT INTO twice.t (k, v) VALUES (?, ?) IF NOT EXISTS", k, i).
					MapScanCAS(map[string]any{})
				return err
			})
		}
		require.NoError(t, both.Wait())
		if applied[0] && applied[1] {
			twice++
		}
	}
	t.Logf("with LOCAL_SERIAL, %d of 100 rows were inserted by both data centres", twice)
	return twice
}
