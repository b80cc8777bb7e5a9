package compose

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/table"
)

// TestFilesOfSpreadsheets reads tables as spreadsheets and mailing lists save them.
func TestFilesOfSpreadsheets(t *testing.T) {
	t.Parallel()
	utf16, _, err := transform.String(
		unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder(),
		"E-Mail\tVorname\r\na@x.de\tZoë\r\n",
	)
	require.NoError(t, err)
	zoe := []listed{{Line: 2, Email: "a@x.de", Name: "Zoë", Vars: map[string]string{"Vorname": "Zoë"}}}
	for name, c := range map[string]struct {
		in      string
		want    []listed
		guessed bool
	}{
		"UTF-16":          {utf16, zoe, false},
		"UTF-8 with mark": {"\ufeffE-Mail;Vorname\r\na@x.de;Zoë\r\n", zoe, false},
		"Windows-1252":    {"E-Mail-Adresse;Vorname\r\na@x.de;Zo\xeb\r\n", zoe, true},
		"Excel's own line": {"sep=;\r\nE-Mail;Name\r\na@x.de;Zoë\r\n", []listed{
			{Line: 3, Email: "a@x.de", Name: "Zoë"},
		}, false},
		"Mailchimp": {"\"Email Address\",\"First Name\",\"Last Name\"\na@x.de,Ann,Lee\n", []listed{
			{Line: 2, Email: "a@x.de", Name: "Ann Lee", Vars: map[string]string{"First_Name": "Ann", "Last_Name": "Lee"}},
		}, false},
		"whole names win": {"EMAIL,FNAME,Full_Name\na@x.de,Ann,Ann Lee\n", []listed{
			{Line: 2, Email: "a@x.de", Name: "Ann Lee", Vars: map[string]string{"FNAME": "Ann"}},
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, encoding := table.Decode([]byte(c.in))
			require.Equal(t, c.guessed, encoding == table.Windows1252)
			require.Equal(t, c.want, parseList(web.Lines(text), nil).Rows)
		})
	}
}

func TestParseList(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		want []listed
	}{
		"empty": {"", nil},
		"lines": {"a@x.de\n\n b@x.de \n", []listed{{Line: 1, Email: "a@x.de"}, {Line: 3, Email: "b@x.de"}}},
		"commas": {"a@x.de, \"Lee, Bob\" <b@x.de>; c@x.de", []listed{
			{Line: 1, Email: "a@x.de"},
			{Line: 1, Email: `"Lee, Bob" <b@x.de>`},
			{Line: 1, Email: "c@x.de"},
		}},
		"comment": {"(a, (b)) a@x.de, b@x.de", []listed{{Line: 1, Email: "(a, (b)) a@x.de"}, {Line: 1, Email: "b@x.de"}}},
		"table": {"email,First order\na@x.de,Ann\n", []listed{
			{Line: 2, Email: "a@x.de", Vars: map[string]string{"First_order": "Ann"}},
		}},
		"table, tabs": {"Name\tAddress\nAnn\ta@x.de", []listed{{Line: 2, Email: "a@x.de", Name: "Ann"}}},
		"any script": {"email;Prénom\na@x.de;Zoé", []listed{
			{Line: 2, Email: "a@x.de", Vars: map[string]string{"Prénom": "Zoé"}},
		}},
		"short row":     {"email;n;2nd\na@x.de", []listed{{Line: 2, Email: "a@x.de"}}},
		"odd variables": {"email;2nd\na@x.de;x", []listed{{Line: 2, Email: "a@x.de", Vars: map[string]string{"_2nd": "x"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, parseList(c.in, nil).Rows)
		})
	}
}

// TestListIsBounded: of a list that is too long or too wide, a part is kept.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{
		strings.Repeat("a\n", maxRows+1):             maxRows,
		strings.Repeat("a,", maxRows+1):              maxRows,
		"email\n" + strings.Repeat("a\n", maxRows+1): maxRows,
		"email" + strings.Repeat(",a", 500):          0,
		strings.Repeat("a\n", 3):                     3,
	} {
		l := parseList(in, nil)
		require.Len(t, l.Rows, want)
		require.Equal(t, want == 3, l.Problem == "")
	}
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{"a@x.de", "email,a\nb,c", "\"a\nb", "email;x\n\"", "<,>\";", "\temail\n1\t2\t3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, row := range parseList(s, nil).Rows {
			if row.Line < 1 {
				t.Fatalf("%q: a row on line %d", s, row.Line)
			}
			for name := range row.Vars {
				if !models.ValidVar(name) {
					t.Fatalf("%q: variable %q", s, name)
				}
			}
		}
	})
}

// TestListedRows: a row with a mistake is a mistake of its line, and the rows after it are recipients.
func TestListedRows(t *testing.T) {
	t.Parallel()
	list := parseList("email;A, B, C\na@x.example;\"1\nb@x.example;2\n;\n\u00a0\nc@x.example;3;4\nd@x.example;5;\n", nil)
	require.Empty(t, list.Problem)
	var got []string
	for _, row := range list.Rows {
		text := strconv.Itoa(row.Line) + " " + row.Email
		if row.Mistake != nil {
			text += "wrong"
		}
		got = append(got, text)
	}
	require.Equal(t, []string{"2 wrong", "3 b@x.example", "6 wrong", "7 d@x.example"}, got)
}
