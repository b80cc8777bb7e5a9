package intake

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// bufferMemory is the number of bytes that a buffer keeps in memory. It writes the rest to disk.
const bufferMemory = 256 << 10

// errSpool means that a buffer could not be written or read.
var errSpool = errors.New("spool")

// buffer keeps what was read of a request until it is stored.
type buffer struct {
	dir  string
	grow func(n int64) error // asked before n bytes are written to the file; nil: not asked
	room int64               // bytes that grow has allowed
	size int64
	mem  []byte
	head []byte // space for the length of a block
	file *os.File
	w    *bufio.Writer
}

// fileBuffer is the size in bytes of the buffers before a file.
const fileBuffer = 64 << 10

// bufferStep is the number of bytes for which a buffer asks at a time.
const bufferStep = 256 << 10

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	if b.file == nil && len(b.mem)+len(p) > bufferMemory {
		if err := b.spill(); err != nil {
			return 0, err
		}
	}
	if b.file == nil {
		b.mem = append(b.mem, p...)
		b.size += int64(len(p))
		return len(p), nil
	}
	if err := b.reserve(b.size + int64(len(p))); err != nil {
		return 0, err
	}
	if _, err := b.w.Write(p); err != nil {
		return 0, fmt.Errorf("%w: %w", errSpool, err)
	}
	b.size += int64(len(p))
	return len(p), nil
}

// writeBlock writes bytes so that eachBlock finds their end.
func (b *buffer) writeBlock(p []byte) error {
	b.head = binary.AppendUvarint(b.head[:0], uint64(len(p)))
	_, err := b.Write(b.head)
	if err == nil {
		_, err = b.Write(p)
	}
	return err
}

// eachBlock calls f for each block, which is valid until f returns.
func (b *buffer) eachBlock(f func(block []byte) error) error {
	in, err := b.section(0, b.size)
	var block []byte
	for err == nil {
		var n uint64
		if n, err = binary.ReadUvarint(in); err == io.EOF { //nolint:errorlint // ReadUvarint returns it as it is
			return nil
		}
		block = slices.Grow(block[:0], int(n))[:n] //nolint:gosec // writeBlock wrote it
		if err == nil {
			_, err = io.ReadFull(in, block)
		}
		if err == nil {
			if err := f(block); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%w: %w", errSpool, err)
}

// reserve asks for room for a file of a size.
func (b *buffer) reserve(size int64) error {
	if size <= b.room || b.grow == nil {
		return nil
	}
	more := max(size-b.room, bufferStep)
	if err := b.grow(more); err != nil {
		return err
	}
	b.room += more
	return nil
}

// spill moves the bytes from memory to a file.
func (b *buffer) spill() error {
	if err := b.reserve(b.size); err != nil {
		return err
	}
	f, err := os.CreateTemp(b.dir, "safedelivr-intake-*")
	if err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	_ = os.Remove(f.Name()) // where the system can remove an open file, a crash leaves nothing behind
	b.file, b.w = f, bufio.NewWriterSize(f, fileBuffer)
	if _, err := b.w.Write(b.mem); err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	b.mem = nil
	return nil
}

// byteReader reads bytes, and one byte at little cost.
type byteReader interface {
	io.Reader
	io.ByteReader
}

// section returns a reader of n bytes from an offset on. Only bytes in a file need a buffer. Errors of the reader are
// not wrapped.
func (b *buffer) section(from, n int64) (byteReader, error) {
	if b.file == nil {
		return bytes.NewReader(b.mem[from : from+n]), nil
	}
	if err := b.w.Flush(); err != nil {
		return nil, fmt.Errorf("%w: %w", errSpool, err)
	}
	return bufio.NewReaderSize(io.NewSectionReader(b.file, from, n), fileBuffer), nil
}

func (b *buffer) close() {
	if b.room > 0 {
		_ = b.grow(-b.room) // nothing refuses to take room back
	}
	if b.file != nil {
		name := b.file.Name()
		_ = b.file.Close()
		_ = os.Remove(name) // for systems that cannot remove an open file
	}
}
