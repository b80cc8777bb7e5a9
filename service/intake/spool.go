package intake

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// spool keeps the recipients of a request, in order, until they are stored. Nothing is
// stored before everything was checked, and the content may follow the recipients.
type spool struct {
	buffer

	written  int  // records
	all      cut  // of all recipients
	distinct cut  // of the recipients without repeated addresses
	repeats  bool // whether repeated addresses are kept

	seeds [2]maphash.Seed
	seen  map[[2]uint64]struct{} // hashes of addresses
	vars  map[string]*varSet     // by signature
	many  bool                   // there are more than maxVarSets sets of variables
	space spoolSpace

	withControls map[string]bool // variables that have a value that no header may contain
	longest      map[string]int  // bytes of the longest value of each variable
}

// coverage tells how many recipients have no value for a variable.
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
	whole bool  // all are in one chunk, whatever their size
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

// maxVarSets is the number of different sets of variables that a spool keeps. If a
// request has more, each recipient is checked in a second pass.
const maxVarSets = 1000

// maxVarNames is the number of different names of variables after which a spool stops to
// keep sets of variables.
const maxVarNames = 10_000

// spoolSpace is memory that a spool uses again for each recipient.
type spoolSpace struct {
	record, signature []byte
	names             []string
}

func newSpool(cfg *Config) *spool {
	return &spool{
		buffer:       cfg.buffer(),
		seeds:        [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		seen:         map[[2]uint64]struct{}{},
		vars:         map[string]*varSet{},
		withControls: map[string]bool{},
		longest:      map[string]int{},
	}
}

// repeat reports whether the address was added before, in any case. It compares 128
// bits of a keyed hash. Without hashes none was.
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

// Flags of a record.
const (
	repeatFlag = 1 // the address was added before
	jsonFlag   = 2 // names of variables whose value is JSON come before the recipient
	rowFlag    = 4 // the line of the recipient's file comes before that
	timesFlag  = 8 // the number of its times comes before that
)

// place tells where a recipient is in the request.
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
	s.written++
	s.countVars(r, again)

	flag := byte(0)
	if again {
		flag |= repeatFlag
	}
	if len(at.json) > 0 {
		flag |= jsonFlag
	}
	if at.row > 0 {
		flag |= rowFlag
	}
	if at.times > 0 {
		flag |= timesFlag
	}
	rec := binary.AppendUvarint(append(s.space.record[:0], flag), uint64(at.index)) //nolint:gosec // not negative
	if at.times > 0 {
		rec = binary.AppendUvarint(rec, uint64(at.times))
	}
	if at.row > 0 {
		rec = binary.AppendUvarint(rec, uint64(at.row))
	}
	if len(at.json) > 0 {
		names := strings.Join(at.json, ",") // no name has a comma
		rec = append(binary.AppendUvarint(rec, uint64(len(names))), names...)
	}
	s.space.record = codec.AppendRecipient(rec, r)
	return s.writeBlock(s.space.record)
}

// countVars adds a recipient to the set of its variables.
func (s *spool) countVars(r *models.Recipient, again bool) {
	if s.many || len(s.longest) > maxVarNames {
		s.many = true
		return
	}
	names := s.space.names[:0]
	for k, v := range r.Vars {
		names = append(names, k)
		if n, ok := s.longest[k]; !ok || len(v) > n {
			s.longest[k] = len(v)
		}
		if HasControls(v) {
			s.withControls[k] = true
		}
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

// each calls f for the recipients that are kept, in order.
func (s *spool) each(f func(at place, r models.Recipient) error) error {
	in, err := s.section(0, s.size)
	if err != nil {
		return err
	}
	var rec []byte
	for range s.written {
		if rec, err = readBlock(in, rec); err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		if rec[0]&repeatFlag != 0 && !s.repeats {
			continue
		}
		index, k := binary.Uvarint(rec[1:])
		rest := rec[1+k:]
		at := place{index: int(index)} //nolint:gosec // add wrote it
		if rec[0]&timesFlag != 0 {
			times, k := binary.Uvarint(rest)
			at.times, rest = int(times), rest[k:] //nolint:gosec // add wrote it
		}
		if rec[0]&rowFlag != 0 {
			row, k := binary.Uvarint(rest)
			at.row, rest = int(row), rest[k:] //nolint:gosec // add wrote it
		}
		if rec[0]&jsonFlag != 0 {
			n, k := binary.Uvarint(rest)
			at.json = strings.Split(string(rest[k:k+int(n)]), ",") //nolint:gosec // add wrote it
			rest = rest[k+int(n):]                                 //nolint:gosec // add wrote it
		}
		r, _, err := codec.ReadRecipient(rest)
		if err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		if err := f(at, r); err != nil {
			return err
		}
	}
	return nil
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
