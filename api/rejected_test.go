package api

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mail"
)

// permissive posts a batch whose bad recipients are left out.
func (f *fixture) permissive(body string, header ...string) *reply {
	f.Helper()
	return f.do(http.MethodPost, "/v1/batches?mode=permissive", "application/json", strings.NewReader(body), header...)
}

// rejectedOf decodes the rejected recipients in the answer to a batch.
func rejectedOf(t *testing.T, r *reply) mail.Rejected {
	t.Helper()
	var v struct {
		Rejected *mail.Rejected `json:"rejected"`
	}
	require.NoError(t, json.Unmarshal(r.Body, &v))
	require.NotNil(t, v.Rejected, string(r.Body))
	return *v.Rejected
}

// places returns index, pointer and code of rejections.
func places(rs []models.Rejection) (out []string) {
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%d %s %s", r.Index, r.Pointer, r.Code))
	}
	return out
}

// TestPermissive: every kind of bad recipient is left out and listed, in the order of the request, with the answer, its
// repeats, the batch, the list and a dry run. Strict mode refuses the same request with the same mistakes.
func TestPermissive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := `{"from": "shop@example.com", "subject": "Hello {{first}}", "text": "t", "to": [
		{"email": "invalid", "vars": {"first": "A"}},
		{"email": "ann@example.com", "vars": {"first": "Ann"}},
		{"email": "lou@example.com"},
		7,
		{"email": "max@example.com", "vars": {"first": "M"}, "age": 3},
		{"email": "eve@example.com", "vars": {"first": "a\nb"}},
		{"email": "LOU@example.com", "vars": {"first": "Lou"}},
		{"email": "ann@example.com", "vars": {"first": "Again"}},
		{"email": "sam@example.com", "vars": {"first": ["S"]}}
	]}`
	want := []string{"0 /to/0/email invalid_address", "2 /to/2/vars/first unknown_placeholder", "3 /to/3 wrong_type",
		"4 /to/4/age unknown_field", "5 /to/5/vars/first invalid_header", "8 /to/8/vars/first wrong_type"}

	plan := f.do(http.MethodPost, "/v1/batches?mode=permissive&dry_run=true", "application/json", strings.NewReader(body))
	require.Equal(t, http.StatusOK, plan.Status, string(plan.Body))
	require.Equal(t, want, places(rejectedOf(t, plan).First))
	require.Equal(t, http.StatusUnprocessableEntity, f.post(body).Status)
	require.Empty(t, f.store.writes())

	r := f.permissive(body, "Idempotency-Key", "k")
	a, b, to := f.accepted(r)
	require.Equal(t, 6, rejectedOf(t, r).Count)
	require.Equal(t, want, places(rejectedOf(t, r).First))
	require.Equal(t, 6, b.Rejected)
	require.Equal(t, 1, a.Duplicates)
	require.Equal(t, []models.Recipient{
		{Email: "ann@example.com", Vars: map[string]string{"first": "Ann"}},
		{Email: "LOU@example.com", Vars: map[string]string{"first": "Lou"}},
	}, to, "the first with this address was bad")
	again := f.permissive(body, "Idempotency-Key", "k")
	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
	require.JSONEq(t, string(r.Body), string(again.Body))
	require.Equal(t, "idempotency_key_reused", func() string {
		r := f.do(
			http.MethodPost,
			"/v1/batches",
			"application/json",
			strings.NewReader(
				`{"from": "shop@example.com", "subject": "s", "text": "t", "to": ["a@b.de"]}`,
			),
			"Idempotency-Key",
			"k",
		)
		return r.problem(t).Code
	}())

	v := read[mail.BatchView](f, batchPath(a.ID))
	require.Equal(t, &mail.Rejected{Count: 6}, v.Rejected)
	page := read[mail.RejectedPage](f, batchPath(a.ID)+"/rejected?limit=4")
	require.Equal(t, want[:4], places(page.Rejected))
	require.EqualValues(t, 6, *page.Total)
	last := read[mail.RejectedPage](f, batchPath(a.ID)+"/rejected?limit=4&cursor="+page.Next)
	require.Equal(t, want[4:], places(last.Rejected))
	require.Empty(t, last.Next)
	require.Equal(t, 5, last.First)
	back := read[mail.RejectedPage](f, batchPath(a.ID)+"/rejected?limit=4&cursor="+last.Prev)
	require.Equal(t, want[:4], places(back.Rejected))
	require.Equal(t, http.StatusNotFound, f.get(batchPath(a.ID)+"/rejected", "Authorization", "Bearer "+f.foreign).Status)
	require.Equal(t, http.StatusBadRequest, f.get(batchPath(a.ID)+"/rejected?cursor=x").Status)

	// An erasure reaches the list and the answers to repeats; a removal removes both.
	raw, err := f.store.Piece(t.Context(), a.ID, models.RejectedPieces, 0)
	require.NoError(t, err)
	require.Contains(t, string(raw), "invalid")
	require.NoError(t, f.store.Redact(t.Context(), a.ID))
	require.Equal(t, "content_removed", func() string {
		r := f.get(batchPath(a.ID) + "/rejected")
		return r.problem(t).Code
	}())
	require.Equal(t, mail.Rejected{Count: 6}, rejectedOf(t, f.permissive(body, "Idempotency-Key", "k")))
}

// TestPermissiveRefuses: only recipients may be bad, and not all of them.
func TestPermissiveRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for body, want := range map[string]string{
		`{"from": "shop@example.com", "subject": "a\nb", "text": "t", "to": ["ann@example.com", "x"]}`: "/subject invalid_header",
		`{"from": "shop@example.com", "subject": "s", "text": "t", "to": ["y", "x"]}`:                  "/to/0 invalid_address",
		`{"from": "shop@example.com", "subject": "s", "text": "t", "to": []}`:                          "/to required",
		`{"from": "shop@example.com", "subject": "{{a}}", "text": "t", "to": ["ann@example.com"]}`:     "/subject unknown_placeholder",
	} {
		r := f.permissive(body)
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, string(r.Body))
		p := r.problem(t)
		require.Contains(t, p.pointers(), want)
	}
	r := f.do(http.MethodPost, "/v1/batches?mode=lenient", "application/json", strings.NewReader(`{}`))
	require.Equal(t, "invalid_query", r.problem(t).Code)
	require.Empty(t, f.store.writes(), "something was stored")
	none := f.permissive(`{"from": "shop@example.com", "subject": "s", "text": "t", "to": ["ann@example.com"]}`)
	require.Zero(t, rejectedOf(t, none).Count)
	a, _, _ := f.accepted(none)
	require.Equal(t, []string{"index,row,column,pointer,code,detail\n"}, []string{string(
		f.get(batchPath(a.ID) + "/rejected.csv").Body)})
}

// TestPermissiveTemplate: a recipient for whom a template cannot be rendered is left out.
func TestPermissiveTemplate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	r := f.permissive(`{"to": [{"email": "a@b.de", "vars": {"vip": "yes"}}, {"email": "x"}, {"email": "b@b.de", "vars": {
		"items": [{"title": "x"}]}}], "template": "welcome"}`)
	_, _, to := f.accepted(r)
	require.Equal(t, []string{"0 /to/0/vars/vip schema_mismatch", "1 /to/1/email invalid_address"},
		places(rejectedOf(t, r).First))
	require.Len(t, to, 1)
}

// form posts a batch with a file of recipients, after other fields.
func (f *fixture) form(query, file, content string, fields ...string) *reply {
	f.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for i := 0; i < len(fields); i += 2 {
		require.NoError(f, w.WriteField(fields[i], fields[i+1]))
	}
	part, err := w.CreateFormFile("to", file)
	require.NoError(f, err)
	_, err = io.WriteString(part, content)
	require.NoError(f, err)
	require.NoError(f, w.Close())
	return f.do(http.MethodPost, "/v1/batches"+query, w.FormDataContentType(), &form)
}

// TestPermissiveFile: reports name rows of a file by their line and the heading of the column, also in CSV.
func TestPermissiveFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fields := []string{"from", "shop@example.com", "subject", "Hello {{Home_town}}", "text", "t"}
	table := "E-Mail;Home town;Vorname\r\n\"invalid\";\"A\r\nB\"\r\nann@example.com;Ann\r\n" +
		"bob@example.com;\"B\r\nC\"\r\nsam@example.com;\xff\r\neve@example.com\r\nmax@example.com;M;\"a\nb\"\r\n"
	r := f.form("?mode=permissive", "people.csv", table, fields...)
	a, _, to := f.accepted(r)
	require.Equal(t, []models.Recipient{
		{Email: "ann@example.com", Vars: map[string]string{"Home_town": "Ann"}},
	}, to)
	got := f.get(batchPath(a.ID)+"/rejected", "Accept", "text/csv")
	require.Equal(t, "text/csv; charset=utf-8", got.Header.Get("Content-Type"))
	rows, err := csv.NewReader(bytes.NewReader(got.Body)).ReadAll()
	require.NoError(t, err)
	for i := range rows {
		rows[i] = rows[i][:5]
	}
	require.Equal(t, [][]string{
		{"index", "row", "column", "pointer", "code"},
		{"0", "2", "E-Mail", "/to/0", "invalid_address"},
		{"2", "5", "Home town", "/to/2/vars/Home_town", "invalid_header"},
		{"3", "7", "E-Mail", "/to/3", "invalid_text"},
		{"4", "8", "Home town", "/to/4/vars/Home_town", "unknown_placeholder"},
		{"5", "9", "Vorname", "/to/5/name", "invalid_header"},
	}, rows)
	lines := f.form("?mode=permissive", "people.ndjson", "\n{\"email\": 1}\n\n\"ann@example.com\"\nann\n",
		"from", "shop@example.com", "subject", "s", "text", "t")
	first := rejectedOf(t, lines).First
	require.Equal(t, []string{"0 /to/0/email wrong_type", "2 /to/2 wrong_type"}, places(first))
	require.Equal(t, []int{2, 5}, []int{first[0].Row, first[1].Row})
}

// TestRejectedAreNoFormulas: what a sender wrote begins no formula in the file of the rejected recipients.
func TestRejectedAreNoFormulas(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.form("?mode=permissive", "people.csv", "email,=1+1\nann@example.com,a\n\"=2;=3\",b\n",
		"from", "shop@example.com", "subject", "s", "text", "{{x}}", "columns", `{"=1+1": "x"}`)
	a, _, _ := f.accepted(r)
	rows, err := csv.NewReader(bytes.NewReader(f.get(batchPath(a.ID) + "/rejected.csv").Body)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Contains(t, rows[1][5], `"'=2;'=3" is not`)
}

// TestErasePermissive: an erasure removes an address from the list of rejected recipients.
func TestErasePermissive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := `{"from": "shop@example.com", "subject": "s", "text": "t", "to": ["ann@example.com",
		"lou@example.com; max@example.com", "` + strings.Repeat(
		"x ",
		25,
	) + `lou@example.com"]}`
	r := f.permissive(body, "Idempotency-Key", "k")
	a, _, _ := f.accepted(r)
	require.Contains(t, string(r.Body), `\"lou@example.com; max@example.com\"`)
	_, err := f.store.Erase(t.Context(), a.ID, "lou@example.com")
	require.NoError(t, err)
	for _, body := range []string{
		string(f.get(batchPath(a.ID) + "/rejected").Body), string(f.permissive(body, "Idempotency-Key", "k").Body),
	} {
		require.NotContains(t, body, "lou@")
		require.Contains(t, body, models.ErasedAddress+"; max@example.com")
	}
}

// TestColumns: columns of a table are what the request says, and others what their headings say.
func TestColumns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fields := []string{"from", "shop@example.com", "subject", "Hello {{first}}", "text", "{{city}}"}
	table := "Email,Work mail,Who,Vorname,City,Secret\nann@home.example,ann@work.example,Ann Lee,Ann,Wien,x\n"
	columns := `{"Work mail": "email", "Who": "name", "Vorname": "first", "City": "city", "Secret": "", "Email": "home"}`
	r := f.form("", "people.csv", table, append([]string{"columns", columns}, fields...)...)
	_, _, to := f.accepted(r)
	require.Equal(t, []models.Recipient{{Email: "ann@work.example", Name: "Ann Lee",
		Vars: map[string]string{"first": "Ann", "city": "Wien", "home": "ann@home.example"}}}, to)
	for columns, want := range map[string]string{
		`{"Nothing": "email"}`:                    "/columns/Nothing unknown_column",
		`{"City": "a b"}`:                         "/columns/City invalid_name",
		`{"City": "email", "Secret": "email"}`:    "/columns/Secret repeated",
		`{"City": 1}`:                             "/columns/City wrong_type",
		`["City"]`:                                "/columns wrong_type",
		`{"Email": "", "City": "city"}`:           "/to invalid_csv",
		`{"City": "_slot.a"}`:                     "/columns/City invalid_name",
		`{"City": "city", "City": "first"}`:       "/columns/City repeated",
		`{"City": "city"}, "x": "` + "\xff" + `"`: "/columns wrong_type",
	} {
		table := strings.Replace(table, "Work mail", "Work", 1)
		r := f.form("", "people.csv", table, append([]string{"columns", columns}, fields...)...)
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, "%s: %s", columns, r.Body)
		p := r.problem(t)
		require.Contains(t, p.pointers(), want, columns)
	}
	var late bytes.Buffer
	w := multipart.NewWriter(&late)
	part, err := w.CreateFormFile("to", "people.csv")
	require.NoError(t, err)
	_, err = io.WriteString(part, table)
	require.NoError(t, err)
	require.NoError(t, w.WriteField("columns", `{"City": "city"}`))
	require.NoError(t, w.Close())
	p := f.do(http.MethodPost, "/v1/batches", w.FormDataContentType(), &late).problem(t)
	require.Contains(t, p.pointers(), "/columns conflict")
	lines := f.form(
		"",
		"people.ndjson",
		`"ann@example.com"`,
		append([]string{"columns", `{"City": "city"}`}, fields...)...)
	p = lines.problem(t)
	require.Contains(t, p.pointers(), "/columns conflict")
}
