package models

import (
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// Set is a set of recipient numbers (1 to 1,000) of one chunk. The zero value is
// empty. Copying a Set copies its members.
type Set struct{ words [16]uint64 }

// SetOf returns the set of the given numbers.
func SetOf(numbers ...int) Set {
	var s Set
	for _, n := range numbers {
		s.Add(n)
	}
	return s
}

// SetTo returns the set {1, …, n}.
func SetTo(n int) Set {
	var s Set
	for i := 1; i <= n; i++ {
		s.Add(i)
	}
	return s
}

// Add adds n to the set. It ignores numbers outside 1 to 1,000.
func (s *Set) Add(n int) {
	if n >= 1 && n <= MaxChunkRecipients {
		s.words[n>>6] |= 1 << (n & 63)
	}
}

// Remove removes n from the set.
func (s *Set) Remove(n int) {
	if n >= 1 && n <= MaxChunkRecipients {
		s.words[n>>6] &^= 1 << (n & 63)
	}
}

// Has reports whether n is in the set.
func (s Set) Has(n int) bool {
	return n >= 1 && n <= MaxChunkRecipients && s.words[n>>6]&(1<<(n&63)) != 0
}

// Len returns the number of members.
func (s Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// Empty reports whether the set has no member.
func (s Set) Empty() bool { return s.words == [16]uint64{} }

// First returns the smallest member, or 0.
func (s Set) First() int {
	for i, w := range s.words {
		if w != 0 {
			return i<<6 + bits.TrailingZeros64(w)
		}
	}
	return 0
}

// And returns the members of both sets.
func (s Set) And(o Set) Set {
	for i := range s.words {
		s.words[i] &= o.words[i]
	}
	return s
}

// Or returns the members of either set.
func (s Set) Or(o Set) Set {
	for i := range s.words {
		s.words[i] |= o.words[i]
	}
	return s
}

// Minus returns the members of s that are not in o.
func (s Set) Minus(o Set) Set {
	for i := range s.words {
		s.words[i] &^= o.words[i]
	}
	return s
}

// All yields the members in ascending order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s.words {
			for w != 0 {
				if !yield(i<<6 + bits.TrailingZeros64(w)) {
					return
				}
				w &= w - 1
			}
		}
	}
}

// Halves splits the set into its lower and its upper half. The lower half is never
// the smaller one.
func (s Set) Halves() (lower, upper Set) {
	half, k := (s.Len()+1)/2, 0
	for n := range s.All() {
		if k < half {
			lower.Add(n)
		} else {
			upper.Add(n)
		}
		k++
	}
	return lower, upper
}

// String returns the set as ranges: "1-500,502".
func (s Set) String() string {
	var b strings.Builder
	from, to := 0, 0
	flush := func() {
		if from == 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(from))
		if to > from {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(to))
		}
	}
	for n := range s.All() {
		if n == to+1 && from != 0 {
			to = n
			continue
		}
		flush()
		from, to = n, n
	}
	flush()
	return b.String()
}

// parseSet reverses String. Numbers outside 1 to 1,000 and malformed ranges are errors
// that wrap ErrInvalid.
func parseSet(text string) (Set, error) {
	var s Set
	if text == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		a, b, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(a)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(b)
		}
		if err != nil || from < 1 || to < from || to > MaxChunkRecipients {
			return Set{}, fmt.Errorf("%w: recipient range %q", ErrInvalid, part)
		}
		for n := from; n <= to; n++ {
			s.Add(n)
		}
	}
	return s, nil
}

// MarshalText implements encoding.TextMarshaler.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Set) UnmarshalText(b []byte) error {
	v, err := parseSet(string(b))
	if err == nil {
		*s = v
	}
	return err
}
