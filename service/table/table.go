// Package table reads recipients from tables as spreadsheets and mailing lists save them.
package table

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	textunicode "golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/safedelivr/safedelivr/models"
)

const (
	maxRow     = 1 << 20  // bytes
	maxHead    = 64 << 10 // bytes of the first line that are looked at
	maxColumns = 500
)

// Error is a mistake in a table.
type Error struct {
	Text string
	// Line is that of a row which cannot be used, from 1; the rows after it can be read. 0: the table cannot.
	Line int
}

func (e *Error) Error() string { return e.Text }

func wrong(format string, args ...any) error { return &Error{Text: fmt.Sprintf(format, args...)} }

// Row is a recipient. Columns other than those of the address and the name are its variables.
type Row struct {
	Line        int // from 1
	Email, Name string
	Vars        map[string]string
}

// Rows reads the rows of a table in flat memory.
type Rows struct {
	Head []string // names of the columns

	csv    *csv.Reader
	in     *boundedReader
	maxRow int // bytes
	row    int // number of the row that was read last, from 0 for the head
	before int // lines before those that csv reads
}

// NewRows reads the head of a table: names of columns in UTF-8 or, with a byte order mark, in UTF-16, between commas,
// semicolons or tabs. No row may have more than maxRow bytes. Quotes in the middle of a cell are mistakes unless
// lazyQuotes is set. Errors: Error, and those of r.
func NewRows(r io.Reader, maxRow int, lazyQuotes bool) (*Rows, error) {
	in := bufio.NewReaderSize(transform.NewReader(r, textunicode.BOMOverride(transform.Nop)), maxHead)
	t := &Rows{in: &boundedReader{r: in}, maxRow: maxRow, row: -1}
	head, err := peekLine(in)
	if err != nil {
		return nil, err
	}
	separator := separatorOf(head)
	if told, ok := strings.CutPrefix(strings.TrimRight(head, "\r"), "sep="); ok && len(told) == 1 { // for Excel alone
		if _, err := in.ReadString('\n'); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if !strings.Contains(",;|\t", told) {
			return nil, wrong("Columns must stand between commas, semicolons, bars or tabs.")
		}
		separator, t.before = rune(told[0]), 1
	}
	t.csv = csv.NewReader(t.in)
	t.csv.Comma, t.csv.FieldsPerRecord, t.csv.LazyQuotes, t.csv.ReuseRecord = separator, -1, lazyQuotes, true
	t.csv.TrimLeadingSpace = separator != '\t' // which is space, too
	fields, _, err := t.Next()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(fields) > maxColumns {
		return nil, wrong("The table has more than %d columns.", maxColumns)
	}
	t.Head = slices.Clone(fields)
	return t, nil
}

// Next returns the next row, which is valid until the next call, and its line. Errors: io.EOF, Error, and those of the
// reader.
func (t *Rows) Next() (fields []string, line int, err error) {
	t.in.left = t.maxRow
	fields, err = t.csv.Read()
	t.row++
	var mistake *csv.ParseError
	switch {
	case errors.As(err, &mistake):
		return nil, 0, wrong("The table cannot be read at line %d: %s.", t.before+mistake.Line, mistake.Err)
	case errors.Is(err, errTooLong):
		return nil, 0, wrong("Row %d of the table is longer than %d bytes.", t.row, t.maxRow)
	case err != nil:
		return nil, 0, err
	}
	line, _ = t.csv.FieldPos(0)
	return fields, t.before + line, nil
}

// Reader reads the recipients of a table.
type Reader struct {
	Columns  []string          // names of the variables
	Headings map[string]string // headings of the columns by the names of variables, and of email and name
	Unknown  []string          // headings that NewMapped was to map and the table does not have

	rows        *Rows
	columns     []string // of all columns; "" is ignored
	first, last string   // variables that make the name, if no column has it
}

// New reads the head of a table, as NewRows does. One of the columns must be that of the address.
func New(r io.Reader) (*Reader, error) { return NewMapped(r, nil) }

// NewMapped is New for a table some of whose columns are known: mapping has, by their headings, email, name, the name
// of a variable, or "" if the column is to be left out. New finds out what the others are. If no column is that of the
// address, NewMapped returns the Reader with the error.
func NewMapped(r io.Reader, mapping map[string]string) (*Reader, error) {
	rows, err := NewRows(r, maxRow, true)
	if err != nil {
		return nil, err
	}
	t := &Reader{rows: rows, Headings: map[string]string{}}
	t.setColumns(rows.Head, mapping)
	if !slices.Contains(t.columns, "email") {
		return t, wrong("The first row must have the names of the columns, and one of them must be email.")
	}
	return t, nil
}

// peekLine returns the first line, or as much of it as is looked at.
func peekLine(r *bufio.Reader) (string, error) {
	for n := 512; ; n *= 2 {
		b, err := r.Peek(min(n, maxHead))
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			return string(b[:i]), nil
		}
		if errors.Is(err, io.EOF) || n >= maxHead {
			return string(b), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// separatorOf guesses the separator of columns.
func separatorOf(head string) rune {
	best, most := ',', 0
	for _, c := range []rune{',', ';', '\t'} {
		if n := strings.Count(head, string(c)); n > most {
			best, most = c, n
		}
	}
	return best
}

// Next returns the next recipient. Errors: io.EOF, Error, and those of the reader. After an Error with a line, the Row
// has only that, and Next may be called again.
func (t *Reader) Next() (Row, error) {
	fields, line, err := t.rows.Next()
	if err != nil {
		return Row{}, err
	}
	row := Row{Line: line}
	for i, value := range fields {
		if i == len(t.columns) {
			break
		}
		if !utf8.ValidString(value) {
			return row, &Error{fmt.Sprintf("Line %d of the table is not valid UTF-8.", line), line}
		}
		value = strings.TrimSpace(value)
		switch name := t.columns[i]; name {
		case "":
		case "email":
			row.Email = value
		case "name":
			row.Name = value
		default:
			if row.Vars == nil {
				row.Vars = map[string]string{}
			}
			row.Vars[name] = value
		}
	}
	if t.first != "" || t.last != "" {
		row.Name = strings.TrimSpace(row.Vars[t.first] + " " + row.Vars[t.last])
	}
	return row, nil
}

// Headings of the columns of addresses and names, as bare returns them.
var (
	emails     = []string{"email", "mail", "address", "emailaddress", "emailadresse", "recipient", "to"}
	names      = []string{"name", "fullname"}
	firstNames = []string{"firstname", "fname", "givenname", "vorname"}
	lastNames  = []string{"lastname", "lname", "surname", "familyname", "nachname"}
)

// IsHead reports whether a line may be the head of a table.
func IsHead(line string) bool {
	return slices.ContainsFunc(strings.Split(line, string(separatorOf(line))), isEmail)
}

func isEmail(heading string) bool { return slices.Contains(emails, bare(heading)) }

// bare returns the letters and digits of a heading in lower case: there are many ways to write one.
func bare(heading string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) || unicode.IsDigit(c) {
			return unicode.ToLower(c)
		}
		return -1
	}, heading)
}

// setColumns turns headings into names of variables: "First order" becomes First_order.
func (t *Reader) setColumns(headings []string, mapping map[string]string) {
	found, mapped := map[string]bool{}, map[string]bool{} // headings; what they are mapped to
	for _, h := range headings {
		h = strings.TrimSpace(h)
		found[h] = true
		if name, ok := mapping[h]; ok {
			mapped[name] = true
		}
	}
	for _, h := range slices.Sorted(maps.Keys(mapping)) {
		if !found[h] {
			t.Unknown = append(t.Unknown, h)
		}
	}
	open := func(name string) bool { return !mapped[name] && !slices.Contains(t.columns, name) }
	for _, h := range headings {
		h = strings.TrimSpace(h)
		name, known := mapping[h]
		switch b := bare(h); {
		case known:
		case isEmail(h) && open("email"):
			name = "email"
		case slices.Contains(names, b) && open("name"):
			name = "name"
		case Variable(h) != "email" && Variable(h) != "name": // a second one is left out
			name = Variable(h)
			if slices.Contains(firstNames, b) && t.first == "" {
				t.first = name
			} else if slices.Contains(lastNames, b) && t.last == "" {
				t.last = name
			}
		}
		t.columns = append(t.columns, name)
		if name == "" {
			continue
		}
		t.Headings[name] = h
		if name != "email" && name != "name" {
			t.Columns = append(t.Columns, name)
		}
	}
	if slices.Contains(t.columns, "name") {
		t.first, t.last = "", ""
	} else if part := cmp.Or(t.first, t.last); part != "" {
		t.Headings["name"] = t.Headings[part]
	}
}

// Variable replaces the characters that the name of a variable must not contain.
func Variable(heading string) string {
	s := strings.Map(func(c rune) rune {
		if models.ValidVar("_" + string(c)) {
			return c
		}
		return '_'
	}, strings.TrimSpace(heading))
	if first, _ := utf8.DecodeRuneInString(s); s != "" && !models.ValidVar(string(first)) {
		s = "_" + s
	}
	return strings.ToValidUTF8(s[:min(len(s), 64)], "")
}

// errTooLong reports a row that is longer than maxRow.
var errTooLong = errors.New("the row is too long")

// boundedReader reads until left bytes were read since left was set.
type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
