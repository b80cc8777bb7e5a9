package table

import (
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
)

// FuzzTable: every row has a line, every variable a valid name, and every name a heading of the table.
func FuzzTable(f *testing.F) {
	for _, s := range []string{"email,a\nb,c", "sep=;\nE-Mail;x\n\"", "\temail\n1\t2\t3", "\xff\xfee\x00\n\x00", "email\n\xff"} {
		f.Add(s, "", "")
		f.Add(s, "x", "email")
		f.Add(s, "a", "name")
	}
	f.Fuzz(func(t *testing.T, s, heading, mapped string) {
		if !models.ValidVar(mapped) && mapped != "" {
			return
		}
		r, err := NewMapped(strings.NewReader(s), map[string]string{heading: mapped})
		for last := 0; err == nil; {
			var row Row
			row, err = r.Next()
			var mistake *Error
			if errors.As(err, &mistake) && mistake.Line == row.Line && row.Line > 0 {
				err = nil
			}
			if err != nil {
				break
			}
			if row.Line <= last {
				t.Fatalf("%q: line %d follows line %d", s, row.Line, last)
			}
			last = row.Line
			for name := range row.Vars {
				if head, ok := r.Headings[name]; !models.ValidVar(name) || !ok || !strings.Contains(s, head) &&
					!strings.ContainsAny(s, "\"\r") && utf8.ValidString(s) {
					t.Fatalf("%q: variable %q of %q", s, name, head)
				}
			}
		}
		var mistake *Error
		if !errors.Is(err, io.EOF) && !errors.As(err, &mistake) {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
