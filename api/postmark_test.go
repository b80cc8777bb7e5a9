package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/postmark"
	"github.com/safedelivr/safedelivr/models"
)

// postmarkFixture is a fixture whose server speaks the API of Postmark.
func postmarkFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, func(s *setup) { s.cfg.Dialects = []*dialect.Dialect{postmark.New()} })
	f.deps.Providers[0].Carries = models.Capabilities{Copies: true, Attachments: true, Inline: true, Headers: true,
		Variables: true}
	f.serve(f.server.cfg)
	return f
}

// token sends the key as Postmark's clients do.
func (f *fixture) token() []string {
	return []string{"Authorization", "", "X-Postmark-Server-Token", f.secret}
}

// TestPostmarkMail: one mail goes to all addresses, with everything that the request says.
func TestPostmarkMail(t *testing.T) {
	t.Parallel()
	f := postmarkFixture(t)
	r := f.emails("/email",
		`{"From": "Shop <shop@example.com>", "To": "\"Smith, Ann\" <ann@example.com>, bob@example.com", "Cc": "cc@example.com",
		"Bcc": "", "ReplyTo": "help@example.com", "Subject": "Hi {{you}}", "HtmlBody": "<img src=\"cid:a b\">", "TextBody": null,
		"Headers": [{"Name": "X-A", "Value": "b"}, {"Name": "Sender", "Value": "x@y.z"}, {"Name": "X-PM-KeepID", "Value": "true"}],
		"Tag": "größe 2", "Metadata": {"n": 7, "s": "t"}, "TrackOpens": true, "TrackLinks": "HtmlOnly", "MessageStream": "broadcast",
		"Attachments": [{"Name": "a.pdf", "Content": "aGFs\r\nbG8=", "ContentType": "application/pdf"},
			{"Name": "b", "Content": "aGk=", "ContentType": "image/png", "ContentID": "cid:a b"}]}`, f.token()...)
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	bs, to := f.batches()
	b, c, got := bs[0], bs[0].Content, r.object(t)
	require.Equal(t, []any{0.0, "OK", b.ID.String(), `"Smith, Ann" <ann@example.com>, bob@example.com`},
		[]any{got["ErrorCode"], got["Message"], got["MessageID"], got["To"]})
	require.Equal(t, &models.Envelope{To: 2, CC: 1}, b.Envelope)
	subject, _, html := shown(&b, &to[0][0])
	require.Equal(t, []string{"Hi {{you}}", `<img src="cid:inline-1">`}, []string{subject, html})
	require.Equal(t, []models.Header{{Name: "X-A", Value: "b"}}, c.Headers)
	require.Equal(t, []string{"größe 2"}, c.Tags)
	require.Equal(t, map[string]string{"n": "7", "s": "t"}, b.Metadata)
	require.Equal(t, []any{true, true, models.Bulk}, []any{c.TrackOpens, c.TrackClicks, b.Lane})
	require.Len(t, c.Attachments, 2)
}

// TestPostmarkBatch: each message of a request has a result, and a repeat with the same key sends none again.
func TestPostmarkBatch(t *testing.T) {
	t.Parallel()
	f := postmarkFixture(t)
	one := func(to string) string {
		return `{"From": "a@b.de", "To": "` + to + `", "Subject": "s", "TextBody": "t"}`
	}
	for range 2 {
		r := f.emails("/email/batch", "["+one("a@b.de")+","+one("unknown")+","+one("c@d.de")+"]", append(f.token(),
			"Idempotency-Key", "k")...)
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
		var results []struct {
			ErrorCode          int
			Message, MessageID string
		}
		require.NoError(t, json.Unmarshal(r.Body, &results))
		require.Equal(t, []int{0, 300, 0}, []int{results[0].ErrorCode, results[1].ErrorCode, results[2].ErrorCode})
		require.Contains(t, results[1].Message, `Invalid 'To' address: 'unknown'.`)
	}
	bs, _ := f.batches()
	require.Len(t, bs, 2)
}

// TestPostmarkInactive: the answer names the addresses that get no mail because they are on a suppression list, also
// that to a repeat. The others get the mail.
func TestPostmarkInactive(t *testing.T) {
	t.Parallel()
	f := postmarkFixture(t)
	f.suppress("gone@example.com")
	f.suppress("left@example.com")
	const why = " Inactive recipients are ones that have generated a hard bounce, a spam complaint, or a manual suppression."
	for body, want := range map[string]string{
		`"To": "a@b.de, Gone <GONE@example.com>", "Cc": "Left@example.com"`: "200 0 Message OK, but will not deliver to " +
			"these inactive addresses: gone@example.com, left@example.com.",
		`"To": "Gone <Gone@example.com>", "Bcc": "left@example.com"`: "422 406 You tried to send to recipient(s) that have " +
			"been marked as inactive. Found inactive addresses: gone@example.com, left@example.com.",
	} {
		for range 2 {
			r := f.emails("/email", `{"From": "a@b.de", "Subject": "s", "TextBody": "t", `+body+`}`,
				append(f.token(), "Idempotency-Key", strconv.Itoa(len(body)))...)
			got := r.object(t)
			require.Equal(t, want+why, fmt.Sprint(r.Status, " ", got["ErrorCode"], " ", got["Message"]))
			require.Equal(t, r.Status == http.StatusOK, got["MessageID"] != nil)
		}
	}
	bs, to := f.batches()
	require.Len(t, bs, 2)
	require.Len(t, to, 2)
}

// TestPostmarkMistakes: errors have Postmark's shape and codes.
func TestPostmarkMistakes(t *testing.T) {
	t.Parallel()
	f := postmarkFixture(t)
	f.suppress("gone@example.com")
	for body, want := range map[string]string{
		`{"From": "x", "To": "a@b.de", "Subject": "s", "TextBody": "t"}`:                                                      "422 300",
		`{"From": "a@b.de", "To": "a@b.de", "Subject": "s"}`:                                                                  "422 300",
		`{"From": "a@b.de", "To": "a@b.de", "Subject": "s", "TextBody": "t", "Attachments": [{"Name": "a", "Content": "%"}]}`: "422 411",
		`{"From": "a@b.de", "To": "a@b.de", "TemplateAlias": "none", "TemplateModel": {}}`:                                    "422 1101",
		`{"From": "a@b.de", "To": "` + list(51, `a%d@b.de`) +
			`", "Subject": "s", "TextBody": "t"}`: "422 410",
		`{"From": "a@b.de", "To": "Gone@example.com", "Subject": "s", "TextBody": "t"}`: "422 406",
		`[`: "422 402",
	} {
		r := f.emails("/email", body, f.token()...)
		require.Equal(t, want, fmt.Sprint(r.Status, " ", r.object(t)["ErrorCode"]), "%s: %s", body, r.Body)
		require.NotEmpty(t, r.object(t)["Message"])
	}
	r := f.emails("/email", "{}", "Authorization", "", "X-Postmark-Server-Token", "x")
	require.Equal(t, "401 10", fmt.Sprint(r.Status, " ", r.object(t)["ErrorCode"]))
	for path, want := range map[string]int{"/email/none": 404, "/email/batch/x": 404} {
		r := f.emails(path, "{}", f.token()...)
		require.Equal(t, want, r.Status)
		require.NotEmpty(t, r.object(t)["Message"])
	}
	require.Equal(t, http.StatusMethodNotAllowed, f.get("/email", f.token()...).Status)
}

// suppress adds an address to the suppression list.
func (f *fixture) suppress(address string) {
	f.Helper()
	r := f.do(http.MethodPost, "/v1/suppressions", "application/json", strings.NewReader(`{"email": "`+address+`"}`))
	require.Equal(f, http.StatusCreated, r.Status, string(r.Body))
}
