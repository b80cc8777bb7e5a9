package table

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// FuzzTable: every row has a line, and every variable a valid name.
func FuzzTable(f *testing.F) {
	for _, s := range []string{"email,a\nb,c", "sep=;\nE-Mail;x\n\"", "\temail\n1\t2\t3", "\xff\xfee\x00\n\x00", "email\n\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := New(strings.NewReader(s))
		for last := 0; err == nil; {
			var row Row
			if row, err = r.Next(); err != nil {
				break
			}
			if row.Line <= last {
				t.Fatalf("%q: line %d follows line %d", s, row.Line, last)
			}
			last = row.Line
			for name := range row.Vars {
				if !models.ValidVar(name) {
					t.Fatalf("%q: variable %q", s, name)
				}
			}
		}
		var mistake *Error
		if !errors.Is(err, io.EOF) && !errors.As(err, &mistake) {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
