package api

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sendgrid/rest"
	sendgridgo "github.com/sendgrid/sendgrid-go"
	sgmail "github.com/sendgrid/sendgrid-go/helpers/mail"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/mailgun"
	"github.com/safedelivr/safedelivr/api/sendgrid"
	"github.com/safedelivr/safedelivr/models"
)

// sendgridFixture is a fixture whose server speaks the API of SendGrid, and that of Mailgun, whose paths begin alike.
func sendgridFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, func(s *setup) { s.cfg.Dialects = []*dialect.Dialect{mailgun.New(), sendgrid.New()} })
	f.deps.Providers[0].Carries = models.Capabilities{Copies: true, Attachments: true, Inline: true, Headers: true,
		Variables: true}
	f.serve(f.server.cfg)
	return f
}

// TestSendGridMail: a personalization with several addresses is one mail, with everything that the request says.
func TestSendGridMail(t *testing.T) {
	t.Parallel()
	f := sendgridFixture(t)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	r := f.emails("/v3/mail/send/",
		fmt.Sprintf(`{"from": {"email": "shop@example.com", "name": "Shop, Inc."}, "subject": "ignored",
		"personalizations": [{"to": [{"email": "ann@example.com", "name": "Smith, Ann"}, {"email": "bob@example.com"}], "cc": [{"email": "cc@example.com"}],
			"subject": "Hi {{you}} -name-", "substitutions": {"-name-": "<b>", "-name-x": 7, "%%n%%": ""}, "headers": {"X-A": "own"},
			"custom_args": {"n": 7}, "send_at": %d}],
		"reply_to_list": [{"email": "r1@example.com"}, {"email": "r2@example.com", "name": "Zwei"}],
		"content": [{"type": "text/plain", "value": "{-name- -name-x [%%n%%]"}, {"type": "text/html", "value": "<p>-name-</p><img src=\"cid:logo\">"},
			{"type": "text/calendar; method=REQUEST", "value": "BEGIN"}],
		"attachments": [{"content": "aGk=", "filename": "", "type": "image/png", "disposition": "inline", "content_id": "logo"}],
		"headers": {"X-A": "all", "X-B": "b", "X-SG-EID": "x"}, "categories": ["größe 2", "b", "b"], "custom_args": {"campaign": "c"},
		"asm": {"group_id": 12}, "tracking_settings": {"open_tracking": {"enable": true}, "click_tracking": {"enable": false}},
		"mail_settings": {"bypass_list_management": {"enable": true}}, "ip_pool_name": "x"}`, at.Unix()))
	require.Equal(t, http.StatusAccepted, r.Status, string(r.Body))
	require.Empty(t, r.Body)
	bs, to := f.batches()
	b, c := bs[0], bs[0].Content
	require.Regexp(t, "^[0-9a-f]{32}$", r.Header.Get("X-Message-Id"))
	require.Equal(t, &models.Envelope{To: 2, CC: 1}, b.Envelope)
	require.Equal(t, "Smith, Ann", to[0][0].Name)
	subject, text, html := shown(&b, &to[0][0])
	require.Equal(t, []string{"Hi {{you}} <b>", "{<b> 7 []", `<p><b></p><img src="cid:logo">`}, []string{subject, text,
		html})
	require.Equal(t, []models.Header{{Name: "X-A", Value: "own"}, {Name: "X-B", Value: "b"}}, c.Headers)
	require.Equal(t, []models.Address{{Email: "r1@example.com"}, {Email: "r2@example.com", Name: "Zwei"}}, c.ReplyTo)
	require.Equal(t, []string{"größe 2", "b"}, c.Tags)
	require.Equal(t, map[string]string{"campaign": "c"}, b.Metadata)
	require.Equal(t, map[string]string{"n": "7"}, to[0][0].Metadata)
	require.Equal(t, "group-12", b.Category)
	require.True(t, b.DeliverAt.Equal(at))
	require.Equal(t, []bool{true, false}, []bool{c.TrackOpens, c.TrackClicks})
	require.Len(t, c.Attachments, 2)
}

// TestSendGridClient: the library of SendGrid sends to many. Those that differ only in values share a batch.
func TestSendGridClient(t *testing.T) {
	t.Parallel()
	f := sendgridFixture(t)
	m := sgmail.NewV3Mail()
	m.SetFrom(sgmail.NewEmail("Shop", "shop@example.com"))
	m.Subject = "s %n%"
	m.AddContent(sgmail.NewContent("text/html", "<p>%n%</p>"))
	for i := range 100 {
		p := sgmail.NewPersonalization()
		p.AddTos(sgmail.NewEmail("", fmt.Sprintf("a%d@example.com", i)))
		if p.SetSubstitution("%n%", fmt.Sprint("<", i, ">")); i == 7 {
			p.Subject = "another one"
		}
		m.AddPersonalizations(p)
	}
	request := sendgridgo.GetRequest(f.secret, "/v3/mail/send", f.url)
	request.Method, request.Body = "POST", sgmail.GetRequestBody(m)
	answer, err := sendgridgo.MakeRequestWithContext(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, http.StatusAccepted, answer.StatusCode, answer.Body)
	bs, to := f.batches()
	require.ElementsMatch(t, []int{99, 1}, []int{len(to[0]), len(to[1])})
	for i := range bs {
		for k := range to[i] {
			_, _, html := shown(&bs[i], &to[i][k])
			require.Regexp(t, `^<p><\d+></p>$`, html)
		}
	}
}

// TestSendGridSuppressions: the library of SendGrid reads and changes the suppression lists. Those who unsubscribed
// from a group are not on the list of all mail.
func TestSendGridSuppressions(t *testing.T) {
	t.Parallel()
	f := sendgridFixture(t)
	call := func(method, path, body string) string {
		request := sendgridgo.GetRequest(f.secret, "/v3/"+path, f.url)
		request.Method, request.Body = rest.Method(method), []byte(body)
		path, query, _ := strings.Cut(request.BaseURL, "?")
		request.BaseURL, request.QueryParams = path, map[string]string{}
		for _, pair := range strings.Split(query, "&") {
			if name, value, ok := strings.Cut(pair, "="); ok {
				request.QueryParams[name] = value
			}
		}
		answer, err := sendgridgo.MakeRequestWithContext(t.Context(), request)
		require.NoError(t, err)
		return fmt.Sprint(answer.StatusCode, " ", strings.TrimSpace(answer.Body))
	}
	for _, reason := range []string{"hard_bounce", "soft_bounce", "complaint"} {
		r := f.emails("/v1/suppressions", `{"email": "`+reason+`+1@example.com", "reason": "`+reason+`"}`)
		require.Equal(t, http.StatusCreated, r.Status)
	}
	at := strconv.FormatInt(time.Now().Unix()/1000, 10) + `\d{3}`
	bounce := func(kind, why string) string {
		return `{"created":` + at + `,"email":"` + kind + `_bounce\+1@example.com","reason":"` + why + `","status":""}`
	}
	hard, soft := bounce("hard", `[^"]+`), bounce("soft", `[^"]+`)
	require.Regexp(t, `^200 \[(`+hard+","+soft+"|"+soft+","+hard+`)\]$`, call("GET", "suppression/bounces", ""))
	require.Regexp(t, `^200 \[`+soft+`\]$`, call("GET", "suppression/bounces/soft_bounce+1@example.com", ""))
	require.Equal(t, "200 []", call("GET", "suppression/bounces/complaint+1@example.com", ""))
	require.Regexp(t, `^200 \[{"created":`+at+`,"email":"complaint\+1@example.com","ip":""}\]$`,
		call("GET", "suppression/spam_reports", ""))
	var seen []string
	for i := range 3 {
		seen = append(seen, call("GET", "suppression/bounces?limit=1&offset="+strconv.Itoa(i), ""))
	}
	require.NotEqual(t, seen[0], seen[1])
	require.Equal(t, "200 []", seen[2])
	for query, want := range map[string]string{
		"end_time=1": "200 []", "start_time=5000000000": "200 []", "limit=0": "200 []",
		"offset=100001": `400 {"errors":[{"message":"It may be up to 100000`, "limit=x": `400 {"errors"`,
	} {
		require.Contains(t, call("GET", "suppression/bounces?"+query, ""), want)
	}

	const both = `{"recipient_emails": ["ann@example.com", "Bob@example.com"]}`
	require.Equal(t, `201 {"recipient_emails":["ann@example.com","Bob@example.com"]}`,
		call("POST", "asm/groups/12/suppressions", both))
	require.Equal(t, "200 []", call("GET", "suppression/unsubscribes", ""), "they get other mail")
	require.Equal(t, "200 {}", call("GET", "asm/suppressions/global/ann@example.com", ""))
	require.Contains(t, call("POST", "asm/suppressions/global", both), "201 ")
	require.Contains(t, call("GET", "suppression/unsubscribes", ""), `"email":"bob@example.com"}`)
	require.Equal(t, `200 {"recipient_email":"bob@example.com"}`, call("GET", "asm/suppressions/global/bob@example.com", ""))
	require.Equal(t, "204 ", call("DELETE", "asm/suppressions/global/bob@example.com", ""))
	require.Contains(t, call("DELETE", "asm/suppressions/global/bob@example.com", ""), "404 ")
	require.Regexp(t, `^200 \["(ann@example.com","bob|bob@example.com","ann)@example.com"\]$`,
		call("GET", "asm/groups/12/suppressions", ""))
	require.Equal(t, "200 []", call("GET", "asm/groups/13/suppressions", ""))
	require.Equal(t, "204 ", call("DELETE", "asm/groups/12/suppressions/bob@example.com", ""))
	require.Equal(t, `200 ["ann@example.com"]`, call("GET", "asm/groups/12/suppressions", ""))
	require.Equal(t, "204 ", call("DELETE", "suppression/bounces/hard_bounce+1@example.com", ""))
	require.Regexp(t, `^200 \[`+soft+`\]$`, call("GET", "suppression/bounces", ""))

	for _, wrong := range []string{`{}`, `{"recipient_emails": ["x"]}`,
		`{"recipient_emails": ["` + strings.ReplaceAll(list(1001, "a%d@b.de"), ",", `","`) + `"]}`, `[`} {
		require.Contains(t, call("POST", "asm/suppressions/global", wrong), `400 {"errors"`, wrong)
	}
	require.Contains(t, call("GET", "suppression/blocks", ""), `404 {"errors"`)
	require.Contains(t, call("GET", "asm/groups", ""), `404 {"errors"`)
}

// TestOneLargeFileForMany: mails that share a large attachment take room on disk one by one.
func TestOneLargeFileForMany(t *testing.T) {
	t.Parallel()
	const size, mails = 600 << 10, 20
	f := newFixture(t, func(s *setup) {
		s.cfg.Dialects = []*dialect.Dialect{sendgrid.New()}
		s.service.Quotas = models.Limits{models.SpoolBytes: 3 * size} // the request, and one mail
	})
	f.deps.Providers[0].Carries = models.Capabilities{Attachments: true}
	f.serve(f.server.cfg)
	var list []string
	for i := range mails {
		list = append(list, fmt.Sprintf(`{"to": [{"email": "a@b.de"}], "subject": "%d"}`, i))
	}
	r := f.emails("/v3/mail/send", `{"from": {"email": "a@b.de"}, "content": [{"type": "text/plain", "value": "t"}],
		"attachments": [{"filename": "a.bin", "content": "`+base64.StdEncoding.EncodeToString(make([]byte, size))+`"}],
		"personalizations": [`+strings.Join(list, ",")+`]}`)
	require.Equal(t, http.StatusAccepted, r.Status, string(r.Body))
	bs, _ := f.batches()
	require.Len(t, bs, mails)
}

// TestSendGridMistakes: errors have SendGrid's shape, and nothing of a refused request is sent.
func TestSendGridMistakes(t *testing.T) {
	t.Parallel()
	f := sendgridFixture(t)
	with := func(personalizations, more string) string {
		return `{"from": {"email": "a@b.de"}, "subject": "s", "content": [{"type": "text/plain", "value": "t"}], "personalizations": [` +
			personalizations + `]` + more + `}`
	}
	const to = `{"to": [{"email": "a@b.de"}]}`
	for body, want := range map[string]string{
		with("", ""):           "400 personalizations",
		with(`{"to": []}`, ""): "400 personalizations.0.to",
		with(to+`, {"to": [{"email": "unknown"}], "subject": "x"}`,
			""): "400 personalizations.0",
		with(to,
			`, "template_id": "d-none"`): "400 template_id",
		with(to,
			`, "send_at": "tomorrow"`): "400 send_at",
		with(to,
			`, "attachments": [{"content": "%", "filename": "a"}]`): "400 attachments",
		with(to,
			`, "reply_to": {"email": "a@b.de"}, "reply_to_list": [{"email": "a@b.de"}]`): "400 reply_to",
		with(to,
			`, "sections": {"a": "b"}`): "400 sections",
		`{"personalizations": [` + to + `], "content": [{"type": "text/plain", "value": "t"}], "subject": "s"}`: "400 from",
	} {
		r := f.emails("/v3/mail/send", body)
		list, _ := r.object(t)["errors"].([]any)
		require.NotEmpty(t, list, "%s: %s", body, r.Body)
		require.Equal(t, want, fmt.Sprint(r.Status, " ", list[0].(map[string]any)["field"]), "%s: %s", body, r.Body)
	}
	bs, _ := f.batches()
	require.Empty(t, bs)
	r := f.emails("/v3/mail/send", with(to, `, "mail_settings": {"sandbox_mode": {"enable": true}}`))
	require.Equal(t, http.StatusOK, r.Status)
	bs, _ = f.batches()
	require.Empty(t, bs)
	for want, r := range map[int]*reply{
		401: f.emails("/v3/mail/send", "{}", "Authorization", "Bearer SG.x"), 404: f.emails("/v3/mail/none", "{}"),
		405: f.get("/v3/mail/send"),
	} {
		require.Equal(t, want, r.Status)
		require.NotEmpty(t, r.object(t)["errors"])
	}
	require.Equal(t, http.StatusNotFound, f.get("/v3/mail.none/x").Status)
}
