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

// Size returns the number of bytes that were written.
func (r *Spooled) Size() int64 { return r.buffer.size }

// Since returns the bytes that were written since there were from.
func (r *Spooled) Since(from int64) *Part {
	return &Part{of: r, from: from, size: r.buffer.size - from}
}

// Part is a part of the bytes of a Spooled.
type Part struct {
	of         *Spooled
	from, size int64
}

// Reader returns a reader of the bytes, which is valid until the Spooled is closed.
func (p *Part) Reader() (io.Reader, error) {
	r, err := p.of.buffer.section(p.from, p.size)
	return r, spoolError(err)
}

// Close releases the resources.
func (r *Spooled) Close() { r.buffer.close() }
