package cassandra

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/models/storetest"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// behindProxy opens two stores on one keyspace, one of them through a proxy.
func behindProxy(t *testing.T) (p *proxy, through, direct *store.Store) {
	t.Helper()
	c := sharedConfig(t)
	direct = open(t, c)
	p = newProxy(t)
	c.Hosts, c.Migrate = []string{p.addr}, false
	c.Timeout, c.minTries = 2*time.Second, 500*time.Millisecond
	through = open(t, c)
	require.NoError(t, through.Append(t.Context(), models.NewBatchID(time.Now()), storetest.SampleEntry(1)),
		"the statement is prepared")
	return p, through, direct
}

// An append whose answers are lost must return ErrOutcomeUnknown. The entry must exist
// once, and repeating the append must succeed.
func TestAppendAnswerLost(t *testing.T) {
	p, through, direct := behindProxy(t)
	const chunks = 8
	var ids [chunks]models.ID
	var mine [chunks]models.Entry
	p.freeze()
	require.NoError(t, each(t.Context(), chunks, func(ctx context.Context, i int) error {
		ids[i], mine[i] = models.NewBatchID(time.Now()), storetest.SampleEntry(1)
		short, cancel := context.WithTimeout(ctx, 1200*time.Millisecond) // two tries
		defer cancel()
		err := through.Append(short, ids[i], mine[i])
		require.ErrorIs(t, err, models.ErrOutcomeUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return nil
	}))
	for i := range chunks {
		var conflict *models.ConflictError
		require.ErrorAs(
			t,
			direct.Append(t.Context(), ids[i], storetest.SampleEntry(1)),
			&conflict,
			"the number is taken",
		)
		require.Equal(t, mine[i], conflict.Winner)
	}
	p.thaw()
	require.NoError(t, each(t.Context(), chunks, func(ctx context.Context, i int) error {
		var err error
		for err = through.Append(ctx, ids[i], mine[i]); ctx.Err() == nil && err != nil; {
			require.ErrorIs(t, err, models.ErrUnavailable) // not connected again yet
			err = through.Append(ctx, ids[i], mine[i])
		}
		return err
	}))
	for i := range chunks {
		ledger, err := direct.Ledger(t.Context(), ids[i])
		require.NoError(t, err)
		require.Equal(t, mine[i:i+1], ledger)
	}
}

// While its context lasts, an append must keep asking, far beyond the time-out, and
// learn its outcome when answers come again.
func TestAppendResolvesUnknownOutcome(t *testing.T) {
	p, through, direct := behindProxy(t)
	won, lost := models.NewBatchID(time.Now()), models.NewBatchID(time.Now())
	mine, rival := storetest.SampleEntry(1), storetest.SampleEntry(1)
	require.NoError(t, direct.Append(t.Context(), lost, rival))
	p.freeze()
	var (
		all  sync.WaitGroup
		errs [2]error
	)
	all.Go(func() { errs[0] = through.Append(t.Context(), won, mine) })
	all.Go(func() { errs[1] = through.Append(t.Context(), lost, mine) })
	start := time.Now()
	require.Eventually(t, func() bool {
		ledger, err := direct.Ledger(t.Context(), won)
		return err == nil && len(ledger) == 1 && time.Since(start) > 2*engineOf(through).timeout
	}, time.Minute, 50*time.Millisecond)
	p.thaw()
	all.Wait()
	require.NoError(t, errs[0])
	var conflict *models.ConflictError
	require.ErrorAs(t, errs[1], &conflict)
	require.Equal(t, rival, conflict.Winner)
	ledger, err := direct.Ledger(t.Context(), won)
	require.NoError(t, err)
	require.Equal(t, []models.Entry{mine}, ledger)
}

// Close must not wait for an append whose outcome cannot be found out.
func TestCloseDuringUnknownOutcome(t *testing.T) {
	p, through, direct := behindProxy(t)
	id := models.NewBatchID(time.Now())
	p.freeze()
	done := make(chan error, 1)
	go func() { done <- through.Append(context.Background(), id, storetest.SampleEntry(1)) }()
	require.Eventually(t, func() bool {
		ledger, err := direct.Ledger(t.Context(), id)
		return err == nil && len(ledger) == 1
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, through.Close())
	require.ErrorIs(t, <-done, models.ErrOutcomeUnknown)
}

// If the answer to the only write of a batch is lost, the error must not say that
// nothing was done.
func TestPutBatchAnswerLost(t *testing.T) {
	p, through, direct := behindProxy(t)
	warm, chunk := storetest.SampleBatch(1)
	require.NoError(t, through.PutBatch(t.Context(), warm, chunk))
	b, first := storetest.SampleBatch(1)
	p.freeze()
	row := shapes.Row{Part: b.ID[:], Version: 1, Value: append(codec.EncodeBatch(&b), 'b')}
	_, err := through.Engine().Swap(t.Context(), []shapes.Swap{{ // it is prepared already
		Put: shapes.Put{Table: engineOf(through).tableOf("batches").Table, Row: row}}})
	require.ErrorIs(t, err, models.ErrOutcomeUnknown)
	got, err := direct.Batch(t.Context(), b.ID)
	require.NoError(t, err)
	require.Equal(t, b.ID, got.ID)
	p.thaw()
	require.Eventually(t, func() bool {
		return through.PutBatch(t.Context(), b, first) == nil
	}, time.Minute, 20*time.Millisecond)
}

// While the servers are away, reads, writes and compare-and-set must fail promptly, and
// work again when the servers are back.
func TestServersAway(t *testing.T) {
	p, through, direct := behindProxy(t)
	id := models.NewBatchID(time.Now())
	p.stop()
	require.ErrorIs(t, through.Ping(t.Context()), models.ErrUnavailable)
	took := quickest(3*engineOf(through).timeout, func() {
		failAll(t, through, id)
	})
	require.Less(t, took, 3*engineOf(through).timeout)
	es, fs, err := direct.Record(t.Context(), id)
	require.NoError(t, err)
	require.Empty(t, es)
	require.Empty(t, fs)

	p.start()
	require.Eventually(t, func() bool { return through.Ping(t.Context()) == nil }, time.Minute, 20*time.Millisecond)
	require.NoError(t, through.Append(t.Context(), id, storetest.SampleEntry(1)))
}

// quickest returns the duration of f. It calls f again, because the machine may have paused, if that is not under a
// bound.
func quickest(bound time.Duration, f func()) time.Duration {
	took := time.Duration(math.MaxInt64)
	for range 4 {
		start := time.Now()
		f()
		if took = min(took, time.Since(start)); took < bound {
			break
		}
	}
	return took
}

// failAll calls methods of a store whose servers are away at the same time. All must fail.
func failAll(t *testing.T, through *store.Store, id models.ID) {
	t.Helper()
	require.NoError(t, each(t.Context(), 5, func(ctx context.Context, i int) error {
		var err error
		switch i {
		case 0:
			err = through.Append(ctx, id, storetest.SampleEntry(1))
		case 1:
			err = through.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: storetest.SampleFact(1)})
		case 2:
			_, _, err = through.Record(ctx, id)
		case 3:
			for _, err = range through.Agenda(ctx, 0, id.Time(), id.Time().Add(time.Hour)) {
				require.Error(t, err)
			}
		case 4:
			b, first := storetest.SampleBatch(1)
			err = through.PutBatch(ctx, b, first)
		}
		require.ErrorIs(t, err, models.ErrUnavailable, "call %d", i)
		return nil
	}))
}

// Open must fail, and not wait, if the cluster cannot be reached.
func TestOpenWithoutServers(t *testing.T) {
	p := newProxy(t)
	p.stop()
	c := Config{Hosts: []string{p.addr}, Timeout: time.Second}
	_, err := Open(t.Context(), c)
	require.ErrorIs(t, err, models.ErrUnavailable)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ended, c)
	require.ErrorIs(t, err, context.Canceled)
}

// PutBatch and AbandonBatch of a batch of one chunk race. All must agree on the result.
func TestAbandonOneChunkRace(t *testing.T) {
	c := sharedConfig(t)
	stores, user := []*store.Store{open(t, c), open(t, c)}, models.NewUserID()
	kept := 0
	for range 60 {
		b, first := storetest.SampleBatch(1)
		b.User = user
		var (
			all         sync.WaitGroup
			put, undone error
			gone        bool
		)
		all.Go(func() { put = stores[0].PutBatch(t.Context(), b, first) })
		all.Go(func() {
			if kept%2 == 0 { // in the middle of it
				_, undone = stores[1].Batch(t.Context(), b.ID)
			}
			gone, undone = stores[1].AbandonBatch(t.Context(), b.ID, 1)
		})
		all.Wait()
		require.NoError(t, undone)
		for _, s := range stores {
			_, err := s.Batch(t.Context(), b.ID)
			_, missing := s.Recipients(t.Context(), b.ID)
			list, unlisted := s.Batches(t.Context(), b.User, models.ID{}, 1000)
			require.NoError(t, unlisted)
			if gone {
				require.ErrorIs(t, put, models.ErrNotFound)
				require.ErrorIs(t, err, models.ErrNotFound)
				require.ErrorIs(t, missing, models.ErrNotFound)
				require.Len(t, list, kept)
			} else {
				require.NoError(t, put)
				require.NoError(t, err)
				require.NoError(t, missing)
				require.Len(t, list, kept+1)
			}
		}
		if !gone {
			kept++
		}
	}
	t.Logf("%d of 60 were stored", kept)
}

// A value that is too large for the server must be ErrInvalid at once.
func TestValueTooLarge(t *testing.T) {
	s := open(t, sharedConfig(t))
	body := make([]byte, 40<<20)
	for i := range body {
		body[i] = byte(i * i >> 7 * i >> 3)
	}
	const once = 15 * time.Second
	require.Less(t, quickest(once, func() {
		err := s.Engine().Put(t.Context(), shapes.Put{Table: engineOf(s).tableOf("inbox").Table,
			Row: shapes.Row{Part: []byte{1}, Key: bytes.Repeat([]byte{1}, 16), Version: 1, Value: body}})
		require.ErrorIs(t, err, models.ErrInvalid)
	}), once)
}

// A stored value that cannot be read must be reported as damaged at once, and others
// must be read.
func TestDamaged(t *testing.T) {
	ctx := t.Context()
	s := open(t, sharedConfig(t))
	bad, good := models.NewBatchID(time.Now().Add(-time.Second)), models.NewBatchID(time.Now())
	for _, id := range []models.ID{bad, good} {
		require.NoError(t, s.Append(ctx, id, models.Entry{
			Number:   1,
			Token:    models.NewToken(),
			Kind:     models.Attempt,
			At:       time.Now(),
			Provider: "sg",
		}))
	}
	e := engineOf(s)
	require.NoError(t, e.exec(ctx, plain, `UPDATE ledger SET value = ? WHERE part = ? AND number = 1`, []byte{0xff}, bad[:]))
	_, _, err := s.Record(ctx, bad)
	require.ErrorIs(t, err, models.ErrDamaged)
	_, err = s.Ledger(ctx, bad)
	require.ErrorIs(t, err, models.ErrDamaged)
	es, _, err := s.Record(ctx, good)
	require.NoError(t, err)
	require.Len(t, es, 1)

	// A list names the damaged batch and has the others.
	owner := models.NewUserID()
	for _, id := range []models.ID{bad, good} {
		b := models.Batch{
			ID:         id,
			User:       owner,
			Lane:       models.Bulk,
			Recipients: 1,
			Chunks:     1,
		}
		require.NoError(
			t,
			s.PutBatch(ctx, b, models.Chunk{ID: id, Recipients: []models.Recipient{{Email: "a@b.test"}}}),
		)
	}
	require.NoError(t, e.Put(ctx, shapes.Put{Table: e.tableOf("batches").Table, Row: shapes.Row{Part: bad[:], Version: 2,
		Value: []byte{0xff, 'b'}}}))
	_, err = s.Batch(ctx, bad)
	require.ErrorIs(t, err, models.ErrDamaged)
	list, err := s.Batches(ctx, owner, models.ID{}, 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.False(t, list[0].Damaged)
	require.Equal(t, models.Batch{ID: bad, User: owner, Damaged: true}, list[1])

	// A damaged entry of the agenda is still listed.
	due := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	entry := models.AgendaEntry{
		Due:    due,
		Kind:   models.LookAtBatch,
		ID:     bad,
		User:   "u",
		Chunks: 3,
	}
	require.NoError(t, s.Schedule(ctx, entry))
	agenda := e.tableOf("agenda").Table
	shard := binary.BigEndian.AppendUint32(nil, uint32(bad.Shard(s.Shards()))) // entries of other tests are in it, too
	rows, err := e.Scan(ctx, agenda, shard, shapes.Range{Limit: 1000})
	require.NoError(t, err)
	row := rows[slices.IndexFunc(rows, func(r shapes.Row) bool { return bytes.HasSuffix(r.Key, bad[:]) })]
	row.Version, row.Value = row.Version+1, []byte{}
	require.NoError(t, e.Put(ctx, shapes.Put{Table: agenda, Row: row}))
	for e, err := range s.Agenda(ctx, bad.Shard(s.Shards()), due, due.Add(time.Second)) {
		require.NoError(t, err)
		require.Equal(t, models.AgendaEntry{Due: due, Kind: models.LookAtBatch, ID: bad}, e)
		entry.Chunks = 0
	}
	require.Zero(t, entry.Chunks, "it is listed")
}

// TestNewerValue: a value that a newer version stored is an error that says so. It is not tried
// again.
func TestNewerValue(t *testing.T) {
	ctx := t.Context()
	s := open(t, sharedConfig(t))
	id := models.NewBatchID(time.Now())
	require.NoError(t, s.Append(ctx, id, storetest.SampleEntry(1)))
	require.NoError(t, engineOf(s).exec(ctx, plain, `UPDATE ledger SET value = ? WHERE part = ? AND number = 1`,
		[]byte("q"), id[:]))
	_, _, err := s.Record(ctx, id)
	require.ErrorIs(t, err, models.ErrNewer)
	require.NotErrorIs(t, err, models.ErrDamaged)
	require.NotErrorIs(t, err, models.ErrUnavailable)
}
