package table

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	textunicode "golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

const (
	maxRow     = 1 << 20 // bytes
	maxColumns = 500
	readAhead  = 64 << 10 // bytes
)

// Codes of mistakes, as docs/errors.md explains them.
const (
	invalidTable = "invalid_csv"
	invalidText  = "invalid_text"
	repeated     = "repeated"
)

// Error is a mistake in a table.
type Error struct {
	Code string
	Text string
	// Line is that of a row which cannot be used, from 1; the rows after it can be read. 0: the table cannot.
	Line int
}

func (e *Error) Error() string { return e.Text }

func wrong(format string, args ...any) error {
	return &Error{Code: invalidTable, Text: fmt.Sprintf(format, args...)}
}

// Rows reads the rows of a table in flat memory. The format is that of RFC 4180. A line may also end with a carriage
// return alone, and spaces around quotes are ignored.
//
// encoding/csv cannot be used: it cannot go on behind a quote that is not closed.
type Rows struct {
	Head []string // names of the columns

	in        *bufio.Reader
	maxRow    int // bytes
	separator rune
	line      int    // number of the line that was read last
	ahead     []line // lines that were read and belong to no row yet
	cells     []string
}

// line is a line of a table without its end.
type line struct {
	text   string
	number int  // from 1
	opens  bool // it has an odd number of quotes, so that a cell begins in it and goes on, or ends
}

// NewRows reads the head of a table: names of columns in UTF-8 or, with a byte order mark, in UTF-16, between commas,
// semicolons, tabs or bars. No row may have more than maxRow bytes. Errors: Error, and those of r.
func NewRows(r io.Reader, maxRow int) (*Rows, error) { return newRows(r, maxRow, isEmail) }

// newRows is NewRows with a function that reports whether a heading is that of the address. The separator is the one
// with which there is such a heading.
func newRows(r io.Reader, maxRow int, address func(heading string) bool) (*Rows, error) {
	in := bufio.NewReaderSize(transform.NewReader(r, textunicode.BOMOverride(transform.Nop)), readAhead)
	t := &Rows{in: in, maxRow: maxRow}
	for {
		head, first, err := t.row()
		if mistake := (*Error)(nil); errors.As(err, &mistake) {
			return nil, wrong("%s", mistake.Text)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if named, ok := strings.CutPrefix(head, "sep="); ok && len(named) == 1 { // for Excel alone
			if !strings.Contains(",;|\t", named) {
				return nil, wrong("Columns must stand between commas, semicolons, bars or tabs.")
			}
			t.separator = rune(named[0])
			continue
		}
		separator := t.separator
		if separator == 0 {
			separator = separatorOf(head, address)
		}
		fields, bad := cells(nil, head, separator)
		if bad >= 0 {
			return nil, wrong("%s", quoteMistake(first+strings.Count(head[:bad], "\n")))
		}
		for len(fields) > 0 && blank(fields[len(fields)-1]) {
			fields = fields[:len(fields)-1]
		}
		if len(fields) > maxColumns {
			return nil, wrong("The table has more than %d columns.", maxColumns)
		}
		if len(fields) > 0 || err != nil { // rows without values may stand before the head
			t.Head, t.separator = slices.Clone(fields), separator
			return t, nil //nolint:nilerr // the next read meets the end again
		}
	}
}

// Next returns the next row that has a value, and its line. The row is valid until the next call. Errors: io.EOF,
// Error, and those of the reader. After an Error with a line, Next may be called again.
func (t *Rows) Next() (fields []string, line int, err error) {
	for {
		text, line, err := t.row()
		if err != nil {
			return nil, 0, err
		}
		if !utf8.ValidString(text) {
			return nil, 0, &Error{invalidText, fmt.Sprintf("Line %d of the table is not valid UTF-8.", line), line}
		}
		var bad int
		if t.cells, bad = cells(t.cells[:0], text, t.separator); bad >= 0 {
			at := line + strings.Count(text[:bad], "\n")
			t.back(text, line, at)
			return nil, 0, &Error{invalidTable, quoteMistake(at), line}
		}
		n := len(t.cells)
		for n > 0 && blank(t.cells[n-1]) {
			n--
		}
		switch {
		case n == 0:
		case n > len(t.Head):
			return nil, 0, &Error{invalidTable, fmt.Sprintf("Line %d of the table has %d cells, and there are "+
				"only %d headings. Write quotes around a cell that contains the separator.", line, n, len(t.Head)), line}
		default:
			return t.cells[:min(len(t.cells), len(t.Head))], line, nil
		}
	}
}

func quoteMistake(line int) string {
	return fmt.Sprintf("Line %d of the table has a quote that is not closed, or not at the beginning and end of its "+
		"cell. Write quotes around the whole cell, and two quotes for each one in it.", line)
}

// row returns the text of the next row, whose lines end with \n, and the number of its first line. The errors are those
// of Next.
func (t *Rows) row() (text string, number int, err error) {
	if err := t.fill(1); err != nil {
		return "", 0, err
	}
	first := t.ahead[0]
	if !first.opens {
		t.ahead = t.ahead[1:]
		return first.text, first.number, nil
	}
	// A cell that a line opens is closed by the next line with an odd number of quotes.
	for n, size := 1, len(first.text); size <= t.maxRow; n++ {
		err := t.fill(n + 1)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, err
		}
		size += 1 + len(t.ahead[n].text)
		if !t.ahead[n].opens || size > t.maxRow {
			continue
		}
		var b strings.Builder
		for i, l := range t.ahead[:n+1] {
			if i > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(l.text)
		}
		t.ahead = t.ahead[n+1:]
		return b.String(), first.number, nil
	}
	t.ahead = t.ahead[1:]
	return "", 0, &Error{invalidTable, quoteMistake(first.number), first.number}
}

// back returns the lines of a row behind the one with a mistake, so that they are read again: a quote that is in the
// wrong place must not make them a part of its row.
func (t *Rows) back(text string, first, mistake int) {
	var lines []line
	number := first
	for l := range strings.SplitSeq(text, "\n") {
		if number > mistake {
			lines = append(lines, newLine(l, number))
		}
		number++
	}
	if len(lines) > 0 {
		t.ahead = append(lines, t.ahead...)
	}
}

func newLine(text string, number int) line {
	return line{text, number, strings.Count(text, `"`)%2 == 1}
}

// fill reads lines until n are ahead.
func (t *Rows) fill(n int) error {
	for len(t.ahead) < n {
		text, err := t.readLine()
		if err != nil {
			return err
		}
		t.line++
		t.ahead = append(t.ahead, newLine(text, t.line))
	}
	return nil
}

// readLine reads a line, which ends with \n, \r, \r\n or the file.
func (t *Rows) readLine() (string, error) {
	var long []byte
	for {
		_, err := t.in.Peek(1)
		if errors.Is(err, io.EOF) && len(long) > 0 {
			return string(long), nil
		}
		if err != nil {
			return "", err
		}
		b, _ := t.in.Peek(t.in.Buffered()) // it has that many
		end := lineEnd(b)
		if len(long)+max(end, 0) > t.maxRow || end < 0 && len(long)+len(b) > t.maxRow {
			return "", wrong("Line %d of the table is longer than %d bytes.", t.line+1, t.maxRow)
		}
		if end < 0 {
			long = append(long, b...)
			_, _ = t.in.Discard(len(b)) // it is buffered
			continue
		}
		text := string(append(long, b[:end]...))
		cr := b[end] == '\r'
		_, _ = t.in.Discard(end + 1) // it is buffered
		if !cr {
			return text, nil
		}
		if next, err := t.in.Peek(1); err == nil && next[0] == '\n' {
			_, _ = t.in.Discard(1) // it is buffered
		}
		return text, nil
	}
}

// lineEnd returns the place of the first \n or \r, or -1.
func lineEnd(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	if n >= 0 {
		b = b[:n]
	}
	if r := bytes.IndexByte(b, '\r'); r >= 0 {
		return r
	}
	return n
}

// cells appends the cells of a row without the space around them. bad is the place of a quote that is not closed or in
// the middle of a cell; -1: there is none.
func cells(out []string, row string, separator rune) (fields []string, bad int) {
	end := string(separator)
	isSpace := func(r rune) bool { return r != separator && isBlank(r) }
	for at := 0; ; {
		rest := strings.TrimLeftFunc(row[at:], isSpace)
		at = len(row) - len(rest)
		if !strings.HasPrefix(rest, `"`) {
			cell, _, more := strings.Cut(rest, end)
			if quote := strings.IndexByte(cell, '"'); quote >= 0 {
				return out, at + quote
			}
			out = append(out, strings.TrimRightFunc(cell, isBlank))
			if !more {
				return out, -1
			}
			at += len(cell) + len(end)
			continue
		}
		cell, n := quoted(rest)
		if n < 0 {
			return out, at
		}
		behind := strings.TrimLeftFunc(rest[n:], isSpace)
		out = append(out, strings.TrimFunc(cell, isBlank))
		switch {
		case behind == "":
			return out, -1
		case !strings.HasPrefix(behind, end):
			return out, at
		}
		at = len(row) - len(behind) + len(end)
	}
}

// quoted returns the cell at the beginning of a text, which begins with a quote, and the length of the cell with its
// quotes; -1: it is not closed.
func quoted(s string) (cell string, n int) {
	n = 1
	for {
		i := strings.IndexByte(s[n:], '"')
		if i < 0 {
			return "", -1
		}
		if n += i + 1; !strings.HasPrefix(s[n:], `"`) {
			break
		}
		n++
	}
	return strings.ReplaceAll(s[1:n-1], `""`, `"`), n
}

// isBlank reports whether a character shows nothing: space, also one that does not break, or of no width.
func isBlank(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' || r == '\u200b' }

// blank reports whether a text shows nothing.
func blank(s string) bool { return strings.TrimFunc(s, isBlank) == "" }

// separatorOf returns the separator with which a head has a column of addresses, or else the one with which it has the
// most columns.
func separatorOf(head string, address func(heading string) bool) rune {
	best, most := ',', 0
	for _, c := range ",;\t|" {
		fields, bad := cells(nil, head, c)
		n := len(fields)
		if bad >= 0 {
			continue
		}
		if slices.ContainsFunc(fields, address) {
			n += len(head) + 1 // more than any head without one
		} else if c == '|' {
			continue // it may be a part of a heading, and people name it if it is the separator
		}
		if n > most {
			best, most = c, n
		}
	}
	return best
}
