// Package codec has the stored forms of the values in models, shared by all stores.
package codec

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/safedelivr/safedelivr/models"
)

// The stored forms of immutable values. The first byte says how the rest is packed, so
// that forms can be added.
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
	return nil, fmt.Errorf("%w: stored value of form %d", models.ErrInvalid, b[0])
}

// PackJSON returns the stored form of a value that is kept as JSON.
func PackJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("models: encode: " + err.Error()) // the types of models always marshal
	}
	return Pack(b)
}

// UnpackJSON reverses PackJSON. Errors: models.ErrInvalid.
func UnpackJSON(b []byte, v any) error {
	raw, err := Unpack(b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%w: stored value: %w", models.ErrInvalid, err)
	}
	return nil
}
