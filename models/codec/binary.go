package codec

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// The binary forms of entries and facts. They are faster to read than JSON, because a
// chunk with many calls and events is read hundreds of times.
//
// Fields have a fixed order and no names. Repeated words, like the name of a provider,
// are written once. A form never changes: a new one gets another letter.

// The first bytes of binary forms, plain and compressed.
const (
	formBinary     = 'b'
	formBinaryZstd = 'y'
)

type binaryWriter struct {
	b     []byte
	few   [16]string // the first words
	words int
	more  map[string]int // numbers of the other words
	sec   int64          // seconds of the last time
}

func (w *binaryWriter) int(n int64)   { w.b = binary.AppendVarint(w.b, n) }
func (w *binaryWriter) text(s string) { w.b = appendText(w.b, s) }

// word writes a text that is likely to be repeated: its number, or 0 and the text.
func (w *binaryWriter) word(s string) {
	n := 1 + slices.Index(w.few[:min(w.words, len(w.few))], s)
	if n == 0 {
		n = w.more[s]
	}
	w.b = binary.AppendUvarint(w.b, uint64(n)) //nolint:gosec // it is not negative
	if n > 0 {
		return
	}
	if w.words < len(w.few) {
		w.few[w.words] = s
	} else {
		if w.more == nil {
			w.more = map[string]int{}
		}
		w.more[s] = w.words + 1
	}
	w.words++
	w.text(s)
}

// time writes a time as the difference to the last time in seconds, and nanoseconds. It
// drops the zone.
func (w *binaryWriter) time(t time.Time) {
	w.int(t.Unix() - w.sec)
	w.sec = t.Unix()
	w.b = binary.AppendUvarint(w.b, uint64(t.Nanosecond())) //nolint:gosec // it is not negative
}

// set writes the number of runs of members, and for each run its distance from the end
// of the last one and its length.
func (w *binaryWriter) set(s models.Set) {
	var runs [][2]int // first, last
	for n := range s.All() {
		if k := len(runs); k > 0 && runs[k-1][1] == n-1 {
			runs[k-1][1] = n
		} else {
			runs = append(runs, [2]int{n, n})
		}
	}
	w.b = binary.AppendUvarint(w.b, uint64(len(runs)))
	end := 0
	for _, r := range runs {
		w.b = binary.AppendUvarint(w.b, uint64(r[0]-end))  //nolint:gosec // they ascend
		w.b = binary.AppendUvarint(w.b, uint64(r[1]-r[0])) //nolint:gosec // they ascend
		end = r[1]
	}
}

// flags writes up to eight bits as a byte.
func (w *binaryWriter) flags(marks ...bool) {
	var b byte
	for i, m := range marks {
		if m {
			b |= 1 << i
		}
	}
	w.b = append(w.b, b)
}

// binaryReader reads the form of a binaryWriter. A missing field is zero and sets bad.
type binaryReader struct {
	textDecoder
	few   [16]string // the first words
	words int
	more  []string
	sec   int64
}

func (r *binaryReader) uint() uint64 {
	v, n := uvarint(r.s)
	if n <= 0 {
		r.bad, r.s = true, ""
		return 0
	}
	r.s = r.s[n:]
	return v
}

func (r *binaryReader) int64() int64 {
	v := r.uint()
	return int64(v>>1) ^ -int64(v&1)
}

func (r *binaryReader) int() int { return int(r.int64()) }

func (r *binaryReader) word() string {
	k := r.uint()
	switch {
	case k == 0:
		s := r.text()
		if r.words < len(r.few) {
			r.few[r.words] = s
		} else {
			r.more = append(r.more, s)
		}
		r.words++
		return s
	case k > uint64(r.words): //nolint:gosec // it is not negative
		r.bad = true
		return ""
	case k <= uint64(len(r.few)):
		return r.few[k-1]
	}
	return r.more[k-1-uint64(len(r.few))]
}

func (r *binaryReader) time() time.Time {
	r.sec += r.int64()
	ns := r.uint()
	if ns >= uint64(time.Second) {
		r.bad = true
		return time.Time{}
	}
	return time.Unix(r.sec, int64(ns)).UTC()
}

func (r *binaryReader) set() (s models.Set) {
	end := uint64(0)
	for range r.count() {
		gap, more := r.uint(), r.uint()
		if gap == 0 || gap > models.MaxChunkRecipients || more > models.MaxChunkRecipients ||
			end+gap+more > models.MaxChunkRecipients {
			r.bad = true
			return models.Set{}
		}
		for n := end + gap; n <= end+gap+more; n++ {
			s.Add(int(n)) //nolint:gosec // at most MaxChunkRecipients
		}
		end += gap + more
	}
	return s
}

func (r *binaryReader) flags() (marks byte) {
	if r.s == "" {
		r.bad = true
		return 0
	}
	marks, r.s = r.s[0], r.s[1:]
	return marks
}

// bytes reads as many bytes as b has into it.
func (r *binaryReader) bytes(b []byte) {
	if len(r.s) < len(b) {
		r.bad = true
		return
	}
	copy(b, r.s)
	r.s = r.s[len(b):]
}

// packBinary returns the stored form of a value with an estimated size.
func packBinary(room int, encode func(w *binaryWriter)) []byte {
	w := binaryWriter{b: make([]byte, 0, room)}
	encode(&w)
	return pack(w.b, formBinary, formBinaryZstd)
}

// unpackBinary reverses packBinary. Errors: models.ErrInvalid.
func unpackBinary[T any](raw []byte, decode func(*T, *binaryReader)) (v T, err error) {
	if len(raw) > 0 && raw[0] != formBinary && raw[0] != formBinaryZstd {
		if raw[0] == formPlain || raw[0] == formZstd || raw[0] == formPosts {
			return v, fmt.Errorf("%w: stored value of form %d", models.ErrInvalid, raw[0])
		}
		return v, unknownForm(raw[0])
	}
	b, err := Unpack(raw)
	if err != nil {
		return v, err
	}
	r := binaryReader{textDecoder: textDecoder{s: string(b)}}
	if decode(&v, &r); r.bad || r.s != "" {
		return v, fmt.Errorf("%w: stored value is cut off", models.ErrInvalid)
	}
	return v, nil
}

func encodeEntryFields(e *models.Entry, w *binaryWriter) {
	w.int(int64(e.Number))
	w.b = append(w.b, e.Token[:]...)
	w.word(string(e.Kind))
	w.time(e.At)
	w.set(e.Recipients)
	w.word(e.Provider)
	w.word(e.Worker)
	// A process without the last flag cannot read the batches of entries that have it.
	w.flags(!e.StartBy.IsZero(), !e.CallEnds.IsZero(), e.MayDouble, e.Together, e.Repeats != 0, e.Account != "")
	if !e.StartBy.IsZero() {
		w.time(e.StartBy)
	}
	if !e.CallEnds.IsZero() {
		w.time(e.CallEnds)
	}
	if e.Repeats != 0 {
		w.int(int64(e.Repeats))
	}
	if e.Account != "" {
		w.word(e.Account)
	}
	w.int(int64(e.Retry))
	w.int(int64(e.Split))
	w.text(e.Because)
	w.word(string(e.Reason))
	w.text(e.Detail)
	w.int(int64(e.Command))
}

func decodeEntryFields(e *models.Entry, r *binaryReader) {
	e.Number = r.int()
	if r.bytes(e.Token[:]); r.bad {
		return
	}
	e.Kind = models.EntryKind(r.word())
	e.At = r.time()
	e.Recipients = r.set()
	e.Provider = r.word()
	e.Worker = r.word()
	marks := r.flags()
	if marks&1 != 0 {
		e.StartBy = r.time()
	}
	if marks&2 != 0 {
		e.CallEnds = r.time()
	}
	e.MayDouble, e.Together = marks&4 != 0, marks&8 != 0
	if marks&16 != 0 {
		e.Repeats = r.int()
	}
	if marks&32 != 0 {
		e.Account = r.word()
	}
	e.Retry, e.Split = r.int(), r.int()
	e.Because = r.text()
	e.Reason = models.Reason(r.word())
	e.Detail = r.text()
	e.Command = r.int()
}

func encodeFactFields(f *models.Fact, w *binaryWriter) {
	w.flags(f.Outcome != nil, f.VersionFloor != 0)
	if f.VersionFloor != 0 {
		w.int(f.VersionFloor)
	}
	if o := f.Outcome; o != nil {
		w.int(int64(o.Attempt))
		w.time(o.At)
		w.int(int64(o.Took))
		w.b = binary.AppendUvarint(w.b, uint64(len(o.Parts)))
		for i := range o.Parts {
			encodePartFields(&o.Parts[i], w)
		}
	}
	w.b = binary.AppendUvarint(w.b, uint64(len(f.Events)))
	for i := range f.Events {
		encodeEventFields(&f.Events[i], w)
	}
}

func decodeFactFields(f *models.Fact, r *binaryReader) {
	marks := r.flags()
	if marks&2 != 0 {
		f.VersionFloor = r.int64()
	}
	if marks&1 != 0 {
		o := &models.Outcome{Attempt: r.int(), At: r.time(), Took: time.Duration(r.int64())}
		if n := r.count(); n > 0 {
			o.Parts = make([]models.Part, 0, roomFor(n))
			for range n {
				var p models.Part
				decodePartFields(&p, r)
				o.Parts = append(o.Parts, p)
			}
		}
		f.Outcome = o
	}
	if n := r.count(); n > 0 {
		f.Events = make([]models.Event, 0, roomFor(n))
		for range n {
			var e models.Event
			decodeEventFields(&e, r)
			f.Events = append(f.Events, e)
		}
	}
}

// roomFor limits the capacity that is allocated for n values before they are read.
func roomFor(n int) int { return min(n, 4*models.MaxChunkRecipients) }

func encodePartFields(p *models.Part, w *binaryWriter) {
	w.word(string(p.Class))
	w.set(p.Recipients)
	w.word(string(p.Reason))
	w.int(int64(p.Status))
	w.word(p.Text)
	w.text(p.MessageID)
	w.flags(p.Final, !p.RetryAt.IsZero(), p.Fewer != 0)
	if !p.RetryAt.IsZero() {
		w.time(p.RetryAt)
	}
	if p.Fewer != 0 {
		w.int(int64(p.Fewer))
	}
}

func decodePartFields(p *models.Part, r *binaryReader) {
	p.Class = models.Class(r.word())
	p.Recipients = r.set()
	p.Reason = models.Reason(r.word())
	p.Status = r.int()
	p.Text = r.word()
	p.MessageID = r.text()
	marks := r.flags()
	p.Final = marks&1 != 0
	if marks&2 != 0 {
		p.RetryAt = r.time()
	}
	if marks&4 != 0 {
		p.Fewer = r.int()
	}
}

func encodeEventFields(e *models.Event, w *binaryWriter) {
	w.text(e.ID)
	w.int(int64(e.Recipient))
	w.int(int64(e.Attempt))
	w.word(e.Provider)
	w.word(string(e.Kind))
	w.time(e.At)
	w.word(string(e.Reason))
	w.word(e.BounceClass)
	w.int(int64(e.Status))
	w.word(e.Enhanced)
	w.word(e.Text)
	w.flags(e.Async, e.Guess)
	w.int(e.ParseRevision)
}

func decodeEventFields(e *models.Event, r *binaryReader) {
	e.ID = r.text()
	e.Recipient, e.Attempt = r.int(), r.int()
	e.Provider = r.word()
	e.Kind = models.EventKind(r.word())
	e.At = r.time()
	e.Reason = models.Reason(r.word())
	e.BounceClass = r.word()
	e.Status = r.int()
	e.Enhanced = r.word()
	e.Text = r.word()
	flags := r.flags()
	e.Async, e.Guess = flags&1 != 0, flags&2 != 0
	e.ParseRevision = r.int64()
}
