package codec

import "github.com/safedelivr/safedelivr/models"

// EncodeBatch returns the stored form of b.
func EncodeBatch(b *models.Batch) []byte { return PackJSON(b) }

// DecodeBatch reverses EncodeBatch. Errors: models.ErrInvalid.
func DecodeBatch(raw []byte) (b models.Batch, err error) { return b, UnpackJSON(raw, &b) }

// EncodeEntry returns the stored form of e.
func EncodeEntry(e *models.Entry) []byte {
	return packBinary(256, func(w *binaryWriter) { encodeEntryFields(e, w) })
}

// DecodeEntry reverses EncodeEntry. Errors: models.ErrInvalid.
func DecodeEntry(raw []byte) (models.Entry, error) { return unpackBinary(raw, decodeEntryFields) }

// EncodeFact returns the stored form of f, without its key.
func EncodeFact(f *models.Fact) []byte {
	return packBinary(128+96*len(f.Events), func(w *binaryWriter) { encodeFactFields(f, w) })
}

// DecodeFact reverses EncodeFact. The key is the one the fact was stored under.
// Errors: models.ErrInvalid.
func DecodeFact(key string, raw []byte) (models.Fact, error) {
	f, err := unpackBinary(raw, decodeFactFields)
	f.Key = key
	return f, err
}

// EncodeSummary returns the stored form of s.
func EncodeSummary(s *models.Summary) []byte { return PackJSON(s) }

// DecodeSummary reverses EncodeSummary. Errors: models.ErrInvalid.
func DecodeSummary(raw []byte) (s models.Summary, err error) { return s, UnpackJSON(raw, &s) }

// EncodeCommand returns the stored form of c.
func EncodeCommand(c *models.Command) []byte { return PackJSON(c) }

// DecodeCommand reverses EncodeCommand. Errors: models.ErrInvalid.
func DecodeCommand(raw []byte) (c models.Command, err error) { return c, UnpackJSON(raw, &c) }
