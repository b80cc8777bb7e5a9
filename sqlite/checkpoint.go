package sqlite

import (
	"database/sql/driver"
	"os"
	"time"
)

// walLimit is how large the write-ahead log may become before reads are held up
// for it. SQLite moves the log into the database beside reads, but begins it
// anew only at a moment without any: reads that overlap would let it grow for
// as long as they do.
const walLimit = 64 << 20

// checkpointPause is how long the writer leaves the log alone when it could not
// be begun anew: somebody outside of the process reads the database.
const checkpointPause = 10 * time.Second

// bound begins the log anew where it is too large. Reads that go on are waited
// for, later ones and writes wait meanwhile; none of them fails.
func (w *writer) bound() {
	log, err := os.Stat(w.log)
	if err != nil || log.Size() <= w.limit || time.Since(w.bounded) < checkpointPause {
		return
	}
	w.reading.Lock()
	defer w.reading.Unlock()
	if !w.truncate() {
		w.bounded = time.Now()
	}
}

// truncate moves the whole log into the database and empties it, if nobody
// else uses it just now.
func (w *writer) truncate() bool {
	if err := w.conn.script("PRAGMA busy_timeout = 0"); err != nil {
		return false
	}
	busy := int64(1)
	err := w.conn.query("PRAGMA wal_checkpoint(TRUNCATE)", func(row []driver.Value) error {
		busy, _ = row[0].(int64)
		return nil
	})
	return w.conn.script("PRAGMA "+patience) == nil && err == nil && busy == 0
}
