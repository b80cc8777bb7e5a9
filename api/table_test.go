package api

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/encoding/unicode"

	"github.com/safedelivr/safedelivr/models"
)

// postFile posts a batch to the recipients of a file.
func (f *fixture) postFile(name, content string) *reply {
	return f.postFileTo("/v1/batches", name, content)
}

// postFileTo is postFile with a path.
func (f *fixture) postFileTo(path, name, content string) *reply {
	f.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for _, field := range [][2]string{{"from", "shop@example.com"}, {"subject", "Hello {{first}}"}, {"text", "t"}} {
		require.NoError(f, w.WriteField(field[0], field[1]))
	}
	part, err := w.CreateFormFile("to", name)
	require.NoError(f, err)
	_, err = part.Write([]byte(content))
	require.NoError(f, err)
	require.NoError(f, w.Close())
	return f.do(http.MethodPost, path, w.FormDataContentType(), &form)
}

// TestRecipientsFromFiles: tables in several encodings, and lines of JSON, give the same recipients.
func TestRecipientsFromFiles(t *testing.T) {
	t.Parallel()
	table := "E-Mail;Name;first\r\nann@example.com;Ann Lee;Ann\r\n\"bob@example.com\";;\"B;ob\"\r\n"
	utf16, err := unicode.UTF16(unicode.BigEndian, unicode.UseBOM).NewEncoder().String(table)
	require.NoError(t, err)
	for name, content := range map[string]string{
		"people.csv": table,
		"utf16.csv":  utf16,
		"mark.CSV":   "\ufeff" + table,
		"excel.csv":  "sep=;\r\n" + table,
		"tabs.tsv":   "email\tname\tfirst\nann@example.com\tAnn Lee\tAnn\nbob@example.com\t\tB;ob\n",
		"people.ndjson": `{"email": "ann@example.com", "name": "Ann Lee", "vars": {"first": "Ann"}}` + "\n\n" +
			`{"email": "bob@example.com", "vars": {"first": "B;ob"}}`,
		"returns.csv": strings.ReplaceAll(table, "\r\n", "\r"),
		"blanks.csv":  table + ";;\r\n \r\n\u00a0;;\u00a0\r\n",
		"mark.ndjson": "\ufeff" + `{"email": "ann@example.com", "name": "Ann Lee", "vars": {"first": "Ann"}}` + "\r\n" +
			`{"email": "bob@example.com", "vars": {"first": "B;ob"}}` + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			_, _, to := f.accepted(f.postFile(name, content))
			require.Equal(t, []models.Recipient{
				{Email: "ann@example.com", Name: "Ann Lee", Vars: map[string]string{"first": "Ann"}},
				{Email: "bob@example.com", Vars: map[string]string{"first": "B;ob"}},
			}, to)
		})
	}
}

// TestMistakesInFiles: a mistake in a row refuses all, and is reported with its place.
func TestMistakesInFiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, c := range []struct{ name, content, want string }{
		{"a.csv", "name,first\nAnn,A\n", "/to invalid_csv"},
		{"a.csv", "", "/to invalid_csv"},
		{"a.csv", "email,first\nann@example.com,A\ninvalid,B\n", "/to/1 invalid_address"},
		{"a.csv", "email,first\nann@example.com,\xff\n", "/to/0 invalid_text"},
		{"a.csv", "email" + strings.Repeat(",a", 600) + "\n", "/to invalid_csv"},
		{"a.csv", "email,first\nann@example.com,\"" + strings.Repeat("x", 2<<20), "/to invalid_csv"},
		{"a.csv", "email,first\nann@example.com,\"A\nbob@example.com,B\n", "/to/0 invalid_csv"},
		{"a.csv", "email,first\nann@example.com,A\nbob@example.com,B,C\n", "/to/1 invalid_csv"},
		{"a.csv", "email,first,first\nann@example.com,A,B\n", "/to repeated"},
		{"a.ndjson", `{"email": "ann@example.com", "vars": {"first": "A"}}` + "\nann", "/to/1 wrong_type"},
		{"a.xlsx", "PK", "/to wrong_type"},
	} {
		r := f.postFile(c.name, c.content)
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, string(r.Body))
		p := r.problem(t)
		require.Contains(t, p.pointers(), c.want)
	}
	require.Empty(t, f.store.writes(), "something was stored")
}

// TestManyRows: a table with many rows is one batch.
func TestManyRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var rows strings.Builder
	rows.WriteString("email,first\n")
	for i := range 20_000 {
		fmt.Fprintf(&rows, "user%d@example.com,P%d\n", i, i)
	}
	r := f.postFile("many.csv", rows.String())
	require.Equal(t, http.StatusAccepted, r.Status, string(r.Body))
	require.Contains(t, string(r.Body), `"recipients":20000`)
}

// TestQuoteIsNotClosed: a quote that is not closed leaves out its row, and makes no other row a part of it.
func TestQuoteIsNotClosed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.postFileTo("/v1/batches?mode=permissive", "a.csv",
		"email,first\nann@example.com,\"A\nbob@example.com,B\neve@example.com,E\n")
	require.Equal(t, http.StatusAccepted, r.Status, string(r.Body))
	require.Contains(t, string(r.Body), `"recipients":2`)
	require.Contains(t, string(r.Body), `"row":2`)
	require.Contains(t, string(r.Body), `Line 2 of the table has a quote that is not closed`)
}

// TestByteOrderMark: JSON is read with the mark that some editors write in front of it.
func TestByteOrderMark(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, c := range []struct{ path, kind, body string }{
		{"/v1/batches", "application/json", `{"from": "shop@example.com", "to": ["a@example.com"], "subject": "s", "text": ` +
			`"t"}`},
		{"/v1/suppressions", "application/json", `{"email": "b@example.com"}`},
	} {
		r := f.do(http.MethodPost, c.path, c.kind, strings.NewReader("\ufeff"+c.body))
		require.Less(t, r.Status, 300, "%s: %s", c.path, r.Body)
	}
}
