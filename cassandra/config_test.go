package cassandra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	good, l, err := Config{Hosts: []string{"a", "b:9042"}}.complete()
	require.NoError(t, err)
	require.Equal(t, levels{gocql.LocalQuorum, gocql.LocalSerial}, l)
	contacts, port, err := good.contacts()
	require.NoError(t, err)
	require.Equal(t, good.Hosts, contacts)
	require.Equal(t, 9042, port)
	good.Hosts = []string{"a:9043", "b", "c:9043"}
	contacts, port, err = good.contacts()
	require.NoError(t, err)
	require.Equal(t, []string{"a:9043", "c:9043"}, contacts, "the others are discovered")
	require.Equal(t, 9043, port)
	for _, bad := range []Config{
		{},
		{Hosts: []string{"a"}, Consistency: "MOST"},
		{Hosts: []string{"a"}, Consistency: "ANY"},
		{Hosts: []string{"a"}, Serial: "QUORUM"},
		{Hosts: []string{"a"}, Keyspace: "x; DROP"},
		{Hosts: []string{"a"}, Replication: "{}; DROP KEYSPACE x"},
	} {
		_, _, err := bad.complete()
		require.ErrorIs(t, err, models.ErrInvalid, "%+v", bad)
	}
	bad := Config{Hosts: []string{"a:b"}}
	_, _, err = bad.contacts()
	require.ErrorIs(t, err, models.ErrInvalid)
}

func TestReplication(t *testing.T) {
	t.Parallel()
	const network = "org.apache.cassandra.locator.NetworkTopologyStrategy"
	const simple = "org.apache.cassandra.locator.SimpleStrategy"
	one := map[string]string{"class": simple, "replication_factor": "1"}
	three := map[string]string{"class": network, "dc1": "3", "dc2": "0"}
	both := map[string]string{"class": network, "dc1": "3", "dc2": "3"}
	for _, c := range []struct {
		on        map[string]string
		level, is string
		fine      bool
	}{
		{one, "ONE", "LOCAL_SERIAL", true},
		{one, "LOCAL_QUORUM", "LOCAL_SERIAL", true},
		{one, "TWO", "SERIAL", true}, // no node answers, but no write is missed
		{three, "LOCAL_QUORUM", "LOCAL_SERIAL", true},
		{three, "QUORUM", "SERIAL", true},
		{three, "TWO", "SERIAL", true},
		{three, "EACH_QUORUM", "SERIAL", true},
		{three, "ONE", "SERIAL", false},
		{three, "LOCAL_ONE", "LOCAL_SERIAL", false},
		{both, "QUORUM", "LOCAL_SERIAL", false},
		{both, "QUORUM", "SERIAL", true},
		{both, "EACH_QUORUM", "SERIAL", true},
		{both, "ALL", "SERIAL", true},
		{both, "LOCAL_QUORUM", "SERIAL", false},
		{both, "THREE", "SERIAL", false},
	} {
		rep, err := parseReplication(c.on)
		require.NoError(t, err)
		err = rep.serves(c.level, c.is)
		if c.fine {
			require.NoError(t, err, "%v %s %s", c.on, c.level, c.is)
		} else {
			require.ErrorIs(t, err, models.ErrInvalid, "%v %s %s", c.on, c.level, c.is)
		}
	}
	everywhere := map[string]string{"class": simple, "replication_factor": "3"}
	for _, c := range []struct {
		centres []string // of the nodes
		serial  string
		fine    bool
	}{
		{[]string{"dc1"}, "LOCAL_SERIAL", true},
		{[]string{"dc1", "dc2"}, "LOCAL_SERIAL", false}, // SimpleStrategy asks no node where it is
		{[]string{"dc1", "dc2"}, "SERIAL", true},
	} {
		rep, err := parseReplication(everywhere)
		require.NoError(t, err)
		rep.centres = c.centres
		if err := rep.serves("QUORUM", c.serial); c.fine {
			require.NoError(t, err, "%v", c)
		} else {
			require.ErrorIs(t, err, models.ErrInvalid, "%v", c)
			require.ErrorContains(t, err, "SERIAL")
			require.ErrorContains(t, err, "dc1, dc2")
		}
	}
	rep, err := parseReplication(three)
	require.NoError(t, err)
	require.NoError(t, rep.overlaps("ONE", "ALL"))
	require.ErrorIs(t, rep.overlaps("ONE", "LOCAL_QUORUM"), models.ErrInvalid,
		"what was written before with another level is missed")
	for _, bad := range []map[string]string{{"class": simple, "replication_factor": "x"}, {"class": network}} {
		_, err := parseReplication(bad)
		require.ErrorIs(t, err, models.ErrInvalid)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want verdict
	}{
		{nil, done},
		{gocql.ErrNotFound, done},
		{gocql.MarshalError("x"), done},
		{fmt.Errorf("x: %w", models.ErrDamaged), done},
		{gocql.ErrNoConnections, nothing},
		{gocql.ErrNoStreams, nothing},
		{fmt.Errorf("x: %w", gocql.ErrTimeoutNoResponse), maybe},
		{gocql.ErrConnectionClosed, maybe},
		{&gocql.RequestErrCASWriteUnknown{}, maybe},
		{io.EOF, maybe},
		{context.DeadlineExceeded, maybe},
		{errors.New("what is this"), maybe},
	} {
		require.Equal(t, c.want, classify(c.err), "%v", c.err)
	}
	away := unavailable{code: gocql.ErrCodeUnavailable}
	require.Equal(t, nothing, classify(away))
	require.Equal(t, maybe, classify(undecided(away)), "a compare-and-set may have been agreed on")
	require.Equal(t, nothing, classify(undecided(gocql.ErrNoConnections)))
	require.NoError(t, undecided(nil))
}

// TestFinalErrorAfterUnknownOutcome: a try that may have had its effect is followed by one that
// fails for good. The outcome stays unknown.
func TestFinalErrorAfterUnknownOutcome(t *testing.T) {
	t.Parallel()
	r := runner{timeout: time.Minute}
	final := gocql.MarshalError("x")
	for e, want := range map[effort]bool{plain: false, deciding: true, settling: true} {
		tries := []error{gocql.ErrConnectionClosed, final}
		err := r.try(t.Context(), e, func() error {
			next := tries[0]
			tries = tries[1:]
			return next
		})
		require.Equal(t, want, errors.Is(err, models.ErrOutcomeUnknown), e)
		require.ErrorIs(t, err, final)
	}
	err := r.try(t.Context(), deciding, func() error { return final })
	require.NotErrorIs(t, err, models.ErrOutcomeUnknown, "nothing was done before")
}

// unavailable is an answer of a node.
type unavailable struct {
	gocql.RequestError
	code int
}

func (u unavailable) Code() int     { return u.code }
func (u unavailable) Error() string { return "not enough replicas" }

func TestFall(t *testing.T) {
	t.Parallel()
	var w writer
	at := time.Now()
	last := w.fall(at)
	for i := range 10_000 {
		next := w.fall(at.Add(time.Duration(i%7-3) * time.Microsecond))
		require.Less(t, next, last)
		last = next
	}
	require.Less(t, w.fall(at.Add(time.Hour)), last-int64(time.Minute/time.Microsecond))
}
