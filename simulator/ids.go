package simulator

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
)

// mix derives a number from the seed of the simulator and the given parts
// (splitmix64). All ids follow from it, so they need not be kept and a repeated
// run with the same seed repeats them.
func (s *Simulator) mix(parts ...uint64) uint64 {
	x := s.seed
	for _, p := range parts {
		x += p*0xd6e8feb86659fd93 + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}

// salts keep ids of different purposes apart.
const (
	saltMessage uint64 = iota + 1
	saltEvent
	saltToken
	saltShare
	saltShuffle
)

// random returns n bytes that follow from the parts.
func (s *Simulator) random(n int, parts ...uint64) []byte {
	x := s.mix(parts...)
	var b []byte
	for i := uint64(0); len(b) < n; i++ {
		b = binary.BigEndian.AppendUint64(b, s.mix(x, i))
	}
	return b[:n]
}

// randomID returns 22 characters of base64url.
func (s *Simulator) randomID(parts ...uint64) string {
	return base64.RawURLEncoding.EncodeToString(s.random(16, parts...))
}

// randomHex returns n hexadecimal digits.
func (s *Simulator) randomHex(n int, parts ...uint64) string {
	return hex.EncodeToString(s.random((n+1)/2, parts...))[:n]
}
