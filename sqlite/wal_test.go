package sqlite

import (
	"database/sql/driver"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// The write-ahead log must stay small although reads overlap all the time, and neither
// reads nor writes may fail.
func TestWriteAheadLogIsBounded(t *testing.T) {
	const limit, size, rows = 1 << 20, 128 << 10, 100
	value := make([]byte, size)
	s, err := Open(t.TempDir(), Options{walLimit: limit})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.engine.writer.conn.script("PRAGMA wal_autocheckpoint = 100")) // the writer is idle
	var (
		all   sync.WaitGroup
		reads atomic.Int64
		done  = make(chan struct{})
	)
	for range cap(s.engine.readers) - 1 {
		all.Go(func() {
			for {
				assert.NoError(t, s.engine.read(t.Context(), func(c *conn) error {
					return c.query(`SELECT count(*) FROM users`, func([]driver.Value) error {
						time.Sleep(5 * time.Millisecond) // long, so that others begin before it ends
						return nil
					})
				}))
				reads.Add(1)
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	largest := int64(0)
	for i := range rows {
		require.NoError(t, s.engine.write(t.Context(), size, func(c *conn) error {
			_, err := insert(c, models.NewBatchID(time.Now()).Chunk(i+1), value)
			return err
		}))
		log, err := os.Stat(s.engine.writer.log)
		require.NoError(t, err)
		largest = max(largest, log.Size())
	}
	close(done)
	all.Wait()
	t.Logf("%d reads; of %d kB the log had %d kB at once", reads.Load(), rows*size>>10, largest>>10)
	require.Less(t, largest, int64(3*limit))
}

// While another process reads the database, the log cannot be truncated. The writer
// must not try again and again, and must truncate it when that process is done.
func TestWriteAheadLogWithAnotherReader(t *testing.T) {
	const limit = 1 << 20
	dir := t.TempDir()
	s, err := Open(dir, Options{walLimit: limit})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	other, err := connect(filepath.Join(dir, databaseFile))
	require.NoError(t, err)
	require.NoError(t, other.script("BEGIN; SELECT count(*) FROM users"))
	var tried time.Time
	size := func(write int, failed time.Time) int64 {
		require.NoError(t, s.engine.write(t.Context(), write, func(c *conn) error {
			s.engine.writer.truncateFailed = failed
			_, err := insert(c, models.NewBatchID(time.Now()).Chunk(1), make([]byte, write))
			return err
		}))
		require.NoError(t, s.engine.write(t.Context(), 0, func(*conn) error { // after what the writer does besides
			tried = s.engine.writer.truncateFailed
			return nil
		}))
		log, err := os.Stat(s.engine.writer.log)
		require.NoError(t, err)
		return log.Size()
	}
	require.Greater(t, size(2*limit, time.Time{}), int64(limit))
	require.False(t, tried.IsZero(), "it was tried")
	lately := time.Now().Add(time.Hour) // however long the writes take
	require.Greater(t, size(limit, lately), int64(2*limit))
	require.Equal(t, lately, tried, "and not again so soon")
	require.NoError(t, other.script("COMMIT"))
	require.NoError(t, other.close())
	require.Less(t, size(100, time.Now().Add(-checkpointPause)), int64(limit))
}
