package models

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"
)

// Fingerprint returns a short case-insensitive hash of an address. Different addresses
// may have the same one, so a match must be checked against the recipients.
func Fingerprint(address string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.ToLower(address))) // never fails
	return h.Sum32()
}

// NewAddressIndex returns the fingerprints of a chunk's recipients.
func NewAddressIndex(chunk ID, rs []Recipient) AddressIndex {
	marks := make([]uint32, len(rs))
	for i := range rs {
		marks[i] = Fingerprint(rs[i].Email)
	}
	slices.Sort(marks)
	b := make([]byte, 0, 4*len(marks))
	for _, m := range marks {
		b = binary.BigEndian.AppendUint32(b, m)
	}
	return AddressIndex{Chunk: chunk, Fingerprints: b}
}

// MayContain reports whether an address with this fingerprint may be among the
// recipients.
func (p *AddressIndex) MayContain(mark uint32) bool {
	lo, hi := 0, len(p.Fingerprints)/4
	for lo < hi {
		mid := (lo + hi) / 2
		switch m := binary.BigEndian.Uint32(p.Fingerprints[4*mid:]); {
		case m == mark:
			return true
		case m < mark:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return false
}
