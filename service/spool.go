package service

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// spoolMemory is how much of a request's recipients is kept in memory; the rest
// goes to disk.
const spoolMemory = 256 << 10

// errSpool: the spool could not be written or read.
var errSpool = errors.New("spool")

// spool keeps the recipients of a request, in order, between reading and
// storing: nothing may be stored before everything was checked, and the content
// may come after the recipients.
type spool struct {
	dir  string
	buf  []byte
	file *os.File
	w    *bufio.Writer

	written  int  // records
	all      cut  // everything
	distinct cut  // without repeated addresses
	repeats  bool // repeated addresses are wanted

	seeds [2]maphash.Seed
	seen  map[[2]uint64]struct{} // addresses, hashed
	vars  map[string]*varSet     // by signature
	many  bool                   // too many different sets of variables to keep

	broken map[string]bool // variables with a value that is not fit for a header
}

// The recipients without a value for a placeholder.
const (
	none    = iota
	perhaps // some, or it takes a second reading to know
	all
)

// missing tells, for every name, which recipients have no value for it.
func (s *spool) missing(names []string) map[string]int {
	out := map[string]int{}
	for _, n := range names {
		if s.many {
			out[n] = perhaps
			continue
		}
		without, count := 0, s.cut().count
		for _, set := range s.vars {
			if !set.names[n] {
				if s.repeats {
					without += set.all
				} else {
					without += set.distinct
				}
			}
		}
		switch {
		case without == 0:
			out[n] = none
		case without == count:
			out[n] = all
		default:
			out[n] = perhaps
		}
	}
	return out
}

// varSet is a set of variables that some recipients bring.
type varSet struct {
	names    map[string]bool
	all      int
	distinct int
}

// cut is how recipients fall into chunks.
type cut struct {
	count int   // recipients
	sizes []int // recipients per chunk
	bytes int   // of the last chunk
}

func (c *cut) add(size int) {
	if n := len(c.sizes); n == 0 || c.sizes[n-1] == models.MaxChunkRecipients || c.bytes+size > models.MaxChunkBytes {
		c.sizes = append(c.sizes, 0)
		c.bytes = 0
	}
	c.sizes[len(c.sizes)-1]++
	c.bytes += size
	c.count++
}

// cut is the one that counts.
func (s *spool) cut() *cut {
	if s.repeats {
		return &s.all
	}
	return &s.distinct
}

// maxVarSets bounds how many different sets of variables are remembered; with
// more, every recipient is checked on a second reading.
const maxVarSets = 1000

func newSpool(dir string) *spool {
	return &spool{dir: dir, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		seen: map[[2]uint64]struct{}{}, vars: map[string]*varSet{}, broken: map[string]bool{}}
}

// repeat reports whether the address came before, whatever its case. Addresses
// are compared by 128 bits of a keyed hash.
func (s *spool) repeat(email string) bool {
	email = strings.ToLower(email)
	k := [2]uint64{maphash.String(s.seeds[0], email), maphash.String(s.seeds[1], email)}
	if _, ok := s.seen[k]; ok {
		return true
	}
	s.seen[k] = struct{}{}
	return false
}

// add appends a recipient that stood at index in the request.
func (s *spool) add(index int, r *models.Recipient) error {
	again := s.repeat(r.Email)
	s.all.add(r.Size())
	if !again {
		s.distinct.add(r.Size())
	}
	s.written++
	s.noteVars(r, again)

	flag := byte(0)
	if again {
		flag = 1
	}
	place := binary.AppendUvarint([]byte{flag}, uint64(index)) //nolint:gosec // an index is not negative
	rec := codec.AppendRecipient(place, r)
	head := binary.AppendUvarint(nil, uint64(len(rec)))
	if s.file == nil && len(s.buf)+len(head)+len(rec) > spoolMemory {
		if err := s.spill(); err != nil {
			return err
		}
	}
	if s.file == nil {
		s.buf = append(append(s.buf, head...), rec...)
		return nil
	}
	if _, err := s.w.Write(head); err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	if _, err := s.w.Write(rec); err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	return nil
}

func (s *spool) noteVars(r *models.Recipient, again bool) {
	if s.many || len(s.broken) > maxVarSets {
		s.many = true
		return
	}
	names := make([]string, 0, len(r.Vars))
	for k, v := range r.Vars {
		names = append(names, k)
		if hasControls(v) {
			s.broken[k] = true
		}
	}
	slices.Sort(names)
	signature := strings.Join(names, ",")
	set := s.vars[signature]
	if set == nil {
		if len(s.vars) == maxVarSets {
			s.many = true
			return
		}
		set = &varSet{names: map[string]bool{}}
		for _, n := range names {
			set.names[n] = true
		}
		s.vars[signature] = set
	}
	set.all++
	if !again {
		set.distinct++
	}
}

func (s *spool) spill() error {
	f, err := os.CreateTemp(s.dir, "safedelivr-intake-*")
	if err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	_ = os.Remove(f.Name()) // unlinked where the system allows it: a crash leaves nothing behind
	s.file, s.w = f, bufio.NewWriterSize(f, 64<<10)
	if _, err := s.w.Write(s.buf); err != nil {
		return fmt.Errorf("%w: %w", errSpool, err)
	}
	s.buf = nil
	return nil
}

// each reads back, in order, everything that counts.
func (s *spool) each(f func(index int, r models.Recipient) error) error {
	var in *bufio.Reader
	if s.file == nil {
		in = bufio.NewReader(strings.NewReader(string(s.buf)))
	} else {
		if err := s.w.Flush(); err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		if _, err := s.file.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		in = bufio.NewReaderSize(s.file, 64<<10)
	}
	var rec []byte
	for range s.written {
		n, err := binary.ReadUvarint(in)
		if err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		rec = slices.Grow(rec[:0], int(n))[:n] //nolint:gosec // written above
		if _, err := io.ReadFull(in, rec); err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		if rec[0] == 1 && !s.repeats {
			continue
		}
		index, k := binary.Uvarint(rec[1:])
		r, _, err := codec.ReadRecipient(rec[1+k:])
		if err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		if err := f(int(index), r); err != nil { //nolint:gosec // written above
			return err
		}
	}
	return nil
}

// irregular returns the chunk sizes where they are not plain thousands.
func (s *spool) irregular() []int {
	sizes := s.cut().sizes
	for i, n := range sizes {
		if i < len(sizes)-1 && n != models.MaxChunkRecipients {
			return sizes
		}
	}
	return nil
}

func (s *spool) close() {
	if s.file != nil {
		name := s.file.Name()
		_ = s.file.Close()
		_ = os.Remove(name) // where it could not be unlinked while open
	}
}
