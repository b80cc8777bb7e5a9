// Package codec has the stored forms of the values in models, shared by all stores.
package codec

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/safedelivr/safedelivr/models"
)

// The first byte of a stored form is its version: a lower-case letter that says how the
// rest is packed and encoded. A form never changes: a new one gets another letter. A
// letter that this version of the program does not know is of a newer version
// (models.ErrNewer), and any other byte of no version (models.ErrInvalid). JSON has
// names, so that a form of JSON may get more members: one that this version does not know
// is of a newer version, too, and is never ignored.
const (
	formPlain = 'p'
	formZstd  = 'z'
)

// packFrom is the smallest size that is compressed.
const packFrom = 400

// maxUnpacked is the maximum size of an unpacked value. Larger ones are never written.
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

// Pack returns the stored form of b. It compresses b unless it is short.
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
		return nil, fmt.Errorf("%w: empty stored value", models.ErrInvalid)
	}
	switch b[0] {
	case formPlain, formBinary:
		return b[1:], nil
	case formZstd, formBinaryZstd:
		out, err := unpacker().DecodeAll(b[1:], nil)
		if err != nil {
			return nil, fmt.Errorf("%w: stored value: %w", models.ErrInvalid, err)
		}
		return out, nil
	}
	return nil, unknownForm(b[0])
}

// unknownForm returns the error about a form that no function reads.
func unknownForm(form byte) error {
	if form >= 'a' && form <= 'z' {
		return fmt.Errorf("%w: form %q", models.ErrNewer, form)
	}
	return fmt.Errorf("%w: stored value of form %d", models.ErrInvalid, form)
}

// PackJSON returns the stored form of a value that is kept as JSON.
func PackJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("models: encode: " + err.Error()) // the types of models always marshal
	}
	return Pack(b)
}

// UnpackJSON reverses PackJSON. Errors: models.ErrInvalid, models.ErrNewer.
func UnpackJSON(b []byte, v any) error {
	raw, err := Unpack(b)
	if err != nil {
		return err
	}
	return models.DecodeStored(raw, v)
}
