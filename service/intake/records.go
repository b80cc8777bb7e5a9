package intake

import (
	"bytes"
	"io"
)

// Records keeps the records of a request until they are carried out: in memory, or in a file if they are many. It is
// not safe for concurrent use.
type Records struct {
	buffer buffer
	count  int
}

// NewRecords returns empty Records for a request. The caller must close them.
func (in *Intake) NewRecords() *Records { return &Records{buffer: in.cfg.buffer()} }

// Close releases the resources of the records.
func (r *Records) Close() { r.buffer.close() }

// Count returns the number of records.
func (r *Records) Count() int { return r.count }

// Add appends a record.
func (r *Records) Add(raw []byte) error {
	r.count++
	return spoolError(r.buffer.writeBlock(raw))
}

// Each calls f for each record in order. It may be called again.
func (r *Records) Each(f func(raw []byte) error) error {
	return spoolError(r.buffer.eachBlock(func(raw []byte) error { return f(bytes.Clone(raw)) }))
}

// Spooled keeps the bytes of a request until all have arrived: in memory, or in a file if they are many.
type Spooled struct{ buffer buffer }

// NewSpooled returns an empty Spooled for a request. The caller must close it.
func (in *Intake) NewSpooled() *Spooled { return &Spooled{buffer: in.cfg.buffer()} }

// Write implements io.Writer.
func (r *Spooled) Write(p []byte) (int, error) {
	n, err := r.buffer.Write(p)
	return n, spoolError(err)
}

// Reader returns a reader of all bytes that were written.
func (r *Spooled) Reader() (io.Reader, error) {
	all, err := r.buffer.section(0, r.buffer.size)
	return all, spoolError(err)
}

// Close releases the resources.
func (r *Spooled) Close() { r.buffer.close() }
