package provider

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
)

// A Seed is the source of everything random. The same seed repeats a run.
type Seed uint64

// A Purpose keeps ids of different uses apart.
type Purpose uint64

// The purposes of ids.
const (
	ForMessage Purpose = iota + 1
	ForEvent
	ForToken
	ForShare
	ForShuffle
)

// Mix returns a number that follows from the seed and the parts (splitmix64).
func (s Seed) Mix(parts ...uint64) uint64 {
	x := uint64(s)
	for _, p := range parts {
		x += p*0xd6e8feb86659fd93 + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}

// IDs derive the ids of an account from the seed, so they need not be stored.
type IDs struct {
	seed    Seed
	account uint64
}

// NewIDs returns the ids of the account with the given name.
func NewIDs(seed Seed, account string) IDs {
	hash := fnv.New64a()
	hash.Write([]byte(account))
	return IDs{seed, hash.Sum64()}
}

// Account returns the number of the account.
func (d IDs) Account() uint64 { return d.account }

// Mix returns a number that follows from the account and the parts.
func (d IDs) Mix(purpose Purpose, parts ...uint64) uint64 {
	return d.seed.Mix(append([]uint64{uint64(purpose), d.account}, parts...)...)
}

// Bytes returns n bytes that follow from the account and the parts.
func (d IDs) Bytes(n int, purpose Purpose, parts ...uint64) []byte {
	x := d.Mix(purpose, parts...)
	var b []byte
	for i := uint64(0); len(b) < n; i++ {
		b = binary.BigEndian.AppendUint64(b, d.seed.Mix(x, i))
	}
	return b[:n]
}

// Text returns 22 characters of base64url that follow from the account and the
// parts.
func (d IDs) Text(purpose Purpose, parts ...uint64) string {
	return base64.RawURLEncoding.EncodeToString(d.Bytes(16, purpose, parts...))
}

// Hex returns n hexadecimal digits that follow from the account and the parts.
func (d IDs) Hex(n int, purpose Purpose, parts ...uint64) string {
	return hex.EncodeToString(d.Bytes((n+1)/2, purpose, parts...))[:n]
}

// UUID returns the UUID of the message with a number.
func (d IDs) UUID(serial uint64) string {
	h := d.Hex(32, ForMessage, serial)
	return h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-a" + h[17:20] + "-" + h[20:]
}
