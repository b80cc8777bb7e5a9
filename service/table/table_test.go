package table

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// readAll returns the rows of a table, each as its line, address, name and variables, and its mistakes.
func readAll(in string) (out []string) {
	r, err := New(strings.NewReader(in), nil)
	for err == nil {
		var row Row
		row, err = r.Next()
		var mistake *Error
		switch {
		case errors.As(err, &mistake) && mistake.Line > 0:
			out, err = append(out, fmt.Sprintf("%d: wrong", mistake.Line)), nil
		case err == nil:
			text := fmt.Sprintf("%d: %s", row.Line, row.Email)
			if row.Name != "" {
				text += " <" + row.Name + ">"
			}
			for _, name := range slices.Sorted(maps.Keys(row.Vars)) {
				text += " " + name + "=" + row.Vars[name]
			}
			out = append(out, text)
		}
	}
	if !errors.Is(err, io.EOF) {
		out = append(out, err.Error())
	}
	return out
}

// rowCases are tables and what readAll returns for them.
var rowCases = map[string]struct {
	in   string
	want []string
}{
	"a quote that is not closed": {
		"email,note\nann@x.example,\"hello\nbob@x.example,x\neve@x.example,y\n",
		[]string{"2: wrong", "3: bob@x.example note=x", "4: eve@x.example note=y"},
	},
	"a quote that the next quote closes": {
		"email,note\nann@x.example,\"hello\nbob@x.example,\"x\"\neve@x.example,y\n",
		[]string{"2: wrong", "3: bob@x.example note=x", "4: eve@x.example note=y"},
	},
	"a quote in the middle of a cell": {
		"email,note\nann@x.example,5\" nails\nbob@x.example,x\n",
		[]string{"2: wrong", "3: bob@x.example note=x"},
	},
	"text behind a quote": {
		"email,note\nann@x.example,\"a\"b\nbob@x.example,x\n",
		[]string{"2: wrong", "3: bob@x.example note=x"},
	},
	"a quote behind a cell of two lines": {
		"email,a,b\nann@x.example,\"1\nbob@x.example,2\",x\"y\"\neve@x.example,3,4\n",
		[]string{"2: wrong", "4: eve@x.example a=3 b=4"},
	},
	"a cell of two lines": {
		"email,note\nann@x.example,\"1\r\n2, \"\"3\"\"\" \nbob@x.example,x\n",
		[]string{"2: ann@x.example note=1\n2, \"3\"", "4: bob@x.example note=x"},
	},
	"more cells than headings": {
		"email,name,order\nann@x.example,Smith, Ann,17\nbob@x.example,Lee,18\n",
		[]string{"2: wrong", "3: bob@x.example <Lee> order=18"},
	},
	"more empty cells than headings": {
		"email,note\nann@x.example,x,,\u00a0, \n",
		[]string{"2: ann@x.example note=x"},
	},
	"fewer cells than headings": {
		"email,a,b\nann@x.example,1\n",
		[]string{"2: ann@x.example a=1"},
	},
	"rows without values": {
		"email,a,b\n\n,,\nann@x.example,1,2\n , \u00a0,\t\n\u00a0\n\"\",\" \"\n\u200b\ufeff,\n",
		[]string{"4: ann@x.example a=1 b=2"},
	},
	"carriage returns": {
		"email,a\rann@x.example,1\rbob@x.example,2",
		[]string{"2: ann@x.example a=1", "3: bob@x.example a=2"},
	},
	"one carriage return": {
		"email,a\nann@x.example,1\rbob@x.example,2\n",
		[]string{"2: ann@x.example a=1", "3: bob@x.example a=2"},
	},
	"a separator in a heading": {
		"email;A, B, C;Town\nann@x.example;1;Graz\n",
		[]string{"2: ann@x.example A__B__C=1 Town=Graz"},
	},
	"a separator in a heading with quotes": {
		"\"email\";\"A, B, C\";Town\nann@x.example;1;Graz\n",
		[]string{"2: ann@x.example A__B__C=1 Town=Graz"},
	},
	"commas between tabs": {
		"Town, land, code\temail\nGraz\tann@x.example\n",
		[]string{"2: ann@x.example Town__land__code=Graz"},
	},
	"a heading of two lines": {
		"\"first\nname\";email\nAnn;ann@x.example\n",
		[]string{"3: ann@x.example <Ann> first_name=Ann"},
	},
	"a separator that is named": {
		"sep=|\r\nemail|a;b\r\nann@x.example|1\r\n",
		[]string{"3: ann@x.example a_b=1"},
	},
	"empty lines before the headings": {
		"\n,,\nemail,a\nann@x.example,1\n",
		[]string{"4: ann@x.example a=1"},
	},
	"a row that is not UTF-8": {
		"email,a\nann@x.example,\xff\nbob@x.example,2\n",
		[]string{"2: wrong", "3: bob@x.example a=2"},
	},
	"quotes without end": {
		"email\n\"\n\"",
		[]string{},
	},
	"no headings": {"ann@x.example\n", []string{noEmail}},
	"a repeated heading": {
		"email,a,a\nann@x.example,1,2\n",
		[]string{`More than one column is "a". Rename the others, or leave them out.`},
	},
	"a repeated variable": {
		"email,a b,a_b\n",
		[]string{`More than one column is "a_b". Rename the others, or leave them out.`},
	},
	"two addresses": {
		"E-Mail,email\n",
		[]string{`More than one column is "email". Rename the others, or leave them out.`},
	},
	"an address beside a postal one": {
		"Address,Full name,E-Mail,name\n1 Elm St,Ann Lee,ann@x.example,Ann\n",
		[]string{"2: ann@x.example <Ann> Address=1 Elm St Full_name=Ann Lee"},
	},
	"two names": {
		"email,Name,name\n",
		[]string{`More than one column is "name". Rename the others, or leave them out.`},
	},
	"headings without text": {"email,,\nann@x.example,,\n", []string{"2: ann@x.example"}},
}

// TestRows: each row of a file is a recipient or a mistake with its line, and no row is a part of another one.
func TestRows(t *testing.T) {
	t.Parallel()
	for name, c := range rowCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, append([]string{}, readAll(c.in)...))
		})
	}
}

const noEmail = "The first row must have the names of the columns, and one of them must be email."

// TestRowsAreLinear: many quotes that are not closed do not make the reader read the file again for each.
func TestRowsAreLinear(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"\"\n", "\"a\n\n", "x,\"\n", "\"\"\"\n", "a\"\n", "\"a\"\"\n"} {
		in := &countingReader{r: strings.NewReader("email,a\n" + strings.Repeat(line, 20_000))}
		r, err := New(in, nil)
		require.NoError(t, err)
		rows := 0
		for !errors.Is(err, io.EOF) {
			var mistake *Error
			_, err = r.Next()
			require.True(t, err == nil || errors.Is(err, io.EOF) || errors.As(err, &mistake) && mistake.Line > 0, err)
			rows++
		}
		require.LessOrEqual(t, rows, 40_001)
	}
}

// countingReader lets a test read in small pieces, as a network does.
type countingReader struct{ r io.Reader }

func (c *countingReader) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), 1000)]) }

// FuzzTable: every row has a line, every variable a valid name, and every name a heading of the table.
func FuzzTable(f *testing.F) {
	for _, s := range []string{"email,a\nb,c", "sep=;\nE-Mail;x\n\"", "\temail\n1\t2\t3", "\xff\xfee\x00\n\x00",
		"email\n\xff"} {
		f.Add(s, "", "")
		f.Add(s, "x", "email")
		f.Add(s, "a", "name")
	}
	f.Fuzz(func(t *testing.T, s, heading, mapped string) {
		if !models.ValidVar(mapped) && mapped != "" {
			return
		}
		r, err := New(strings.NewReader(s), map[string]string{heading: mapped})
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

// TestHeadingsHaveOneReading: whoever reads a table finds the same column of addresses, or the same mistake.
func TestHeadingsHaveOneReading(t *testing.T) {
	t.Parallel()
	headings := []string{"x", "E-Mail", "Email Address", " ADDRESS ", "To", "recipient", "e_mail", "Mail", "Name", ""}
	for _, first := range headings {
		for _, second := range headings {
			head := first + ";" + second
			of, wrong := New(strings.NewReader(head), nil)
			rows, err := NewRows(strings.NewReader(head), maxRow)
			require.NoError(t, err)
			cells := slices.Clone(rows.Head)
			err = rows.NameColumns("email", "why")
			var mistake *Error
			if errors.As(wrong, &mistake) && strings.Contains(mistake.Text, `"email"`) {
				require.Equal(t, wrong, err, head)
				continue
			}
			if of.Headings["email"] == "" {
				require.Error(t, err, head)
				continue
			}
			require.NoError(t, err, head)
			at := slices.Index(rows.Head, "email")
			require.GreaterOrEqual(t, at, 0, head)
			require.Equal(t, of.Headings["email"], cells[at], head)
		}
	}
}

// TestLook: the first rows of a file show what its columns are, also if none is that of the address.
func TestLook(t *testing.T) {
	t.Parallel()
	file := []byte("Vorname;Mailadresse privat;Stadt\r\n" +
		"Zo\xeb;zoe@x.example;K\xf6ln\r\n;;;\r\nAnn;ann@x.example\r\n\"Bob\r\n")
	s := Look(file, nil, 5)
	require.Equal(t, Windows1252, s.Encoding)
	require.Equal(t, ";", s.Separator)
	require.Equal(t, []Column{
		{"Vorname", "Vorname"}, {"Mailadresse privat", "Mailadresse_privat"}, {"Stadt", "Stadt"},
	}, s.Columns)
	require.Equal(t, [][]string{{"Zoë", "zoe@x.example", "Köln"}, {"Ann", "ann@x.example", ""}}, s.Rows)
	require.Len(t, s.Mistakes, 2)
	require.Equal(t, noEmail, s.Mistakes[0].Text)
	require.Equal(t, 5, s.Mistakes[1].Line)

	s = Look(file, map[string]string{"Mailadresse privat": "email", "Stadt": "", "Land": "land"}, 1)
	require.Equal(t, []Column{{"Vorname", "Vorname"}, {"Mailadresse privat", "email"}, {"Stadt", ""}}, s.Columns)
	require.Equal(t, []string{"Land"}, s.Unknown)
	require.Len(t, s.Rows, 1)
	require.Empty(t, s.Mistakes)

	require.Len(t, Look([]byte("\"email"), nil, 5).Mistakes, 1)
	require.Equal(t, UTF16, Look([]byte("\xff\xfee\x00"), nil, 5).Encoding)
}
