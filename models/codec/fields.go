package codec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// The binary forms of values that are read often: they are faster to read than JSON, because a chunk with many calls
// and events is read hundreds of times.
//
// Fields have a fixed order and no names. Repeated words, like the name of a provider, are written once. A form never
// changes: a new one gets another letter.

// The first bytes of binary forms, plain and compressed.
const (
	formBinary     = 'b'
	formBinaryZstd = 'y'
)

// fields writes or reads the fields of a value, so that the order of the fields is said once for both. A field that is
// missing or wrong is zero and sets bad.
type fields struct {
	reads, bad bool

	b []byte // what is written
	s string // what is read; texts share its memory
	n int    // bytes of s that were read

	words *words // nil: none yet
	sec   int64  // seconds of the last time
}

// words are the words of a value, in the order in which they came.
type words struct {
	n     int
	few   [12]string     // the first ones
	index map[string]int // of the others, while writing
	more  []string       // the others, while reading
}

// add adds a word. Only a writer needs its index.
func (w *words) add(s string, reads bool) {
	switch {
	case w.n < len(w.few):
		w.few[w.n] = s
	case reads:
		w.more = append(w.more, s)
	case w.index == nil:
		w.index = map[string]int{s: w.n + 1}
	default:
		w.index[s] = w.n + 1
	}
	w.n++
}

// uint is a number of any size. Its caller keeps it if it reads.
func (f *fields) uint(v uint64) uint64 {
	switch {
	case !f.reads:
		f.b = binary.AppendUvarint(f.b, v)
	case f.n < len(f.s) && f.s[f.n] < 0x80:
		v = uint64(f.s[f.n])
		f.n++
	default:
		v = f.long()
	}
	return v
}

// long reads a number of several bytes.
func (f *fields) long() uint64 {
	var head [binary.MaxVarintLen64]byte
	v, n := binary.Uvarint(head[:copy(head[:], f.s[f.n:])])
	if n <= 0 {
		f.bad, f.n = true, len(f.s)
		return 0
	}
	f.n += n
	return v
}

// int is a number that may be negative.
func (f *fields) int(v int64) int64 {
	u := f.uint(uint64(v)<<1 ^ uint64(v>>63)) //nolint:gosec // zigzag, as binary.AppendVarint
	return int64(u>>1) ^ -int64(u&1)
}

// count is a number of values of at least one byte each.
func (f *fields) count(n int) int {
	v := f.uint(uint64(n))                   //nolint:gosec // it is not negative
	if f.reads && v > uint64(len(f.s)-f.n) { //nolint:gosec // it is not negative
		f.bad, f.n = true, len(f.s)
		return 0
	}
	return int(v) //nolint:gosec // bounded by len
}

// bytes has as many bytes as b.
func (f *fields) bytes(b []byte) {
	switch {
	case !f.reads:
		f.b = append(f.b, b...)
	case len(f.s)-f.n < len(b):
		f.bad = true
	default:
		f.n += copy(b, f.s[f.n:])
	}
}

// number is a field.
func number[T ~int | ~int64](f *fields, v *T) {
	if n := f.int(int64(*v)); f.reads {
		*v = T(n)
	}
}

// text is a field.
func text[T ~string | ~[]byte](f *fields, v *T) {
	n := f.count(len(*v))
	if !f.reads {
		f.b = append(f.b, *v...)
		return
	}
	*v = T(f.s[f.n : f.n+n])
	f.n += n
}

// word is a text that is likely to be repeated: its number, or 0 and the text.
func word[T ~string](f *fields, v *T) {
	if f.words == nil {
		f.words = &words{}
	}
	w := f.words
	if f.reads {
		*v = T(f.readWord(w))
		return
	}
	s := string(*v)
	n := 1 + slices.Index(w.few[:min(w.n, len(w.few))], s)
	if n == 0 {
		n = w.index[s]
	}
	if f.uint(uint64(n)); n > 0 { //nolint:gosec // it is not negative
		return
	}
	w.add(s, false)
	text(f, &s)
}

func (f *fields) readWord(w *words) (s string) {
	k := f.uint(0)
	switch few := uint64(len(w.few)); {
	case k > uint64(w.n): //nolint:gosec // it is not negative
		f.bad = true
		return ""
	case k > few:
		return w.more[k-1-few]
	case k > 0:
		return w.few[k-1]
	}
	text(f, &s)
	w.add(s, true)
	return s
}

// time is the difference to the last time in seconds, and nanoseconds. It has no zone.
func (f *fields) time(v *time.Time) {
	f.sec += f.int(v.Unix() - f.sec)
	ns := f.uint(uint64(v.Nanosecond())) //nolint:gosec // it is not negative
	switch {
	case !f.reads:
	case ns >= uint64(time.Second):
		f.bad, *v = true, time.Time{}
	default:
		*v = time.Unix(f.sec, int64(ns)).UTC()
	}
}

// set is the number of runs of members, and for each run its distance from the end of the last one and its length.
func (f *fields) set(v *models.Set) {
	var runs [][2]uint64 // first, last
	if !f.reads {
		for n := range v.All() {
			if k := len(runs); k > 0 && runs[k-1][1] == uint64(n)-1 { //nolint:gosec // it is positive
				runs[k-1][1]++
			} else {
				runs = append(runs, [2]uint64{uint64(n), uint64(n)}) //nolint:gosec // as above
			}
		}
		f.count(len(runs))
		end := uint64(0)
		for _, r := range runs {
			f.uint(r[0] - end)
			f.uint(r[1] - r[0])
			end = r[1]
		}
		return
	}
	*v = models.Set{}
	end := uint64(0)
	for range f.count(0) {
		gap, more := f.uint(0), f.uint(0)
		if gap == 0 || gap > models.MaxChunkRecipients || more > models.MaxChunkRecipients ||
			end+gap+more > models.MaxChunkRecipients {
			f.bad, *v = true, models.Set{}
			return
		}
		for n := end + gap; n <= end+gap+more; n++ {
			v.Add(int(n)) //nolint:gosec // at most MaxChunkRecipients
		}
		end += gap + more
	}
}

// flags are up to eight bits of a byte. A reader ignores the others.
func (f *fields) flags(marks ...*bool) {
	var b [1]byte
	for i, m := range marks {
		if *m {
			b[0] |= 1 << i
		}
	}
	f.bytes(b[:])
	for i, m := range marks {
		if f.reads {
			*m = b[0]&(1<<i) != 0
		}
	}
}

// list is a number of values. It reads nil if there are none.
func list[T any](f *fields, v *[]T, each func(*fields, *T)) {
	n := f.count(len(*v))
	if f.reads && n > 0 {
		*v = make([]T, 0, min(n, 4*models.MaxChunkRecipients)) // n is not checked yet
	}
	for i := range n {
		if f.reads {
			*v = append(*v, *new(T))
		}
		if each(f, &(*v)[i]); f.bad {
			return
		}
	}
}

// texts is a map in the order of its keys, so that the same map always has the same form.
func (f *fields) texts(v *map[string]string) {
	n := f.count(len(*v))
	if !f.reads {
		var few [8]string // most have no more
		names := slices.AppendSeq(few[:0], maps.Keys(*v))
		slices.Sort(names)
		for _, k := range names {
			value := (*v)[k]
			text(f, &k)
			text(f, &value)
		}
		return
	}
	*v = nil
	if n > 0 {
		*v = make(map[string]string, n)
	}
	for range n {
		var k, value string
		text(f, &k)
		if text(f, &value); f.bad {
			return
		}
		(*v)[k] = value
	}
}

// packFields returns the stored form of a value with an estimated size.
func packFields[T any](room int, v *T, each func(*fields, *T)) []byte {
	f := fields{b: make([]byte, 0, room)}
	each(&f, v)
	return pack(f.b, formBinary, formBinaryZstd)
}

// unpackFields reverses packFields. Errors: models.ErrInvalid, models.ErrNewer.
func unpackFields[T any](raw []byte, each func(*fields, *T)) (v T, err error) {
	if len(raw) > 0 && raw[0] != formBinary && raw[0] != formBinaryZstd {
		if raw[0] == formPlain || raw[0] == formZstd || raw[0] == formPosts {
			return v, fmt.Errorf("%w: stored value of form %d", models.ErrInvalid, raw[0])
		}
		return v, unknownForm(raw[0])
	}
	b, err := Unpack(raw)
	if err == nil {
		err = readAll(b, func(f *fields) { each(f, &v) })
	}
	return v, err
}

// readAll reads all of b. Errors: models.ErrInvalid.
func readAll(b []byte, read func(*fields)) error {
	f := fields{reads: true, s: string(b)}
	if read(&f); f.bad || f.n < len(f.s) {
		return fmt.Errorf("%w: stored value is cut off", models.ErrInvalid)
	}
	return nil
}
