package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
)

// EncodeBatch returns the stored form of b.
func EncodeBatch(b *models.Batch) []byte { return PackJSON(b) }

// DecodeBatch reverses EncodeBatch. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeBatch(raw []byte) (b models.Batch, err error) { return b, UnpackJSON(raw, &b) }

// EncodeEntry returns the stored form of e.
func EncodeEntry(e *models.Entry) []byte { return packFields(256, e, entryFields) }

// DecodeEntry reverses EncodeEntry. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeEntry(raw []byte) (models.Entry, error) {
	e, err := unpackFields(raw, entryFields)
	if err == nil && !e.Kind.Valid() {
		err = fmt.Errorf("%w: entry of kind %q", models.ErrNewer, e.Kind)
	}
	return e, err
}

// EncodeFact returns the stored form of f, without its key.
func EncodeFact(f *models.Fact) []byte {
	return packFields(128+96*len(f.Events), f, factFields)
}

// DecodeFact reverses EncodeFact. The key is the one the fact was stored under.
// Errors: models.ErrInvalid, models.ErrNewer.
func DecodeFact(key string, raw []byte) (models.Fact, error) {
	f, err := unpackFields(raw, factFields)
	f.Key = key
	if err == nil && f.Outcome != nil {
		for i := range f.Outcome.Parts {
			if c := f.Outcome.Parts[i].Class; !c.Valid() {
				return f, fmt.Errorf("%w: outcome of class %q", models.ErrNewer, c)
			}
		}
	}
	for i := 0; i < len(f.Events) && err == nil; i++ {
		if k := f.Events[i].Kind; !k.Valid() {
			err = fmt.Errorf("%w: event of kind %q", models.ErrNewer, k)
		}
	}
	return f, err
}

// EncodeSummary returns the stored form of s.
func EncodeSummary(s *models.Summary) []byte { return PackJSON(s) }

// DecodeSummary reverses EncodeSummary. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeSummary(raw []byte) (s models.Summary, err error) { return s, UnpackJSON(raw, &s) }

// EncodeCommand returns the stored form of c.
func EncodeCommand(c *models.Command) []byte { return PackJSON(c) }

// DecodeCommand reverses EncodeCommand. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeCommand(raw []byte) (c models.Command, err error) { return c, UnpackJSON(raw, &c) }

// EncodeSuppression returns the stored form of s, without its hash.
func EncodeSuppression(s *models.Suppression) []byte { return PackJSON(s) }

// DecodeSuppression reverses EncodeSuppression. The hash is the one that the entry was stored
// under. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeSuppression(hash, raw []byte) (s models.Suppression, err error) {
	if len(hash) != len(s.Hash) {
		return s, fmt.Errorf("%w: hash of %d bytes", models.ErrInvalid, len(hash))
	}
	err = UnpackJSON(raw, &s)
	copy(s.Hash[:], hash)
	if err == nil && !s.Reason.Valid() {
		err = fmt.Errorf("%w: suppression because of %q", models.ErrNewer, s.Reason)
	}
	return s, err
}

// EncodeMarks returns the stored form of the marks of an addition. They are random, so that
// they are not compressed.
func EncodeMarks(marks []uint64) []byte {
	raw := append(make([]byte, 0, 1+8*len(marks)), formPlain)
	for _, m := range marks {
		raw = binary.BigEndian.AppendUint64(raw, m)
	}
	return raw
}

// DecodeMarks reverses EncodeMarks. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeMarks(raw []byte) ([]uint64, error) {
	raw, err := Unpack(raw)
	if err == nil && len(raw)%8 != 0 {
		err = fmt.Errorf("%w: marks of %d bytes", models.ErrInvalid, len(raw))
	}
	if err != nil {
		return nil, err
	}
	out := make([]uint64, 0, len(raw)/8)
	for ; len(raw) > 0; raw = raw[8:] {
		out = append(out, binary.BigEndian.Uint64(raw))
	}
	return out, nil
}
