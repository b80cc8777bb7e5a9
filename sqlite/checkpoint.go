package sqlite

import (
	"database/sql/driver"
	"os"
	"time"
)

// walLimit is the size of the write-ahead log above which reads have to wait for
// it to be truncated. SQLite copies the log into the database beside reads, but
// restarts the log only at a moment without reads: reads that overlap would let
// it grow.
const walLimit = 64 << 20

// checkpointPause is the pause after a failed attempt to truncate the log. It fails
// while another process reads the database.
const checkpointPause = 10 * time.Second

// boundLog truncates the log if it is too large. It waits for running reads, and
// later reads and writes wait for it. None of them fails.
func (w *writer) boundLog() {
	log, err := os.Stat(w.log)
	if err != nil || log.Size() <= w.limit || time.Since(w.truncateFailed) < checkpointPause {
		return
	}
	w.reading.Lock()
	defer w.reading.Unlock()
	if !w.truncate() {
		w.truncateFailed = time.Now()
	}
}

// truncate copies the whole log into the database and empties it. It reports whether
// it did: it does not while another process uses the log.
func (w *writer) truncate() bool {
	if err := w.conn.script("PRAGMA busy_timeout = 0"); err != nil {
		return false
	}
	busy := int64(1)
	err := w.conn.query("PRAGMA wal_checkpoint(TRUNCATE)", func(row []driver.Value) error {
		busy, _ = row[0].(int64)
		return nil
	})
	return w.conn.script("PRAGMA "+busyTimeout) == nil && err == nil && busy == 0
}
