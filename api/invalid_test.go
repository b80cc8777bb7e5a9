package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInvalidBatch: all mistakes of a request are listed with their pointers, and nothing is
// stored.
func TestInvalidBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, c := range map[string]struct {
		body string
		want []string
	}{
		"nothing": {`{}`, []string{"/from required", "/subject required", "/html required", "/to required"}},
		"nulls": {`{"from": null, "subject": null, "html": null, "to": null, "lane": null, "providers": null}`,
			[]string{"/from required", "/subject required", "/html required", "/to required"}},
		"everything of the wrong type": {
			`{
				"from": 1,
				"reply_to": {},
				"headers": [],
				"tags": "welcome",
				"category": 1,
				"metadata": "x",
				"track_opens": 1,
				"track_clicks": "yes",
				"subject": {},
				"text": 1,
				"html": false,
				"body": 0,
				"to": 7,
				"lane": 1,
				"on_unknown": 2,
				"expires_at": 3,
				"providers": "sg",
				"allow_duplicates": "yes"
			}`,
			[]string{
				"/from wrong_type",
				"/reply_to wrong_type",
				"/headers wrong_type",
				"/tags wrong_type",
				"/category wrong_type",
				"/metadata wrong_type",
				"/track_opens wrong_type",
				"/track_clicks wrong_type",
				"/subject wrong_type",
				"/text wrong_type",
				"/html wrong_type",
				"/body wrong_type",
				"/to wrong_type",
				"/lane wrong_type",
				"/on_unknown wrong_type",
				"/expires_at wrong_type",
				"/providers wrong_type",
				"/allow_duplicates wrong_type",
			},
		},
		"to is an object": {batchOf(t, `{"to": {"email": ["a", {}]}}`), []string{"/to wrong_type"}},
		"to is empty":     {batchOf(t, `{"to": []}`), []string{"/to required"}},
		"no object":       {`["ann@example.com"]`, []string{" wrong_type"}},
		"unknown fields": {
			batchOf(t, `{"colour": 1, "a/b~c": null, "To": []}`),
			[]string{"/To unknown_field", "/a~1b~0c unknown_field", "/colour unknown_field"},
		},
		"addresses": {batchOf(t, `{"from": "a@b", "reply_to": "x", "to": ["ann", "", "ann@example.com", "a@b@c.de"]}`),
			[]string{
				"/from invalid_address",
				"/reply_to invalid_address",
				"/to/0 invalid_address",
				"/to/1 invalid_address",
				"/to/3 invalid_address",
			},
		},
		"options": {
			batchOf(t, `{"reply_to": ["a@b.de", "x", 1], "tags": ["ok", "ok", "a\nb", "", "`+strings.Repeat("x", 256)+`"], "category": "über",
				"headers": {"From": "x", "content-type": "x", "X SG": "x", "X-A": "a\nb", "x-a": "", "X-B": "{{b", "X-C": 1,
					"X-Long": "`+strings.Repeat("x", 999)+`", "X-Mailgun-Tag": "t", "Message-ID": "a b@c"},
				"metadata": {"": "x", "k": null, "long": "`+strings.Repeat("x", 16<<10)+`"},
				"to": [{"email": "a@b.de", "metadata": {"`+strings.Repeat("k", 256)+`": "x", "l": []}}]}`),
			[]string{
				"/reply_to/1 invalid_address", "/reply_to/2 wrong_type",
				"/tags/1 repeated", "/tags/2 invalid_name", "/tags/3 invalid_name", "/tags/4 invalid_name",
				"/category invalid_name",
				"/headers/From reserved_header", "/headers/content-type reserved_header", "/headers/X SG invalid_name",
				"/headers/X-A invalid_header", "/headers/x-a repeated", "/headers/X-B unknown_placeholder",
				"/headers/X-C wrong_type", "/headers/X-Long too_long",
				"/headers/X-Mailgun-Tag reserved_header", "/headers/Message-ID invalid_header",
				"/metadata/ invalid_name", "/metadata/k wrong_type", "/metadata too_long",
				"/to/0/metadata/" + strings.Repeat("k", 256) + " invalid_name", "/to/0/metadata/l wrong_type",
			},
		},
		"values in header fields": {
			batchOf(t, `{"headers": {"X-A": "{{a}}", "X-B": "{{b}}"}, "to": [
				{"email": "a@b.de", "vars": {"a": "x\ny"}}, {"email": "b@b.de", "vars": {"a": "`+strings.Repeat("x", 999)+`"}},
				{"email": "c@b.de"}, {"email": "d@b.de", "vars": {"a": "fine"}}]}`),
			[]string{"/headers/X-B unknown_placeholder", "/to/0/vars/a invalid_header", "/to/1 too_long",
				"/to/2/vars/a unknown_placeholder"},
		},
		"too many options": {
			batchOf(t, `{"reply_to": [`+list(11, `"a%d@b.de"`)+`], "tags": [`+list(11, `"t%d"`)+`],
				"headers": {`+list(101, `"X-%d": ""`)+`}, "metadata": {`+list(101, `"k%d": ""`)+`},
				"to": ["a@b.de", {"email": "c@b.de", "headers": {`+list(21, `"X-%d": ""`)+`}}]}`),
			[]string{"/headers too_many", "/metadata too_many", "/reply_to too_many", "/tags too_many", "/to/1/headers too_many"},
		},
		"blank content":    {batchOf(t, `{"text": " \n"}`), []string{"/html required"}},
		"body beside html": {batchOf(t, `{"html": "x", "body": "y"}`), []string{"/body conflict"}},
		"choices": {batchOf(t, `{"lane": "fast", "on_unknown": "", "expires_at": "2026-01-31"}`),
			[]string{"/expires_at invalid_value", "/lane invalid_value", "/on_unknown invalid_value"}},
		"empty times": {
			batchOf(t, `{"deliver_at": "", "expires_at": "", "lane": "", "to": [{"email": "a@b.de", "deliver_at": ""}]}`),
			[]string{"/deliver_at invalid_value", "/expires_at invalid_value", "/lane invalid_value",
				"/to/0/deliver_at invalid_value"},
		},
		"expiry without a zone": {batchOf(t, `{"expires_at": "2099-01-31T12:00:00"}`), []string{"/expires_at invalid_value"}},
		"expiry in the past":    {batchOf(t, `{"expires_at": "2026-01-31T12:00:00Z"}`), []string{"/expires_at invalid_value"}},
		"expiry far away":       {batchOf(t, `{"expires_at": "2099-01-31T12:00:00Z"}`), []string{"/expires_at invalid_value"}},
		"providers": {batchOf(t, `{"providers": ["sg", "ses", 5, "sg", null, ""]}`),
			[]string{
				"/providers too_many",
				"/providers/1 unknown_provider",
				"/providers/2 wrong_type",
				"/providers/3 repeated",
				"/providers/4 wrong_type",
				"/providers/5 unknown_provider",
			},
		},
		"no providers": {batchOf(t, `{"providers": []}`), []string{"/providers required"}},
		"long": {
			batchOf(t, `{"subject": "`+strings.Repeat("s", 999)+`", "from": "`+strings.Repeat("n", 257)+` <a@b.de>"}`),
			[]string{"/from too_long", "/subject too_long"},
		},
		"recipients": {
			batchOf(t, `{"to": [
				5,
				null,
				[],
				{},
				{"email": null, "name": 5, "vars": [], "x": 1},
				{"email": "bad", "name": "a\nb", "vars": {"1a": "x", "ok": null, "b": {}}},
				{"email": "a@b.de", "email": "c@d.de"},
				{"EMAIL": "a@b.de"},
				{"email": "a@b.de", "vars": {"a": 1, "a": 2}},
				{"email": "a@b.de", "name": "`+strings.Repeat("n", 257)+`"}
			]}`),
			[]string{
				"/to/0 wrong_type",
				"/to/1 wrong_type",
				"/to/2 wrong_type",
				"/to/3/email required",
				"/to/4/email wrong_type",
				"/to/4/name wrong_type",
				"/to/4/vars wrong_type",
				"/to/4/x unknown_field",
				"/to/5/email invalid_address",
				"/to/5/name invalid_header",
				"/to/5/vars/1a invalid_name",
				"/to/5/vars/b wrong_type",
				"/to/5/vars/ok wrong_type",
				"/to/6/email repeated",
				"/to/7/EMAIL unknown_field",
				"/to/7/email required",
				"/to/8/vars/a repeated",
				"/to/9/name too_long",
			},
		},
		"variables": {
			batchOf(t, `{"to": [
				{"email": "a@b.de", "vars": {"long": "`+strings.Repeat("v", 64<<10+1)+`"}},
				{"email": "b@b.de", "vars": {`+manyVars(101)+`}}
			]}`),
			[]string{"/to/0/vars/long too_long", "/to/1/vars too_many"},
		},
		"not UTF-8": {
			strings.Replace(batchOf(t, `{"to": ["a@b.de", "X"], "text": "Y"}`), "X", "\xff@b.de", 1),
			[]string{"/to/1 invalid_text"},
		},
		"half of a surrogate pair": {
			`{
				"from": "a@b.de",
				"subject": "\ud83d",
				"text": "\ude00\ud83d",
				"providers": ["\ud800"],
				"to": ["a\udc00@b.de", {"email": "a@b.de", "name": "\ud83d\u0041"}, {"email": "c@b.de", "vars": {"\ud83d": 1}}]
			}`,
			[]string{
				"/providers/0 invalid_text",
				"/subject invalid_text",
				"/text invalid_text",
				"/to/0 invalid_text",
				"/to/1 invalid_text",
				"/to/2 invalid_text",
			},
		},
		"content not UTF-8": {strings.Replace(batchOf(t, `{"text": "Y"}`), `"Y"`, "\"\xe9\"", 1),
			[]string{"/text invalid_text"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := f.with(t).post(c.body)
			p := r.problem(t)
			require.Equal(t, http.StatusUnprocessableEntity, r.Status)
			require.Equal(t, "invalid_request", p.Code)
			got := p.pointers()
			slices.Sort(got)
			slices.Sort(c.want)
			require.Equal(t, c.want, got)
		})
	}
	t.Cleanup(func() { require.Empty(t, f.store.writes(), "a request with mistakes stores nothing") })
}

// TestSurrogatePairs: whole pairs are one character, and an escaped backslash begins none.
func TestSurrogatePairs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, b, _ := f.accepted(f.post(strings.Replace(batchOf(t, `{"text": "T"}`), `"T"`, `"\ud83d\ude00 \\ud83d"`, 1)))
	require.Equal(t, `😀 \ud83d`, b.Content.Text)
}

// TestNameIsSaidOnce: the error about a name names it once.
func TestNameIsSaidOnce(t *testing.T) {
	t.Parallel()
	p := newFixture(t).post(batchOf(t, `{"to": [{"email": "a@b.de", "name": "a\nb"}]}`)).problem(t)
	require.Equal(t, []string{"/to/0/name invalid_header"}, p.pointers())
	require.Equal(t, 1, strings.Count(p.Errors[0].Detail, "name"), p.Errors[0].Detail)
}

// TestManyMistakes: the first hundred mistakes are listed, and all are counted.
func TestManyMistakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.post(batchOf(t, `{"to": [`+strings.Repeat(`"bad",`, 249)+`"bad"]}`)).problem(t)
	require.Len(t, p.Errors, 100)
	require.Equal(t, 250, p.Total)
	require.Equal(t, "/to/99", p.Errors[99].Pointer)
	to := numbered(0, 300) + `, {"email": "a@b.de", "vars": {"x": 1}}`
	p = f.post(batchOf(t, `{"text": "{{x}}", "to": [`+to+`]}`)).problem(t)
	require.Len(t, p.Errors, 100)
	require.Equal(t, 300, p.Total)
	require.Equal(t, "/to/99/vars/x", p.Errors[99].Pointer)
}

// TestHeaderInjection: line breaks and control characters are refused in all fields that become
// header lines.
func TestHeaderInjection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, line := range map[string]string{
		"CRLF":           `\r\nBcc: eve@example.com`,
		"LF":             `\nBcc: eve@example.com`,
		"CR":             `\rBcc: eve@example.com`,
		"NUL":            `\u0000Bcc`,
		"NEL":            `\u0085Bcc`,
		"line separator": `\u2028Bcc: eve@example.com`,
		"DEL":            `\u007fBcc`,
	} {
		for field, change := range map[string]string{
			"/from":            `{"from": "Shop` + line + ` <shop@example.com>"}`,
			"/from (address)":  `{"from": "shop@example.com` + line + `"}`,
			"/reply_to":        `{"reply_to": "\"Shop` + line + `\" <shop@example.com>"}`,
			"/subject":         `{"subject": "Hello` + line + `"}`,
			"/to/0":            `{"to": ["Ann` + line + ` <ann@example.com>"]}`,
			"/to/0/name":       `{"to": [{"email": "ann@example.com", "name": "Ann` + line + `"}]}`,
			"/to/0/email":      `{"to": [{"email": "ann@example.com` + line + `"}]}`,
			"/to/0/vars/x":     inSubject("{{x}}", "x", line),
			"/to/0/vars/name":  inSubject("{{name}}", "name", line),
			"/to/0/vars/email": inSubject("{{ email }}", "email", line),
		} {
			t.Run(name+" "+field, func(t *testing.T) {
				t.Parallel()
				p := f.with(t).post(batchOf(t, change)).problem(t)
				require.Equal(t, "invalid_request", p.Code)
				require.Len(t, p.Errors, 1)
				want, _, _ := strings.Cut(field, " ")
				require.Equal(t, want, p.Errors[0].Pointer)
			})
		}
	}
	t.Cleanup(func() { require.Empty(t, f.store.writes()) })
}

// TestFormMistakes checks the mistakes that only forms can have.
func TestFormMistakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ok = "from=a@b.de&subject=s&body=b"
	multi := func(body string) (string, string) { return "multipart/form-data; boundary=X", body }
	plain := func(body string) (string, string) { return "application/x-www-form-urlencoded", body }
	for name, c := range map[string]struct {
		kind, body string
		status     int
		want       []string
	}{
		"empty": {
			status: 422,
			want:   []string{"/from required", "/html required", "/subject required", "/to required"},
		},
		"bad escape":          {body: ok + "&to=a%4", status: 400},
		"bad digits":          {body: ok + "&to=a%+1", status: 400},
		"bad escape in name":  {body: ok + "&t%zz=a", status: 400},
		"name without an end": {body: strings.Repeat("n", 300), status: 400},
		"twice":               {body: ok + "&to=a@b.de&subject=again", status: 422, want: []string{"/subject repeated"}},
		"unknown": {
			body:   ok + "&to=a@b.de&=x&colour=y&flag",
			status: 422,
			want:   []string{"/ unknown_field", "/colour unknown_field", "/flag unknown_field"},
		},
		"one bad address": {
			body:   ok + "&to=a@b.de,bad,%22Lee,+Bob%22+<c@d.de>",
			status: 422,
			want:   []string{"/to/1 invalid_address"},
		},
		"open quote": {
			body:   ok + "&to=%22Ann+<a@b.de>,+c@d.de",
			status: 422,
			want:   []string{"/to/0 invalid_address"},
		},
		"open bracket": {body: ok + "&to=Ann+<a@b.de,+c@d.de", status: 422, want: []string{"/to/0 invalid_address"}},
		"long, hidden end": {
			body:   ok + "&to=a@b.de" + strings.Repeat("+", 5000) + "x",
			status: 422,
			want:   []string{"/to/0 invalid_address"},
		},
		"line break": {
			body:   ok + "&to=a@b.de%0d%0aBcc:+c@d.de",
			status: 422,
			want:   []string{"/to/0 invalid_address"},
		},
		"subject line break": {
			body:   "from=a@b.de&subject=s%0d%0aBcc:+c@d.de&body=b&to=a@b.de",
			status: 422,
			want:   []string{"/subject invalid_header"},
		},
		"latin-1": {
			body:   "from=a@b.de&subject=s&body=%e9&to=a@b.de",
			status: 422,
			want:   []string{"/body invalid_text"},
		},
		"latin-1 address": {body: ok + "&to=%e9@b.de", status: 422, want: []string{"/to/0 invalid_address"}},
		"no boolean": {
			body:   ok + "&to=a@b.de&allow_duplicates=perhaps",
			status: 422,
			want:   []string{"/allow_duplicates wrong_type"},
		},
		"providers of commas": {body: ok + "&to=a@b.de&providers=,+,", status: 422, want: []string{"/providers required"}},
		"multipart cut off": {
			kind:   "m",
			body:   "--X\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\na@b.de",
			status: 400,
		},
		"multipart no name": {
			kind:   "m",
			body:   "--X\r\n\r\nx\r\n--X--\r\n",
			status: 422,
			want:   []string{"/ unknown_field", "/from required", "/html required", "/subject required", "/to required"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind, body := plain(c.body)
			if c.kind == "m" {
				kind, body = multi(c.body)
			}
			r := f.with(t).do(http.MethodPost, "/v1/batches", kind, strings.NewReader(body))
			p := r.problem(t)
			require.Equal(t, c.status, r.Status, string(r.Body))
			if c.status == 400 {
				require.Equal(t, "bad_form", p.Code)
				return
			}
			got := p.pointers()
			slices.Sort(got)
			require.Equal(t, c.want, got)
		})
	}
	t.Run("no boundary", func(t *testing.T) {
		t.Parallel()
		p := f.with(t).do(http.MethodPost, "/v1/batches", "multipart/form-data", strings.NewReader("x")).problem(t)
		require.Equal(t, "bad_form", p.Code)
	})
	t.Cleanup(func() { require.Empty(t, f.store.writes()) })
}

// list returns n elements of a list or an object, numbered from 0.
func list(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}
