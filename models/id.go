package models

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"
)

// ID is the UUID (version 7, RFC 9562) of a batch, a chunk, a log or an inbox entry.
// Its 74 free bits are used as follows:
//
//	44 random | 20 chunk number | 10 recipient number
//
// The ID of a batch has zero in its low 30 bits, the ID of a chunk in its low 10.
// Therefore chunk 0 has the ID of its batch, and every ID leads to its partition
// without a look-up.
type ID [16]byte

// Limits that follow from the layout of an ID.
const (
	MaxChunks          = 1 << 20 // chunks per batch
	MaxChunkRecipients = 1000    // recipients per chunk, numbered from 1
)

const (
	recipientBits = 10
	chunkBits     = 20
	recipientMask = 1<<recipientBits - 1
	chunkMask     = 1<<chunkBits - 1
)

// NewBatchID returns a new batch ID that carries t in milliseconds.
func NewBatchID(t time.Time) ID {
	var id ID
	if _, err := rand.Read(id[6:]); err != nil {
		panic("models: no randomness: " + err.Error()) // crypto/rand never fails on supported systems
	}
	id.setTime(t)
	id.setLow(0)
	return id
}

// NewInboxID returns a new ID for an inbox entry that carries t in milliseconds. All
// other free bits are random.
func NewInboxID(t time.Time) ID {
	var id ID
	if _, err := rand.Read(id[6:]); err != nil {
		panic("models: no randomness: " + err.Error())
	}
	id.setTime(t)
	return id
}

// MinID returns the least ID that carries the millisecond t.
func MinID(t time.Time) ID {
	var id ID
	id.setTime(t)
	return id
}

// MaxID returns the greatest ID that carries the millisecond t.
func MaxID(t time.Time) ID {
	id := ID{6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
	id.setTime(t)
	return id
}

func (id *ID) setTime(t time.Time) {
	ms := uint64(t.UnixMilli()) // 48 bits last until the year 10889
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], ms)
	copy(id[:6], b[2:])
	id[6] = 0x70 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
}

func (id ID) low() uint32 { return binary.BigEndian.Uint32(id[12:]) & (1<<30 - 1) }

func (id *ID) setLow(v uint32) {
	keep := binary.BigEndian.Uint32(id[12:]) &^ (1<<30 - 1)
	binary.BigEndian.PutUint32(id[12:], keep|v)
}

// Batch returns the ID of the batch that id belongs to.
func (id ID) Batch() ID {
	id.setLow(0)
	return id
}

// Chunk returns the ID of chunk n (from 0) of the batch that id belongs to.
func (id ID) Chunk(n int) ID {
	id.setLow(uint32(n&chunkMask) << recipientBits)
	return id
}

// ChunkNumber returns the number of the chunk that id belongs to, from 0.
func (id ID) ChunkNumber() int { return int(id.low() >> recipientBits) }

// ChunkID returns the ID of the chunk that id belongs to.
func (id ID) ChunkID() ID { return id.Chunk(id.ChunkNumber()) }

// Log returns the ID of the log of recipient r (from 1) of the chunk id.
func (id ID) Log(r int) ID {
	id.setLow(id.low()&^recipientMask | uint32(r&recipientMask))
	return id
}

// Recipient returns the recipient's number in its chunk: 1 to 1,000, or 0 if id names
// a chunk or a batch.
func (id ID) Recipient() int { return int(id.low() & recipientMask) }

// Time returns the time that the ID carries, in UTC with millisecond precision.
func (id ID) Time() time.Time {
	ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
	return time.UnixMilli(ms).UTC()
}

// IsZero reports whether id is the zero ID, which names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// Compare returns -1, 0 or 1 if id comes before o, is o, or comes after o.
func (id ID) Compare(o ID) int { return bytes.Compare(id[:], o[:]) }

// String returns the canonical lower-case form with hyphens.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler and is as strict as ParseID.
func (id *ID) UnmarshalText(b []byte) error {
	v, err := ParseID(string(b))
	if err != nil {
		return err
	}
	*id = v
	return nil
}

// ParseID reads the canonical form: 36 characters, lower case, version 7, variant 10.
// Anything else is an error that wraps ErrInvalid.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, fmt.Errorf("%w: not a UUID", ErrInvalid)
	}
	for k := range id {
		at := 2 * k
		switch { // behind the hyphens
		case k >= 10:
			at += 4
		case k >= 8:
			at += 3
		case k >= 6:
			at += 2
		case k >= 4:
			at++
		}
		hi, ok1 := unhex(s[at])
		lo, ok2 := unhex(s[at+1])
		if !ok1 || !ok2 {
			return ID{}, fmt.Errorf("%w: not a UUID in lower case", ErrInvalid)
		}
		id[k] = hi<<4 | lo
	}
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		return ID{}, fmt.Errorf("%w: not a version 7 UUID", ErrInvalid)
	}
	return id, nil
}

// unhex returns the value of a hexadecimal digit.
func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// ParseBatchID reads an ID that names a batch.
func ParseBatchID(s string) (ID, error) {
	id, err := ParseID(s)
	if err == nil && id.low() != 0 {
		return ID{}, fmt.Errorf("%w: not the id of a batch", ErrInvalid)
	}
	return id, err
}

// ParseLogID reads an ID that names a log: one recipient of one batch.
func ParseLogID(s string) (ID, error) {
	id, err := ParseID(s)
	if err == nil && (id.Recipient() < 1 || id.Recipient() > MaxChunkRecipients) {
		return ID{}, fmt.Errorf("%w: not the id of a log", ErrInvalid)
	}
	return id, err
}
