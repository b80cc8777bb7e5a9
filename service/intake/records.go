package intake

import "bytes"

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
