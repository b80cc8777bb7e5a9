package api

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// checkSuppressions checks the calls about suppressions. own is a key without the scope operate.
func (c *contract) checkSuppressions(js, own string) {
	c.Helper()
	const path = "/v1/suppressions"
	for _, everyone := range []string{"", "?everyone=true"} {
		c.check("POST", path+everyone, js, `{"email": "Ann@example.com"}`, 201)
		c.check("POST", path+everyone, js, `{"email": "bob@example.com", "reason": "complaint", "category": "news",
			"expires_at": "2100-01-01T00:00:00Z", "why": "asked"}`, 201)
		c.check("POST", path+everyone, js, `{"email": "bob", "expires_at": "2000-01-01T00:00:00Z"}`, 422)
		c.check("GET", path+everyone, "", "", 200)
		c.check("GET", path+"/ann@example.com"+everyone, "", "", 200)
		c.check("GET", path+"/eve@example.com"+everyone, "", "", 404)
		c.check("GET", path+"/export"+everyone, "", "", 200)
		c.check("POST", path+"/import"+everyone, "text/csv", "email\neve@example.com\nx\n", 200)
		c.check("POST", path+"/import"+everyone, "text/csv", "a,b\n", 422)
		c.check("POST", path+"/import"+everyone, js, "{}", 415)
		for range 2 {
			c.check("DELETE", path+"/ann@example.com"+everyone, "", "", 200)
		}
		c.check("DELETE", path+"/other@example.com"+everyone, "", "", 404)
	}
	c.check("POST", path+"?everyone=true", js, `{"email": "ann@example.com"}`, 403, "Authorization", "Bearer "+own)
	c.check("DELETE", path+"/bob@example.com", "", "", 400)
	c.check("DELETE", path+"/bob@example.com?why=asked+again&category=news&reason=complaint", "", "", 200)
}

// suppressions returns the addresses of a page of a list.
func (f *fixture) suppressions(query string) (out []string, next string) {
	f.Helper()
	v := read[client.SuppressionPage](f, "/v1/suppressions"+query)
	for _, e := range v.Suppressions {
		out = append(out, e.Email)
	}
	return out, v.Next
}

// TestSuppressions: an address is listed, found and explained until it is removed. After a
// complaint that needs a reason, which the audit trail has.
func TestSuppressions(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	const js = "application/json"
	add := func(body string) {
		t.Helper()
		r := f.do("POST", "/v1/suppressions", js, strings.NewReader(body))
		require.Equal(t, 201, r.Status, "%s", r.Body)
	}
	for n := range 30 {
		add(fmt.Sprintf(`{"email": "a%d@example.com"}`, n))
	}
	add(`{"email": "Ann@example.com", "reason": "complaint", "why": "asked"}`)
	add(`{"email": "ann@example.com", "reason": "complaint"}`)
	add(`{"email": "ann@example.com", "reason": "unsubscribe", "category": "news"}`)

	all := map[string]int{}
	query := "?limit=7"
	for {
		page, next := f.suppressions(query)
		for _, a := range page {
			all[a]++
		}
		if next == "" {
			break
		}
		query = "?limit=7&cursor=" + next
	}
	require.Len(t, all, 31)
	require.Equal(t, 2, all["ann@example.com"])
	found, _ := f.suppressions("?reason=complaint")
	require.Equal(t, []string{"ann@example.com"}, found)
	found, _ = f.suppressions("?q=A7@")
	require.Equal(t, []string{"a7@example.com"}, found)
	found, _ = f.suppressions("?category=news")
	require.Equal(t, []string{"ann@example.com"}, found)
	require.Equal(t, 400, f.get("/v1/suppressions?cursor=x").Status)

	of := func() []client.Suppression {
		t.Helper()
		return read[struct{ Suppressions []client.Suppression }](f, "/v1/suppressions/ann@example.com").Suppressions
	}
	require.Len(t, of(), 2)
	require.Equal(t, "asked", of()[0].Why)
	require.Equal(t, "api", of()[0].Origin)
	r := f.do("DELETE", "/v1/suppressions/ann@example.com", "", nil)
	require.Equal(t, "invalid_query", r.problem(t).Code)
	require.Len(t, of(), 2)
	require.Equal(t, 200, f.do("DELETE", "/v1/suppressions/ann@example.com?reason=unsubscribe", "", nil).Status)
	require.Len(t, of(), 1)
	require.Equal(t, 200, f.do("DELETE", "/v1/suppressions/ann@example.com?why=sorry", "", nil).Status)
	require.Equal(t, 404, f.get("/v1/suppressions/ann@example.com").Status)
	require.Equal(t, []string{"suppression.remove", "suppression.remove sorry"}, f.commands())

	add(`{"email": "ann@example.com", "reason": "complaint"}`)
	require.Len(t, of(), 1, "added again")
}

// TestSuppressionsAsCSV: an export can be imported, an import may be repeated, and rows with
// mistakes are left out and named.
func TestSuppressionsAsCSV(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	var rows strings.Builder
	rows.WriteString("\ufeffReason,EMAIL,more,category,expires_at\n")
	for n := range 2500 {
		fmt.Fprintf(&rows, "complaint,a%d@example.com,x,news,2100-01-01T00:00:00Z\n", n)
	}
	rows.WriteString("complaint,bob\nwhat,b@example.com\n,c@example.com,x,,tomorrow\n,d@example.com\n")
	load := func(query, body string) (v client.SuppressionImport) {
		t.Helper()
		r := f.do("POST", "/v1/suppressions/import"+query, "text/csv", strings.NewReader(body))
		require.Equal(t, 200, r.Status, "%s", r.Body)
		require.NoError(t, json.Unmarshal(r.Body, &v))
		return v
	}
	v := load("", rows.String())
	require.Equal(t, 2504, v.Rows)
	require.Equal(t, 2501, v.Added)
	require.Equal(t, 3, v.Rejected)
	var at []string
	for _, e := range v.Errors {
		at = append(at, e.Pointer)
	}
	require.Equal(t, []string{"/2501/email", "/2502/reason", "/2503/expires_at"}, at)
	require.Zero(t, load("", rows.String()).Added)

	file := string(f.get("/v1/suppressions/export").Body)
	require.Equal(t, 2502, strings.Count(file, "\n"))
	v = load("?everyone=true", file)
	require.Equal(t, 2501, v.Added)
	require.Zero(t, v.Rejected)
	for _, e := range read[struct{ Suppressions []client.Suppression }](f,
		"/v1/suppressions/a7@example.com?everyone=true").Suppressions {
		require.Equal(t, "import", e.Origin)
		require.Equal(t, "news", e.Category)
		require.Equal(t, 2100, e.Expires.Year())
	}
	for _, file := range []string{
		"email\n\"" + strings.Repeat("x", 70<<10), "email\r", "email\n,\n\u00a0\n",
		"email,Email\na@example.com,b@example.com\n",
	} {
		r := f.do("POST", "/v1/suppressions/import", "text/csv", strings.NewReader(file))
		require.Equal(t, "invalid_csv", r.problem(t).Code, file)
	}
}

// TestImportedRows: each row of a file of suppressions is imported or counted as rejected.
func TestImportedRows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file                  string
		rows, added, rejected int
	}{
		{"email\ra@example.com\rb@example.com\r", 2, 2, 0},
		{"email,reason\na@example.com,\"complaint\nb@example.com,complaint\n", 2, 1, 1},
		{"email,why\na@example.com,asked, twice\nb@example.com,asked,,\n", 2, 1, 1},
		{"email\na@example.com\n\xff@example.com\n,,\n\u00a0\n", 2, 1, 1},
		{"email;A, B, C\na@example.com;x\n", 1, 1, 0},
		{"E-Mail;Reason\na@example.com;complaint\nb@example.com;nonsense\n", 2, 1, 1},
		{"Why,Email Address\nasked,a@example.com\n", 1, 1, 0},
		{"Address\ta postal one\na@example.com\t\n", 1, 1, 0},
		{"Address|Mail|Expires at\nVienna|a@example.com|2100-01-31T12:00:00Z\nLinz|b@example.com|soon\n", 2, 1, 1},
	} {
		f := newFixture(t)
		r := f.do("POST", "/v1/suppressions/import", "text/csv", strings.NewReader(c.file))
		require.Equal(t, 200, r.Status, "%s: %s", c.file, r.Body)
		var v client.SuppressionImport
		require.NoError(t, json.Unmarshal(r.Body, &v))
		require.Equal(t, []int{c.rows, c.added, c.rejected}, []int{v.Rows, v.Added, v.Rejected}, c.file)
		require.Len(t, v.Errors, c.rejected, c.file)
	}
}

// TestExportedSuppressionsAreNoFormulas: a cell of an export begins no formula, and is imported as it was.
func TestExportedSuppressionsAreNoFormulas(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	want := map[string]string{"=1+1@example.com": "-2; =3", "'=1@example.com": "'+4", "a|-b@example.com": "fine"}
	for email, why := range want {
		body, err := json.Marshal(map[string]string{"email": email, "why": why})
		require.NoError(t, err)
		require.Equal(t, 201, f.do("POST", "/v1/suppressions", "application/json", bytes.NewReader(body)).Status)
	}
	file := string(f.get("/v1/suppressions/export").Body)
	rows, err := csv.NewReader(strings.NewReader(file)).ReadAll()
	require.NoError(t, err)
	var cells []string
	for _, row := range rows[1:] {
		cells = append(cells, row[0]+" "+row[4])
	}
	require.ElementsMatch(t,
		[]string{"'=1+1@example.com '-2; '=3", "''=1@example.com ''+4", "a|'-b@example.com fine"}, cells)
	r := f.do("POST", "/v1/suppressions/import?everyone=true", "text/csv", strings.NewReader(file))
	require.Equal(t, 200, r.Status, "%s", r.Body)
	got := map[string]string{}
	for _, e := range read[client.SuppressionPage](f, "/v1/suppressions?everyone=true").Suppressions {
		got[e.Email] = e.Why
	}
	require.Equal(t, want, got)
}

// TestSuppressedAtAcceptance: the answer counts the suppressed recipients, and their logs have
// failed at once, before any worker has seen the batch.
func TestSuppressedAtAcceptance(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	const js = "application/json"
	for _, body := range []string{
		`{"email": "ann@example.com"}`, `{"email": "bob@example.com", "reason": "unsubscribe", "category": "news"}`,
	} {
		require.Equal(t, 201, f.do("POST", "/v1/suppressions", js, strings.NewReader(body)).Status)
	}
	send := func(more string) (a service.Accepted) {
		t.Helper()
		r := f.do("POST", "/v1/batches", js, strings.NewReader(`{"from": "me@example.com", "subject": "s", "text": "t",
			"to": ["Ann@example.com", "bob@example.com", "eve@example.com"]`+more+`}`))
		require.Equal(t, 202, r.Status, "%s", r.Body)
		require.NoError(t, json.Unmarshal(r.Body, &a))
		return a
	}
	for more, want := range map[string]int{`, "category": "news"`: 2, "": 1} {
		a := send(more)
		require.Equal(t, 3, a.Recipients)
		require.Equal(t, want, a.Suppressed)
		for r := 1; r <= 3; r++ {
			l := read[mail.LogView](f, "/v1/logs/"+a.ID.Log(r).String())
			if r > want {
				require.Equal(t, models.Queued, l.State)
				continue
			}
			require.Equal(t, models.Failed, l.State)
			require.Equal(t, models.Suppressed, l.Reason)
		}
	}
}

// TestPassUnsubscribes: urgent mail of a key with the scope reaches people who unsubscribed from
// its category. It does not reach people who complained or unsubscribed from everything, and
// bulk mail of the key reaches none of them.
func TestPassUnsubscribes(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	const js = "application/json"
	for _, body := range []string{
		`{"email": "a@example.com", "reason": "unsubscribe", "category": "news"}`,
		`{"email": "b@example.com", "reason": "unsubscribe"}`,
		`{"email": "c@example.com", "reason": "complaint", "category": "news"}`,
	} {
		require.Equal(t, 201, f.do("POST", "/v1/suppressions", js, strings.NewReader(body)).Status)
	}
	passing := f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeSend, models.ScopePass}})
	for _, c := range []struct {
		lane, secret string
		want         int
	}{{"urgent", passing, 2}, {"bulk", passing, 3}, {"urgent", f.secret, 3}} {
		r := f.do("POST", "/v1/batches", js, strings.NewReader(`{"from": "me@example.com", "subject": "s", "text": "t",
			"category": "news", "lane": "`+c.lane+`", "to": ["a@example.com", "b@example.com", "c@example.com"]}`),
			"Authorization", "Bearer "+c.secret)
		var a service.Accepted
		require.Equal(t, 202, r.Status, "%s", r.Body)
		require.NoError(t, json.Unmarshal(r.Body, &a))
		require.Equal(t, c.want, a.Suppressed, c.lane)
	}
}

// TestErasedStaysSuppressed: an erased address is in no entry any more, and still suppressed.
func TestErasedStaysSuppressed(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	const js = "application/json"
	for _, everyone := range []string{"", "?everyone=true"} {
		r := f.do(
			"POST",
			"/v1/suppressions"+everyone,
			js,
			strings.NewReader(`{"email": "ann@example.com", "why": "Ann asked"}`),
		)
		require.Equal(t, 201, r.Status)
		require.Equal(t, "/v1/suppressions/ann@example.com"+everyone, r.Header.Get("Location"))
	}
	f.erase("Ann@example.com")
	for _, everyone := range []string{"", "?everyone=true"} {
		v := read[struct{ Suppressions []client.Suppression }](f, "/v1/suppressions/ann@example.com"+everyone)
		require.Len(t, v.Suppressions, 1)
		require.Empty(t, v.Suppressions[0].Email)
		require.Empty(t, v.Suppressions[0].Why)
		file := string(f.get("/v1/suppressions/export" + everyone).Body)
		require.NotContains(t, strings.ToLower(file), "ann")
	}
}

// erase erases an address. On a busy machine that takes several parts.
func (f *fixture) erase(email string) {
	f.Helper()
	for cursor, done := "", false; !done; {
		body := strings.NewReader(`{"email": "` + email + `", "cursor": "` + cursor + `"}`)
		r := f.do("POST", "/v1/erasures", "application/json", body)
		require.Equal(f, 200, r.Status, "%s", r.Body)
		part := r.object(f.TB)
		done, cursor = part["done"].(bool), fmt.Sprint(part["next_cursor"])
	}
}
