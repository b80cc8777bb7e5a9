package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
)

// patience is how long a test waits for something that should happen soon.
const patience = 5 * time.Minute

// hold keeps the writer busy until the returned function is called.
func hold(t *testing.T, s *Store) (release func()) {
	t.Helper()
	busy, free := make(chan struct{}), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		_ = s.engine.write(context.Background(), 0, func(*conn) error {
			select {
			case <-busy:
			default:
				close(busy)
			}
			<-free
			return nil
		})
	})
	<-busy
	return sync.OnceFunc(func() {
		close(free)
		ended.Wait()
	})
}

// queued waits until all goroutines of the bubble wait, low and urgent requests of them for the writer. The writer may
// call it.
func queued(t *testing.T, s *Store, low, urgent int) {
	t.Helper()
	synctest.Wait()
	s.engine.writer.mu.Lock()
	defer s.engine.writer.mu.Unlock()
	assert.Len(t, s.engine.writer.low, low)
	assert.Len(t, s.engine.writer.urgent, urgent)
}

// insert inserts a row. Without a value it fails.
func insert(c *conn, id models.ID, value []byte) (int64, error) {
	var v any
	if value != nil {
		v = value
	}
	return c.exec(`INSERT INTO chunks VALUES (?, x'', 1, ?, 0, NULL)`, id, v)
}

func chunkExists(t *testing.T, s *Store, id models.ID) (found bool) {
	t.Helper()
	require.NoError(t, s.engine.read(t.Context(), func(c *conn) error {
		return c.query(`SELECT 1 FROM chunks WHERE part = ?`, func([]driver.Value) error {
			found = true
			return nil
		}, id)
	}))
	return found
}

// A request of a group that cannot be written must fail alone, and nothing of it may
// be written.
func TestFailedRequestOfGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		id := models.NewBatchID(time.Now())
		answer := errors.New("an answer")
		requests := []func(c *conn) error{
			func(c *conn) error {
				_, err := insert(c, id.Chunk(1), []byte("a"))
				return err
			},
			func(c *conn) error {
				if _, err := insert(c, id.Chunk(2), []byte("b")); err != nil {
					return err
				}
				_, err := insert(c, id.Chunk(3), nil)
				return err
			},
			func(c *conn) error {
				if _, err := insert(c, id.Chunk(4), []byte("c")); err != nil {
					return err
				}
				return answer
			},
		}
		release := hold(t, s)
		errs := make([]error, len(requests))
		var all sync.WaitGroup
		for i, do := range requests {
			all.Go(func() { errs[i] = s.engine.write(t.Context(), 10, do) })
		}
		queued(t, s, 0, len(requests))
		release()
		all.Wait()
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], models.ErrUnavailable)
		require.ErrorIs(t, errs[2], answer)
		require.True(t, chunkExists(t, s, id.Chunk(1)))
		require.False(t, chunkExists(t, s, id.Chunk(2)), "half of a failed request was written")
		require.True(t, chunkExists(t, s, id.Chunk(4)), "an answer is no failure")
	})
}

// failCommits returns a write that makes the commit of its transaction fail, as a
// failed sync would: by a constraint that is checked at the end.
func failCommits(t *testing.T, s *Store) (failCommit func(c *conn) error) {
	t.Helper()
	require.NoError(t, s.engine.write(t.Context(), 0, func(c *conn) error {
		return c.script(`CREATE TABLE failures (id INTEGER PRIMARY KEY,
			of INTEGER REFERENCES failures (id) DEFERRABLE INITIALLY DEFERRED)`)
	}))
	require.NoError(t, s.engine.writer.conn.script("PRAGMA foreign_keys = 1")) // the writer is idle
	return func(c *conn) error {
		_, err := c.exec(`INSERT INTO failures (of) VALUES (-1)`)
		return err
	}
}

// The commit of a group fails with an unknown outcome, and an exclusive request of it
// fails alone, too. It must get ErrOutcomeUnknown.
func TestGroupWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		failCommit := failCommits(t, s)
		runs := [4]int{}
		broken := func(c *conn) error { _, err := insert(c, models.ID{}, nil); return err }
		requests := []struct {
			exclusive bool
			do        func(c *conn) error
		}{
			{false, failCommit},
			{true, func(c *conn) error { // fails only when it runs alone
				if runs[1]++; runs[1] > 1 {
					return broken(c)
				}
				return nil
			}},
			{true, func(*conn) error { runs[2]++; return nil }},
			{false, func(c *conn) error {
				if runs[3]++; runs[3] > 1 {
					return broken(c)
				}
				return nil
			}},
		}
		release := hold(t, s)
		defer release()
		errs := make([]error, len(requests))
		var all sync.WaitGroup
		for i, r := range requests {
			all.Go(func() { errs[i] = s.engine.submit(t.Context(), &request{do: r.do, exclusive: r.exclusive}) })
		}
		queued(t, s, 0, len(requests))
		release()
		all.Wait()
		require.Equal(t, [4]int{0, 2, 2, 2}, runs, "once together, once alone")
		require.ErrorIs(t, errs[1], models.ErrOutcomeUnknown)
		require.NoError(t, errs[2], "what is written alone is known")
		for _, i := range []int{0, 3} {
			require.ErrorIs(t, errs[i], models.ErrUnavailable)
			require.NotErrorIs(t, errs[i], models.ErrOutcomeUnknown, "it may be repeated in any case")
		}
		_, err := decided(t.Context(), s.engine, 0, func(c *conn) (bool, error) { return true, failCommit(c) })
		require.ErrorIs(t, err, models.ErrOutcomeUnknown, "alone from the beginning")
	})
}

// A request whose caller gives up before the write begins must not be written.
func TestCallerGivesUpBeforeWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		release := hold(t, s)
		defer release()
		ctx, cancel := context.WithCancel(t.Context())
		id := models.NewBatchID(time.Now())
		appended := make(chan error, 1)
		go func() { appended <- s.Append(ctx, id, storetest.SampleEntry(1)) }()
		queued(t, s, 0, 1)
		cancel()
		err := <-appended
		require.ErrorIs(t, err, models.ErrUnavailable, "it certainly was not done")
		require.ErrorIs(t, err, context.Canceled)
		release()
		es, err := s.Ledger(t.Context(), id)
		require.NoError(t, err)
		require.Empty(t, es)
	})
}

// A caller gives up after the write began. Only an exclusive request has an unknown
// outcome then.
func TestCallerGivesUpDuringWrite(t *testing.T) {
	for _, exclusive := range []bool{true, false} {
		s := newStore(t)
		ctx, cancel := context.WithCancel(t.Context())
		began, proceed := make(chan struct{}), make(chan struct{})
		id := models.NewBatchID(time.Now()).Chunk(1)
		r := &request{exclusive: exclusive, do: func(c *conn) error {
			close(began)
			<-proceed
			_, err := insert(c, id, []byte("a"))
			return err
		}}
		wrote := make(chan error, 1)
		go func() { wrote <- s.engine.submit(ctx, r) }()
		<-began
		cancel()
		err := <-wrote
		require.ErrorIs(t, err, context.Canceled)
		if exclusive {
			require.ErrorIs(t, err, models.ErrOutcomeUnknown)
			require.NotErrorIs(t, err, models.ErrUnavailable)
		} else {
			require.ErrorIs(t, err, models.ErrUnavailable)
		}
		close(proceed)
		require.NoError(t, s.engine.write(t.Context(), 0, func(*conn) error { return nil })) // comes after it
		require.True(t, chunkExists(t, s, id))
	}
}

// While the disk is full, nothing may be written in part, and Ping must fail. When there
// is room again, writes must succeed.
func TestDiskFull(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	limit := func(pragma string) {
		require.NoError(t, s.engine.write(ctx, 0, func(c *conn) error { return c.script(pragma) }))
	}
	limit("PRAGMA max_page_count = 60")
	var kept []models.ID
	var failed models.Batch
	var failedChunk models.Chunk
	for range 1000 {
		b, ch := storetest.SampleBatch(50)
		err := s.PutBatch(ctx, b, ch)
		if err != nil {
			require.ErrorIs(t, err, models.ErrUnavailable)
			failed, failedChunk = b, ch
			break
		}
		kept = append(kept, b.ID)
	}
	require.False(t, failed.ID.IsZero(), "the disk was never full")
	require.True(t, s.engine.writer.failing.Load())
	_, err := s.Batch(ctx, failed.ID)
	require.ErrorIs(t, err, models.ErrNotFound)
	list, err := s.Batches(ctx, failed.User, models.ID{}, 2000)
	require.NoError(t, err)
	require.Len(t, list, len(kept))

	limit("PRAGMA max_page_count = 100000")
	require.NoError(t, s.Ping(ctx))
	require.NoError(t, s.PutBatch(ctx, failed, failedChunk))
	require.False(t, s.engine.writer.failing.Load())
	_, err = s.Batch(ctx, failed.ID)
	require.NoError(t, err)
}

// An urgent write must not wait behind many writes with low priority, whether they are
// queued or being written. All of them must be written, too.
func TestUrgentWritePassesLowPriority(t *testing.T) {
	for _, begun := range []bool{false, true} {
		t.Run(fmt.Sprintf("Begun=%t", begun), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				release := hold(t, s)
				defer release()
				var all sync.WaitGroup
				var order []string // only the writer touches it until all is written
				writeUrgent := func(low int) {
					all.Go(func() {
						assert.NoError(t, s.engine.write(context.Background(), 100, func(*conn) error {
							order = append(order, "urgent")
							return nil
						}))
					})
					queued(t, s, low, 1)
				}
				const flood = 500
				for range flood {
					all.Go(func() {
						assert.NoError(t, s.engine.write(priority.WithLow(context.Background()), 100, func(*conn) error {
							if begun && len(order) == 0 {
								writeUrgent(0)
							}
							order = append(order, "flood")
							return nil
						}))
					})
				}
				queued(t, s, flood, 0)
				if !begun {
					writeUrgent(flood)
				}
				release()
				all.Wait()
				require.Len(t, order, flood+1)
				if begun {
					require.Equal(t, lowBeside, slices.Index(order, "urgent"))
				} else {
					require.Equal(t, "urgent", order[0])
				}
			})
		})
	}
}
