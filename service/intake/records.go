package intake

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Records keeps the records of a request until they are carried out: in memory, or in a file if they are many. It is
// not safe for concurrent use.
type Records struct {
	buffer buffer
	count  int
}

// NewRecords returns empty Records for the request of a builder. The caller must close them.
func (b *Builder) NewRecords() *Records {
	return &Records{buffer: buffer{dir: b.cfg.SpoolDir, grow: b.cfg.Spooling}}
}

// Close releases the resources of the records.
func (r *Records) Close() { r.buffer.close() }

// Count returns the number of records.
func (r *Records) Count() int { return r.count }

// Add appends a record.
func (r *Records) Add(raw []byte) error {
	_, err := r.buffer.Write(binary.AppendUvarint(nil, uint64(len(raw))))
	if err == nil {
		_, err = r.buffer.Write(raw)
	}
	r.count++
	return spoolError(err)
}

// Each calls f for each record in order. It may be called again.
func (r *Records) Each(f func(raw []byte) error) error {
	in, err := r.buffer.section(0, r.buffer.size)
	if err != nil {
		return spoolError(err)
	}
	for range r.count {
		n, err := binary.ReadUvarint(in)
		if err != nil {
			return spoolError(fmt.Errorf("%w: %w", errSpool, err))
		}
		raw := slices.Grow([]byte(nil), int(n))[:n] //nolint:gosec // Add wrote it
		if _, err := io.ReadFull(in, raw); err != nil {
			return spoolError(fmt.Errorf("%w: %w", errSpool, err))
		}
		if err := f(raw); err != nil {
			return err
		}
	}
	return nil
}
