package intake

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// spool keeps the recipients of a request, in order, until they are stored. Nothing is stored before everything was
// checked, and the content may follow the recipients.
type spool struct {
	buffer

	all      cut  // of all recipients
	distinct cut  // of the recipients without repeated addresses
	repeats  bool // whether repeated addresses are kept

	seeds [2]maphash.Seed
	seen  map[[2]uint64]struct{} // hashes of addresses
	vars  map[string]*varSet     // by signature
	many  bool                   // there are more than maxVarSets sets of variables
	space spoolSpace

	lengths map[string]*lengths // of the values of each variable
}

// lengths is what is known of the values of a variable.
type lengths struct {
	longest  int  // bytes
	controls bool // no header may contain some of them
}

// coverage says how many recipients have no value for a variable.
type coverage int

const (
	missingNone coverage = iota
	missingSome          // or unknown until the recipients are read again
	missingAll
)

// missing returns the coverage of each variable in names.
func (s *spool) missing(names []string) map[string]coverage {
	out := map[string]coverage{}
	for _, n := range names {
		if s.many {
			out[n] = missingSome
			continue
		}
		without, count := 0, s.cut().count
		for _, set := range s.vars {
			if _, has := slices.BinarySearch(set.names, n); !has {
				if s.repeats {
					without += set.all
				} else {
					without += set.distinct
				}
			}
		}
		switch {
		case without == 0:
			out[n] = missingNone
		case without == count:
			out[n] = missingAll
		default:
			out[n] = missingSome
		}
	}
	return out
}

// varSet counts the recipients that have the same variables.
type varSet struct {
	names    []string // sorted
	all      int
	distinct int // without repeated addresses
}

// cut divides recipients into chunks. The recipients of a chunk have the same times.
type cut struct {
	count int   // recipients
	runs  []run // by the number of their times
	open  int   // bytes of the chunks that are not complete
	whole bool  // all are in one chunk, of any size
}

// run is the chunks of the recipients with the same times.
type run struct {
	sizes    []int // recipients of each chunk
	bytes    int   // of the last chunk
	complete bool  // the last chunk gets no more recipients
}

// maxOpen is the number of bytes of chunks that are collected at the same time.
const maxOpen = 16 * models.MaxChunkBytes

// add adds a recipient with times that have a number.
func (c *cut) add(times, size int) {
	for len(c.runs) <= times {
		c.runs = append(c.runs, run{complete: true})
	}
	r := &c.runs[times]
	if n := len(r.sizes) - 1; !r.complete && !c.whole &&
		(r.sizes[n] == models.MaxChunkRecipients || r.bytes+size > models.MaxChunkBytes) {
		r.complete = true
		c.open -= r.bytes
	}
	if r.complete {
		r.sizes, r.bytes, r.complete = append(r.sizes, 0), 0, false
	}
	r.sizes[len(r.sizes)-1]++
	r.bytes += size
	c.count++
	if c.open += size; c.open > maxOpen && !c.whole {
		for i := range c.runs {
			c.runs[i].complete = true
		}
		c.open = 0
	}
}

// sizes returns the number of recipients of each chunk.
func (c *cut) sizes() (out []int) {
	for i := range c.runs {
		out = append(out, c.runs[i].sizes...)
	}
	return out
}

// cut returns the division of the recipients that are kept.
func (s *spool) cut() *cut {
	if s.repeats {
		return &s.all
	}
	return &s.distinct
}

// maxVarSets is the number of different sets of variables that a spool keeps. If a request has more, each recipient is
// checked in a second pass.
const maxVarSets = 1000

// maxVarNames is the number of different names of variables after which a spool stops to keep sets of variables.
const maxVarNames = 10_000

// spoolSpace is memory that a spool uses again for each recipient.
type spoolSpace struct {
	record, signature []byte
	names             []string
}

func newSpool(cfg *Config) *spool {
	return &spool{
		buffer: cfg.buffer(),
		seeds:  [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		seen:   map[[2]uint64]struct{}{},
		vars:   map[string]*varSet{},
	}
}

// repeat reports whether the address was added before, in any case. It compares 128 bits of a keyed hash. Without
// hashes none was.
func (s *spool) repeat(email string) bool {
	if s.seen == nil {
		return false
	}
	email = strings.ToLower(email)
	k := [2]uint64{maphash.String(s.seeds[0], email), maphash.String(s.seeds[1], email)}
	if _, ok := s.seen[k]; ok {
		return true
	}
	s.seen[k] = struct{}{}
	return false
}

// place says where a recipient is in the request.
type place struct {
	index int
	row   int      // line of its file, from 1; 0: it is in none
	json  []string // names of variables whose value is JSON
	times int      // number of its times; 0: those of the batch
}

// add appends a recipient.
func (s *spool) add(at place, r *models.Recipient) error {
	again := s.repeat(r.Email)
	s.all.add(at.times, r.Size())
	if !again {
		s.distinct.add(at.times, r.Size())
	}
	s.countVars(r, again)

	rec := append(s.space.record[:0], distinct)
	if again {
		rec[0] = repeated
	}
	for _, n := range []int{at.index, at.times, at.row, len(at.json)} {
		rec = binary.AppendUvarint(rec, uint64(n)) //nolint:gosec // it is not negative
	}
	for _, name := range at.json {
		rec = append(append(rec, name...), 0) // no name of a variable has a zero
	}
	s.space.record = codec.AppendRecipient(rec, r)
	return s.writeBlock(s.space.record)
}

// countVars adds a recipient to the set of its variables.
func (s *spool) countVars(r *models.Recipient, again bool) {
	if s.many || len(s.lengths) > maxVarNames {
		s.many = true
		return
	}
	names := s.space.names[:0]
	for k, v := range r.Vars {
		names = append(names, k)
		l := s.lengths[k]
		if l == nil {
			if l = new(lengths); s.lengths == nil {
				s.lengths = map[string]*lengths{}
			}
			s.lengths[k] = l
		}
		l.longest, l.controls = max(l.longest, len(v)), l.controls || HasControls(v)
	}
	slices.Sort(names)
	signature := s.space.signature[:0]
	for _, n := range names {
		signature = append(append(signature, n...), ',')
	}
	s.space.names, s.space.signature = names, signature
	set := s.vars[string(signature)]
	if set == nil {
		if len(s.vars) == maxVarSets {
			s.many = true
			return
		}
		set = &varSet{names: slices.Clone(names)}
		s.vars[string(signature)] = set
	}
	set.all++
	if !again {
		set.distinct++
	}
}

// Kinds of the blocks of a spool.
const (
	distinct  byte = iota // a recipient
	repeated              // a recipient whose address was added before
	rejection             // why a recipient is left out, as JSON
)

// each calls f for the recipients that are kept, and rejected, unless it is nil, for the blocks of rejections, in
// order.
func (s *spool) each(rejected func(block []byte) error, f func(at place, r models.Recipient) error) error {
	return s.eachBlock(func(rec []byte) error {
		switch {
		case rec[0] == rejection && rejected != nil:
			return rejected(rec)
		case rec[0] == rejection, rec[0] == repeated && !s.repeats:
			return nil
		}
		rest := rec[1:]
		next := func() int {
			n, k := binary.Uvarint(rest)
			rest = rest[k:]
			return int(n) //nolint:gosec // add wrote it
		}
		at := place{index: next(), times: next(), row: next()}
		for range next() {
			name, after, _ := bytes.Cut(rest, []byte{0})
			at.json, rest = append(at.json, string(name)), after
		}
		r, _, err := codec.ReadRecipient(rest)
		if err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		return f(at, r)
	})
}

// irregular returns the sizes of the chunks, or nil if all chunks but the last are full.
func (s *spool) irregular() []int {
	sizes := s.cut().sizes()
	for i, n := range sizes {
		if i < len(sizes)-1 && n != models.MaxChunkRecipients {
			return sizes
		}
	}
	return nil
}
