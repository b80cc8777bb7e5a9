package intake

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// MaxFirstRejected is the number of rejected recipients that an answer lists.
const MaxFirstRejected = 100

// Bounds of a rejection in bytes, so that those of a piece fit into it.
const (
	maxRejection       = models.PieceSize/models.RejectionsInPiece - 2
	maxRejectionDetail = 300
	maxRejectionColumn = 64
)

// rejected keeps why recipients were left out, in memory or a file.
type rejected struct {
	newRun func() *buffer
	runs   []*buffer // each in the order of the recipients, one for each pass over them
	count  int       // recipients
	found  int       // mistakes
	last   int       // index of the recipient that was rejected last in this pass; -1: none
	err    error     // of writing; Wrong cannot return it
}

// Permit lets the batch leave out the recipients that have mistakes. It must be called before
// the first recipient is added.
func (b *Builder) Permit() {
	b.rejected = &rejected{newRun: func() *buffer { return &buffer{dir: b.cfg.SpoolDir, grow: b.cfg.Spooling} }}
	b.rejected.begin()
}

// Permissive reports whether recipients with mistakes are left out.
func (b *Builder) Permissive() bool { return b.rejected != nil }

// Rejected returns how many recipients were left out.
func (b *Builder) Rejected() int {
	if b.rejected == nil {
		return 0
	}
	return b.rejected.count
}

// SetRow tells the line of its file on which the next recipient begins; 0: it is in no file.
func (b *Builder) SetRow(line int) { b.row = line }

// SetColumns tells the headings of the file of the next recipients by the names of the
// variables; those of address and name are email and name.
func (b *Builder) SetColumns(headings map[string]string) { b.columns = headings }

// Wrong adds a mistake. If recipients with mistakes are left out, a mistake of a recipient is
// none of the batch.
func (b *Builder) Wrong(pointer, code, detail string, args ...any) {
	if b.rejected != nil {
		if index, rest, ok := recipientOf(pointer); ok {
			b.reject(index, rest, code, detail, args)
			return
		}
	}
	b.Mistakes.Wrong(pointer, code, detail, args...)
}

// Found returns the number of mistakes, those of recipients that are left out among them.
func (b *Builder) Found() int {
	if b.rejected == nil {
		return b.Mistakes.Found()
	}
	return b.Mistakes.Found() + b.rejected.found
}

// recipientOf divides the pointer of a mistake in a recipient.
func recipientOf(pointer string) (index int, rest string, ok bool) {
	at, ok := strings.CutPrefix(pointer, "/to/")
	if !ok {
		return 0, "", false
	}
	end := strings.IndexByte(at, '/')
	if end < 0 {
		end = len(at)
	}
	index, err := strconv.Atoi(at[:end])
	return index, at[end:], err == nil
}

// begin begins a pass over the recipients.
func (r *rejected) begin() {
	r.runs = append(r.runs, r.newRun())
	r.last = -1
}

// reject records the first mistake of a recipient.
func (b *Builder) reject(index int, rest, code, detail string, args []any) {
	r := b.rejected
	if r.found++; index == r.last || r.err != nil {
		return
	}
	r.last = index
	r.count++
	// What is cut may end in a part of an address, which an erasure would not find.
	for i, a := range args {
		if s, isText := a.(string); isText && strings.HasSuffix(s, `…"`) {
			args[i] = "A long value"
		}
	}
	if strings.Contains(rest, "…") {
		rest = ""
	}
	m := models.Rejection{Index: index, Row: b.row, Pointer: "/to/" + strconv.Itoa(index) + rest, Code: code,
		Detail: fmt.Sprintf(detail, args...)}
	if b.row > 0 {
		m.Column = b.columnOf(rest)
	}
	raw, err := json.Marshal(m)
	if len(raw) > maxRejection {
		m.Pointer, m.Column = "/to/"+strconv.Itoa(index), cutText(m.Column, maxRejectionColumn)
		m.Detail = cutText(m.Detail, maxRejectionDetail)
		raw, err = json.Marshal(m)
	}
	if err == nil {
		run := r.runs[len(r.runs)-1]
		_, err = run.Write(append(binary.AppendUvarint(nil, uint64(len(raw))), raw...))
	}
	r.err = err
}

// cutText returns at most n bytes of a text, in whole words if there are any, so that no part of an
// address is left.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:strings.LastIndexByte(s[:n], ' ')+1], "") + "…"
}

// columnOf returns the heading of the column that the pointer of a mistake, relative to its recipient, is about.
func (b *Builder) columnOf(rest string) string {
	if rest == "" {
		return b.columns["email"]
	}
	name, isVar := strings.CutPrefix(rest, "/vars/")
	if !isVar {
		name = rest[1:]
	}
	return b.columns[name]
}

// EachRejected calls f for each recipient that was left out, in order.
func (b *Builder) EachRejected(f func(r models.Rejection) error) error {
	if b.rejected == nil {
		return nil
	}
	type source struct {
		in   byteReader
		next models.Rejection
	}
	var open []*source
	advance := func(s *source) (more bool, err error) {
		n, err := binary.ReadUvarint(s.in)
		if err == io.EOF { //nolint:errorlint // ReadUvarint returns it as it is
			return false, nil
		}
		if err == nil {
			raw := make([]byte, n)
			if _, err = io.ReadFull(s.in, raw); err == nil {
				s.next = models.Rejection{}
				err = json.Unmarshal(raw, &s.next)
			}
		}
		if err != nil {
			return false, fmt.Errorf("%w: %w", errSpool, err)
		}
		return true, nil
	}
	for _, run := range b.rejected.runs {
		in, err := run.section(0, run.size)
		if err != nil {
			return spoolError(err)
		}
		s := &source{in: in}
		switch more, err := advance(s); {
		case err != nil:
			return spoolError(err)
		case more:
			open = append(open, s)
		}
	}
	for len(open) > 0 {
		least := 0
		for i := range open {
			if open[i].next.Index < open[least].next.Index {
				least = i
			}
		}
		if err := f(open[least].next); err != nil {
			return err
		}
		more, err := advance(open[least])
		if err != nil {
			return spoolError(err)
		}
		if !more {
			open = append(open[:least], open[least+1:]...)
		}
	}
	return nil
}

// FirstRejected returns the first recipients that were left out.
func (b *Builder) FirstRejected() (first []models.Rejection, err error) {
	err = b.EachRejected(func(r models.Rejection) error {
		if first = append(first, r); len(first) == MaxFirstRejected {
			return io.EOF
		}
		return nil
	})
	if err == io.EOF { //nolint:errorlint // f has returned it
		err = nil
	}
	return first, err
}

// RejectedPieces calls f for each piece of the rejections, as models.Rejections reads them.
func (b *Builder) RejectedPieces(f func(number int, piece []byte) error) error {
	var list []models.Rejection
	number := 0
	flush := func() error {
		raw, err := json.Marshal(list)
		if err != nil {
			return err
		}
		list = list[:0]
		number++
		return f(number-1, raw)
	}
	err := b.EachRejected(func(r models.Rejection) error {
		if list = append(list, r); len(list) < models.RejectionsInPiece {
			return nil
		}
		return flush()
	})
	if err == nil && len(list) > 0 {
		err = flush()
	}
	return err
}

// leaveOut calls check for each recipient, and moves those in which it finds no mistake to a new spool.
func (b *Builder) leaveOut(check func(at place, r *models.Recipient)) error {
	old := b.spool
	kept := newSpool(old.dir, b.cfg.Spooling)
	b.spool = kept
	defer old.close()
	old.repeats = true // the new spool finds them again
	b.rejected.begin()
	err := old.each(b.paced(func(at place, r models.Recipient) error {
		b.row = at.row
		before := b.rejected.found
		if check(at, &r); b.rejected.found > before {
			return b.rejected.err
		}
		return kept.add(at, &r)
	}))
	b.keepRepeats()
	return spoolError(err)
}

// noneLeft reports the mistakes of the first recipients if all were left out.
func (b *Builder) noneLeft() error {
	if b.Mistakes.Found() > 0 || b.rejected.count == 0 || b.spool.cut().count > 0 {
		return nil
	}
	first, err := b.FirstRejected()
	for _, r := range first {
		b.Mistakes.Wrong(r.Pointer, r.Code, "%s", r.Detail)
	}
	b.Skip(b.rejected.count - len(first))
	return err
}

// checkRejected returns the error of recording why recipients were left out.
func (b *Builder) checkRejected() error {
	if b.rejected == nil {
		return nil
	}
	return spoolError(cmp.Or(b.rejected.err, b.ctx.Err()))
}

// pacedFunc is called for each recipient of a spool.
type pacedFunc = func(at place, r models.Recipient) error

// paced returns f with pauses for other work, until the context ends.
func (b *Builder) paced(f pacedFunc) pacedFunc {
	n := 0
	return func(at place, r models.Recipient) error {
		if n++; n%yieldAfter == 1 {
			if err := cmp.Or(b.pace.yield(), b.ctx.Err()); err != nil {
				return err
			}
		}
		return f(at, r)
	}
}
