package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

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

// TestPostmarkBatchOfFiles: each message of a request is stored with its own large attachment and the one that all have.
func TestPostmarkBatchOfFiles(t *testing.T) {
	t.Parallel()
	f := postmarkFixture(t)
	const messages, size = 20, 300_000
	file := func(n int) string {
		return `{"Name": "a.bin", "ContentType": "application/octet-stream", "Content": "` +
			base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(n)}, size+n)) + `"}`
	}
	var list []string
	for i := range messages {
		list = append(list, fmt.Sprintf(`{"From": "a@b.de", "To": "c%d@d.de", "Subject": "s", "TextBody": "t",
			"Attachments": [%s, %s]}`, i, file(0), file(1+i)))
	}
	r := f.emails("/email/batch", "["+strings.Join(list, ",")+"]", f.token()...)
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	bs, to := f.batches()
	require.Len(t, bs, messages)
	for i := range bs {
		n := int64(0)
		_, err := fmt.Sscanf(to[i][0].Email, "c%d@", &n)
		require.NoError(t, err)
		files := bs[i].Content.Attachments
		require.Equal(t, []int64{size, size + 1 + n}, []int64{files[0].Size, files[1].Size})
	}
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

// TestPostmarkDetails: a message can be read with the events of each recipient.
func TestPostmarkDetails(t *testing.T) {
	t.Parallel()
	f := postmarkFixture(t)
	f.suppress("gone@example.com")
	r := f.emails("/email", `{"From": "Shop <shop@example.com>", "To": "Ann <ann@example.com>, gone@example.com",
		"Bcc": "bcc@example.com", "Subject": "s", "HtmlBody": "<p>h</p>", "TextBody": "t", "Tag": "welcome", "Metadata": {"n": 7},
		"Attachments": [{"Name": "a.pdf", "Content": "aGk="}], "MessageStream": "broadcast"}`, f.token()...)
	id, _ := r.object(t)["MessageID"].(string)
	read := func() (out map[string]any) {
		r := f.get("/messages/outbound/"+id+"/details", f.token()...)
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
		return r.object(t)
	}
	got := read()
	require.Equal(t, []any{id, "Shop <shop@example.com>", "s", "t", "<p>h</p>", "welcome", "Sent", "broadcast"},
		[]any{got["MessageID"], got["From"], got["Subject"], got["TextBody"], got["HtmlBody"], got["Tag"], got["Status"],
			got["MessageStream"]})
	require.Equal(t, []any{"ann@example.com", "gone@example.com", "bcc@example.com"}, got["Recipients"])
	require.Equal(t, []any{map[string]any{"Email": "bcc@example.com", "Name": ""}}, got["Bcc"])
	require.Equal(t, []any{"a.pdf"}, got["Attachments"])
	require.Equal(t, map[string]any{"n": "7"}, got["Metadata"])
	events, _ := got["MessageEvents"].([]any)
	require.Len(t, events, 1)
	require.Contains(t, fmt.Sprint(events[0]), "Recipient:gone@example.com Type:Bounced")

	b, err := models.ParseBatchID(id)
	require.NoError(t, err)
	at, happened := time.Now(), []models.Event{
		{Recipient: 1, Kind: models.Deferred}, {Recipient: 1, Kind: models.Delivered}, {Recipient: 1, Kind: models.Opened},
		{Recipient: 1, Kind: models.Clicked}, {Recipient: 1, Kind: models.Complained},
		{Recipient: 3, Kind: models.Bounced, Reason: models.MailboxInvalid},
	}
	for _, n := range []int{1, 3} {
		entry := f.attempt(b.Log(n))
		f.answered(b.Log(n), entry, models.Part{Class: models.Accepted})
		for i := range happened {
			if e := &happened[i]; e.Recipient == n {
				e.ID, e.At, e.Attempt, e.Provider = fmt.Sprint(i), at.Add(time.Duration(i)*time.Second), entry.Number, "sg"
			}
		}
	}
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b, Fact: models.Fact{
		Key: models.EventsKey(models.NewInboxID(at)), Events: happened,
	}}))
	var types []string
	events, _ = read()["MessageEvents"].([]any)
	for _, e := range events {
		e := e.(map[string]any)
		if e["Recipient"] != "gone@example.com" {
			types = append(types, fmt.Sprint(e["Recipient"], " ", e["Type"]))
		}
	}
	require.Equal(t, []string{"ann@example.com Transient", "ann@example.com Delivered", "ann@example.com Opened",
		"ann@example.com LinkClicked", "ann@example.com SubscriptionChanged", "bcc@example.com Bounced"}, types)

	for _, id := range []string{"x", models.NewBatchID(at).String()} {
		r := f.get("/messages/outbound/"+id+"/details", f.token()...)
		require.Equal(t, "422 701", fmt.Sprint(r.Status, " ", r.object(t)["ErrorCode"]))
	}
	require.Equal(t, http.StatusNotFound, f.get("/messages/outbound", f.token()...).Status)
}

// TestPostmarkSuppressions: the suppression list is read and changed. An address that complained stays on it.
func TestPostmarkSuppressions(t *testing.T) {
	t.Parallel()
	f := postmarkFixture(t)
	for email, reason := range map[string]string{"bounced@example.com": "hard_bounce", "angry@example.com": "complaint"} {
		require.Equal(t, http.StatusCreated, f.emails("/v1/suppressions",
			`{"email": "`+email+`", "reason": "`+reason+`"}`).Status)
	}
	require.Equal(t, http.StatusCreated, f.emails("/v1/suppressions",
		`{"email": "news@example.com", "category": "newsletter"}`).Status)
	const list = "/message-streams/outbound/suppressions"
	dump := func(query string) (out []string) {
		r := f.get(list+"/dump"+query, f.token()...)
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
		entries, _ := r.object(t)["Suppressions"].([]any)
		for _, e := range entries {
			e := e.(map[string]any)
			require.NotEmpty(t, e["CreatedAt"])
			out = append(out, fmt.Sprint(e["EmailAddress"], " ", e["SuppressionReason"], " ", e["Origin"]))
		}
		return out
	}
	all := []string{"bounced@example.com HardBounce Customer", "angry@example.com SpamComplaint Customer"}
	require.ElementsMatch(t, all, dump(""))
	today := time.Now().UTC().Format(time.DateOnly)
	for query, n := range map[string]int{
		"?SuppressionReason=HardBounce": 1, "?suppressionReason=ManualSuppression": 0, "?Origin=Customer": 2, "?origin=Admin": 0,
		"?EmailAddress=Angry@example.com": 1, "?fromdate=" + today + "&todate=" + today: 2, "?todate=2020-01-31": 0,
	} {
		require.Len(t, dump(query), n, query)
	}
	require.Equal(t, http.StatusUnprocessableEntity, f.get(list+"/dump?fromdate=today", f.token()...).Status)
	change := func(path, addresses string) (out []string) {
		r := f.emails(path, `{"Suppressions": [`+addresses+`]}`, f.token()...)
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
		entries, _ := r.object(t)["Suppressions"].([]any)
		for _, e := range entries {
			out = append(out, fmt.Sprint(e.(map[string]any)["EmailAddress"], " ", e.(map[string]any)["Status"]))
		}
		return out
	}
	require.Equal(t, []string{"new@example.com Suppressed", "x Failed"},
		change(list, `{"EmailAddress": "new@example.com"}, {"EmailAddress": "x"}`))
	require.Contains(t, dump(""), "new@example.com ManualSuppression Customer")
	require.Equal(t, []string{"new@example.com Deleted", "bounced@example.com Deleted", "angry@example.com Failed",
		"unknown@example.com Deleted", "news@example.com Deleted"}, change(list+"/delete", `{"EmailAddress": "new@example.com"},
		{"EmailAddress": "bounced@example.com"}, {"EmailAddress": "angry@example.com"}, {"EmailAddress": "unknown@example.com"},
		{"EmailAddress": "news@example.com"}`))
	require.Equal(t, all[1:], dump(""))
	require.Equal(t, http.StatusOK, f.get("/v1/suppressions/news@example.com").Status, "the category is another list")
	many := `{"Suppressions": [` + strings.Repeat(`{"EmailAddress": "a@b.de"},`, 50) + `{"EmailAddress": "a@b.de"}]}`
	require.Equal(t, http.StatusUnprocessableEntity, f.emails(list, many, f.token()...).Status)
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
