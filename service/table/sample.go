package table

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"
	textunicode "golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// Encoding is how the characters of a file are written.
type Encoding string

// The encodings.
const (
	UTF8        Encoding = "UTF-8"
	UTF16       Encoding = "UTF-16"
	Windows1252 Encoding = "Windows-1252"
)

// Decode returns the text of a file without its byte order mark, and its encoding: UTF-16 if it has that mark, UTF-8 if
// it is valid. All others are taken for Windows-1252, as spreadsheets save them; that is a guess.
func Decode(file []byte) (text string, e Encoding) {
	decoder := textunicode.BOMOverride(textunicode.UTF8.NewDecoder())
	switch {
	case bytes.HasPrefix(file, []byte{0xff, 0xfe}) || bytes.HasPrefix(file, []byte{0xfe, 0xff}):
		e = UTF16
	case utf8.Valid(file):
		e = UTF8
	default:
		e, decoder = Windows1252, charmap.Windows1252.NewDecoder()
	}
	out, _, err := transform.Bytes(decoder, file)
	if err != nil { // no decoder has one: what cannot be read becomes U+FFFD
		return string(file), e
	}
	return string(out), e
}

// Column is a column of a table.
type Column struct {
	Heading string
	Name    string // email, name, or that of a variable; "": the column is left out
}

// Sample is the head of a table and its first rows.
type Sample struct {
	Encoding  Encoding
	Separator string
	Columns   []Column
	Unknown   []string // headings that are mapped and that the table does not have
	Rows      [][]string
	Mistakes  []*Error // of the rows that were read; of the table, after which no row was read
}

// Look returns the head of a file and at most n of its first rows. mapping says what columns are, as in New, and
// Look guesses what the others are.
func Look(file []byte, mapping map[string]string, n int) Sample {
	text, encoding := Decode(file)
	s := Sample{Encoding: encoding}
	t, err := New(strings.NewReader(text), mapping)
	var mistake *Error
	if errors.As(err, &mistake) { // a text has no other error
		s.Mistakes = append(s.Mistakes, mistake)
	}
	if t == nil {
		return s
	}
	s.Separator, s.Unknown = string(t.rows.separator), t.Unknown
	for i, name := range t.columns {
		s.Columns = append(s.Columns, Column{t.rows.Head[i], name})
	}
	for range n {
		row, _, err := t.rows.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.As(err, &mistake) {
			if s.Mistakes = append(s.Mistakes, mistake); mistake.Line == 0 {
				break
			}
			continue
		}
		cells := make([]string, len(s.Columns))
		copy(cells, row)
		s.Rows = append(s.Rows, cells)
	}
	return s
}
