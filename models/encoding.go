package models

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The stored forms of the immutable values, shared by all stores. Each begins
// with one byte that says how the rest is packed, so that forms can be added.
const (
	formPlain = 'p'
	formZstd  = 'z'
)

// packFrom is the size from which compression pays.
const packFrom = 400

// maxUnpacked bounds what a stored value may grow to; nothing larger is ever
// written.
const maxUnpacked = 64 << 20

var (
	packer = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
		if err != nil {
			panic("models: zstd: " + err.Error()) // constant options
		}
		return e
	})
	unpacker = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxUnpacked))
		if err != nil {
			panic("models: zstd: " + err.Error())
		}
		return d
	})
)

// Pack compresses b where that pays.
func Pack(b []byte) []byte { return pack(b, formPlain, formZstd) }

func pack(b []byte, plain, packed byte) []byte {
	if len(b) < packFrom {
		return append([]byte{plain}, b...)
	}
	return packer().EncodeAll(b, append(make([]byte, 0, len(b)/3+16), packed))
}

// Unpack reverses Pack.
func Unpack(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty stored value", ErrInvalid)
	}
	switch b[0] {
	case formPlain, formBinary:
		return b[1:], nil
	case formZstd, formBinaryZstd:
		out, err := unpacker().DecodeAll(b[1:], nil)
		if err != nil {
			return nil, fmt.Errorf("%w: stored value: %w", ErrInvalid, err)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%w: stored value of form %d", ErrInvalid, b[0])
}

func packJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("models: encode: " + err.Error()) // our own types always marshal
	}
	return Pack(b)
}

func unpackJSON(b []byte, v any) error {
	raw, err := Unpack(b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%w: stored value: %w", ErrInvalid, err)
	}
	return nil
}

// Encode returns the stored form of b.
func (b *Batch) Encode() []byte { return packJSON(b) }

// DecodeBatch reverses Batch.Encode.
func DecodeBatch(raw []byte) (b Batch, err error) { return b, unpackJSON(raw, &b) }

// Encode returns the stored form of e.
func (e *Entry) Encode() []byte { return packBinary(256, e.encode) }

// DecodeEntry reverses Entry.Encode. It reads the JSON of earlier builds, too.
func DecodeEntry(raw []byte) (Entry, error) { return unpackBinary[Entry](raw) }

// Encode returns the stored form of f, without its key.
func (f *Fact) Encode() []byte {
	if f.Lift > 0 { // the binary form has no place for it, and it is rare
		return packJSON(f)
	}
	return packBinary(128+96*len(f.Events), f.encode)
}

// DecodeFact reverses Fact.Encode; the key is the one it was stored under. It
// reads JSON, too.
func DecodeFact(key string, raw []byte) (Fact, error) {
	f, err := unpackBinary[Fact](raw)
	f.Key = key
	return f, err
}

// Encode returns the stored form of s.
func (s *Summary) Encode() []byte { return packJSON(s) }

// DecodeSummary reverses Summary.Encode.
func DecodeSummary(raw []byte) (s Summary, err error) { return s, unpackJSON(raw, &s) }

// EncodeRecipients returns the stored form of a chunk's recipients.
func EncodeRecipients(rs []Recipient) []byte {
	n := 8
	for i := range rs {
		n += rs[i].Size() + 4
	}
	b := binary.AppendUvarint(make([]byte, 0, n), uint64(len(rs)))
	for i := range rs {
		b = AppendRecipient(b, &rs[i])
	}
	return Pack(b)
}

// AppendRecipient appends the binary form of r to b.
func AppendRecipient(b []byte, r *Recipient) []byte {
	b = appendText(b, r.Email)
	b = appendText(b, r.Name)
	b = binary.AppendUvarint(b, uint64(len(r.Vars)))
	if len(r.Vars) == 0 {
		return b
	}
	keys := make([]string, 0, 8)
	for k := range r.Vars {
		keys = append(keys, k)
	}
	slices.Sort(keys) // the same recipients always have the same stored form
	for _, k := range keys {
		b = appendText(b, k)
		b = appendText(b, r.Vars[k])
	}
	return b
}

func appendText[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// DecodeRecipients reverses EncodeRecipients.
func DecodeRecipients(raw []byte) ([]Recipient, error) {
	b, err := Unpack(raw)
	if err != nil {
		return nil, err
	}
	d := textDecoder{s: string(b)}
	n := d.count()
	if n > MaxChunkRecipients {
		return nil, fmt.Errorf("%w: %d recipients in a chunk", ErrInvalid, n)
	}
	rs := make([]Recipient, 0, n)
	for range n {
		rs = append(rs, d.recipient())
	}
	if d.bad || d.s != "" {
		return nil, fmt.Errorf("%w: stored recipients are cut off", ErrInvalid)
	}
	return rs, nil
}

// ReadRecipient takes one recipient, as AppendRecipient wrote it, from the
// front of b.
func ReadRecipient(b []byte) (r Recipient, rest []byte, err error) {
	d := textDecoder{s: string(b)}
	r = d.recipient()
	if d.bad {
		return Recipient{}, b, fmt.Errorf("%w: recipient is cut off", ErrInvalid)
	}
	return r, b[len(b)-len(d.s):], nil
}

// textDecoder reads from the front of s. What it returns are parts of s: a
// thousand recipients are one piece of memory and not some thousands.
type textDecoder struct {
	s   string
	bad bool
}

func (d *textDecoder) recipient() Recipient {
	r := Recipient{Email: d.text(), Name: d.text()}
	if n := d.count(); n > 0 && !d.bad {
		r.Vars = make(map[string]string, n)
		for range n {
			k := d.text()
			r.Vars[k] = d.text()
			if d.bad {
				break
			}
		}
	}
	return r
}

// count reads a number of things that take at least a byte each.
func (d *textDecoder) count() int {
	v, n := uvarint(d.s)
	if n <= 0 || v > uint64(len(d.s)) {
		d.bad, d.s = true, ""
		return 0
	}
	d.s = d.s[n:]
	return int(v) //nolint:gosec // bounded by len
}

// uvarint is binary.Uvarint of a string.
func uvarint(s string) (uint64, int) {
	if s != "" && s[0] < 0x80 {
		return uint64(s[0]), 1
	}
	var head [binary.MaxVarintLen64]byte
	return binary.Uvarint(head[:copy(head[:], s)])
}

func (d *textDecoder) text() string {
	n := d.count()
	if d.bad || n > len(d.s) {
		d.bad = true
		return ""
	}
	t := d.s[:n]
	d.s = d.s[n:]
	return t
}
