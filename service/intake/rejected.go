package intake

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// MaxFirstRejected is the number of rejected recipients that an answer lists.
const MaxFirstRejected = 100

// Bounds of a rejection in bytes, so that those of a piece fit into it.
const (
	maxRejection       = models.PieceSize/models.RejectionsInPiece - 2
	maxRejectionDetail = 300
	maxRejectionColumn = 64
)

// Mistakes collects the mistakes in a request. If recipients with mistakes are left out, it keeps their first mistakes
// apart from those of the batch.
type Mistakes struct {
	problem.Mistakes
	rejected   *rejected         // nil: a recipient with mistakes refuses the batch
	row        int               // line of the file that the next recipient is in; 0: none
	columns    map[string]string // its headings, by the names of variables
	unreadable map[string]bool   // fields whose value could not be read; the mistake is listed
}

// rejected keeps why recipients were left out: in the spool, between the recipients.
type rejected struct {
	spool *spool
	count int   // recipients
	found int   // mistakes
	last  int   // index of the recipient that was rejected last in this pass; -1: none
	err   error // of writing; Wrong cannot return it
}

// Permissive reports whether recipients with mistakes are left out.
func (m *Mistakes) Permissive() bool { return m.rejected != nil }

// Rejected returns how many recipients were left out.
func (m *Mistakes) Rejected() int {
	if m.rejected == nil {
		return 0
	}
	return m.rejected.count
}

// lost returns the error of recording why recipients were left out.
func (m *Mistakes) lost() error {
	if m.rejected == nil {
		return nil
	}
	return m.rejected.err
}

// SetRow sets the line of its file on which the next recipient begins; 0: it is in no file.
func (m *Mistakes) SetRow(line int) { m.row = line }

// SetColumns sets the headings of the file of the next recipients by the names of the variables; those of address and
// name are email and name.
func (m *Mistakes) SetColumns(headings map[string]string) { m.columns = headings }

// Unreadable marks a field as present but unreadable, so that it is not reported as missing. The caller reports the
// mistake.
func (m *Mistakes) Unreadable(name string) {
	if m.unreadable == nil {
		m.unreadable = map[string]bool{}
	}
	m.unreadable[name] = true
}

// Wrong adds a mistake. If recipients with mistakes are left out, a mistake of a recipient is none of the batch.
func (m *Mistakes) Wrong(pointer, code, detail string, args ...any) {
	if m.rejected != nil {
		if index, rest, ok := recipientOf(pointer); ok {
			m.reject(index, rest, code, detail, args)
			return
		}
	}
	m.Mistakes.Wrong(pointer, code, detail, args...)
}

// Found returns the number of mistakes, those of recipients that are left out among them.
func (m *Mistakes) Found() int {
	if m.rejected == nil {
		return m.Mistakes.Found()
	}
	return m.Mistakes.Found() + m.rejected.found
}

// Err returns the error that lists the mistakes found so far, or nil if there are none.
func (m *Mistakes) Err() error {
	return m.In(problem.New(problem.Invalid, "invalid_request",
		"The batch was not accepted and nothing was stored: see errors."))
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

// reject records the first mistake of a recipient.
func (m *Mistakes) reject(index int, rest, code, detail string, args []any) {
	r := m.rejected
	if r.found++; index == r.last || r.err != nil {
		return
	}
	r.last = index
	r.count++
	// A cut text may end in a part of an address, which an erasure would not find.
	for i, a := range args {
		if s, isText := a.(string); isText && strings.HasSuffix(s, `…"`) {
			args[i] = "A long value"
		}
	}
	if strings.Contains(rest, "…") {
		rest = ""
	}
	why := models.Rejection{Index: index, Row: m.row, Pointer: pointerTo(index) + rest, Code: code,
		Detail: fmt.Sprintf(detail, args...)}
	if m.row > 0 {
		why.Column = m.columnOf(rest)
	}
	raw, err := json.Marshal(why)
	if len(raw) > maxRejection {
		why.Pointer, why.Column = pointerTo(index), cutText(why.Column, maxRejectionColumn)
		why.Detail = cutText(why.Detail, maxRejectionDetail)
		raw, err = json.Marshal(why)
	}
	if err == nil {
		err = r.spool.writeBlock(append([]byte{rejection}, raw...))
	}
	r.err = err
}

// cutText returns at most n bytes of a text, in whole words if there are any, so that no part of an address is left.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:strings.LastIndexByte(s[:n], ' ')+1], "") + "…"
}

// columnOf returns the heading of the column that the pointer of a mistake, relative to its recipient, is about.
func (m *Mistakes) columnOf(rest string) string {
	if rest == "" {
		return m.columns["email"]
	}
	name, isVar := strings.CutPrefix(rest, "/vars/")
	if !isVar {
		name = rest[1:]
	}
	return m.columns[name]
}

// EachRejected calls f for each recipient that was left out, in order.
func (m *Mistakes) EachRejected(f func(r models.Rejection) error) error {
	if m.Rejected() == 0 {
		return nil
	}
	return spoolError(m.rejected.spool.eachBlock(func(block []byte) error {
		if block[0] != rejection {
			return nil
		}
		var r models.Rejection
		if err := json.Unmarshal(block[1:], &r); err != nil {
			return fmt.Errorf("%w: %w", errSpool, err)
		}
		return f(r)
	}))
}

// FirstRejected returns the first recipients that were left out.
func (m *Mistakes) FirstRejected() (first []models.Rejection, err error) {
	err = m.EachRejected(func(r models.Rejection) error {
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
func (m *Mistakes) RejectedPieces(f func(number int, piece []byte) error) error {
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
	err := m.EachRejected(func(r models.Rejection) error {
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

// noneLeft reports the mistakes of the first recipients.
func (m *Mistakes) noneLeft() error {
	first, err := m.FirstRejected()
	for _, r := range first {
		m.Mistakes.Wrong(r.Pointer, r.Code, "%s", r.Detail)
	}
	m.Skip(m.rejected.count - len(first))
	return err
}
