// Package table reads recipients from tables as spreadsheets and mailing lists save them.
package table

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
)

// Row is a recipient. Columns other than those of the address and the name are its variables.
type Row struct {
	Line        int // from 1
	Email, Name string
	Vars        map[string]string
}

// Reader reads the recipients of a table.
type Reader struct {
	Columns  []string          // names of the variables
	Headings map[string]string // headings of the columns by the names of variables, and of email and name
	Unknown  []string          // headings that New was to map and the table does not have

	rows        *Rows
	columns     []string // of all columns; "" is ignored
	first, last string   // variables that make the name, if no column has it
}

// New reads the head of a table, as NewRows does. One of the columns must be that of the address. mapping says by their
// headings what columns are: email, name, the name of a variable, or "" to leave the column out. New finds out what the
// others are. If no column is that of the address, or several columns have one name, New returns the Reader with the
// error.
func New(r io.Reader, mapping map[string]string) (*Reader, error) {
	isMapped := slices.Contains(slices.Collect(maps.Values(mapping)), "email")
	rows, err := newRows(r, maxRow, func(heading string) bool {
		name, known := mapping[heading]
		return name == "email" || !known && !isMapped && isEmail(heading)
	})
	if err != nil {
		return nil, err
	}
	t := &Reader{rows: rows, Headings: map[string]string{}}
	if err := t.setColumns(rows.Head, mapping); err != nil {
		return t, err
	}
	if !slices.Contains(t.columns, "email") {
		return t, errNoAddress
	}
	return t, nil
}

var errNoAddress = wrong("The first row must have the names of the columns, and one of them must be email.")

// NameColumns replaces the headings with names, which are email and others. Headings are read as New reads them, so
// "E-Mail" is email and "Expires at" is expires_at. A heading of no name becomes "". The error is an Error if no column is
// that of the address, or several columns have one name.
func (t *Rows) NameColumns(names ...string) error {
	email := firstOf(emails, t.Head, nil)
	seen := map[string]bool{}
	for i, heading := range t.Head {
		b := bare(heading)
		at := slices.IndexFunc(names, func(name string) bool { return name != "email" && b == bare(name) })
		switch {
		case b != "" && b == email:
			t.Head[i] = "email"
		case at >= 0:
			t.Head[i] = names[at]
		default:
			t.Head[i] = ""
			continue
		}
		if seen[t.Head[i]] {
			return repeatedColumn(t.Head[i])
		}
		seen[t.Head[i]] = true
	}
	if !seen["email"] {
		return errNoAddress
	}
	return nil
}

func repeatedColumn(name string) error {
	return &Error{Code: repeated, Text: fmt.Sprintf(
		"More than one column is %q. Rename the others, or leave them out.", name)}
}

// Next returns the next recipient. Errors: io.EOF, Error, and those of the reader. After an Error with a line, the Row
// has only that, and Next may be called again.
func (t *Reader) Next() (Row, error) {
	fields, line, err := t.rows.Next()
	var mistake *Error
	if errors.As(err, &mistake) {
		line = mistake.Line
	}
	row := Row{Line: line}
	if err != nil {
		return row, err
	}
	for i, value := range fields {
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
	// The first ones count: a column "address" beside "email" is a postal address.
	emails     = []string{"email", "emailaddress", "emailadresse", "mail", "recipient", "to", "address"}
	names      = []string{"name", "fullname"}
	firstNames = []string{"firstname", "fname", "givenname", "vorname"}
	lastNames  = []string{"lastname", "lname", "surname", "familyname", "nachname"}
)

// IsHead reports whether a text begins with the head of a table.
func IsHead(text string) bool {
	rows, err := NewRows(strings.NewReader(text), maxRow)
	if err == nil {
		return slices.ContainsFunc(rows.Head, isEmail)
	}
	first, _, _ := strings.Cut(text, "\n") // a head with a mistake is no list of addresses
	fields, _ := cells(nil, first, separatorOf(first, isEmail))
	return slices.ContainsFunc(fields, isEmail)
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

// setColumns turns headings into names of variables: "First order" becomes First_order. The error is an Error if
// several columns have one name.
func (t *Reader) setColumns(headings []string, mapping map[string]string) error {
	mapped := map[string]bool{} // what headings are mapped to
	for _, h := range headings {
		if name, ok := mapping[h]; ok {
			mapped[name] = true
		}
	}
	for _, h := range slices.Sorted(maps.Keys(mapping)) {
		if !slices.Contains(headings, h) {
			t.Unknown = append(t.Unknown, h)
		}
	}
	email, full := "", ""
	if !mapped["email"] {
		email = firstOf(emails, headings, mapping)
	}
	if !mapped["name"] {
		full = firstOf(names, headings, mapping)
	}
	var again []string
	for _, h := range headings {
		var name string
		switch b := bare(h); {
		case has(mapping, h):
			name = mapping[h]
		case b != "" && b == email:
			name = "email"
		case b != "" && b == full:
			name = "name"
		default:
			name = t.variableOf(h)
		}
		if name != "" && slices.Contains(t.columns, name) {
			again = append(again, name)
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
	if len(again) > 0 {
		return repeatedColumn(again[0])
	}
	return nil
}

// firstOf returns the first of some bare headings that is among those that are not mapped, or "".
func firstOf(known, headings []string, mapping map[string]string) string {
	for _, k := range known {
		if slices.ContainsFunc(headings, func(h string) bool { return !has(mapping, h) && bare(h) == k }) {
			return k
		}
	}
	return ""
}

func has(mapping map[string]string, heading string) bool {
	_, ok := mapping[heading]
	return ok
}

// variableOf returns the name of the variable for a heading; "": the column is left out, because another one is mapped
// to email or name.
func (t *Reader) variableOf(heading string) string {
	name, b := Variable(heading), bare(heading)
	switch {
	case name == "email" || name == "name":
		return ""
	case slices.Contains(firstNames, b) && t.first == "":
		t.first = name
	case slices.Contains(lastNames, b) && t.last == "":
		t.last = name
	}
	return name
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
