package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/resend"
	"github.com/safedelivr/safedelivr/api/sendgrid"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// resendFixture is a fixture whose server speaks the API of Resend.
func resendFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, func(s *setup) { s.cfg.Dialects = []*dialect.Dialect{resend.New()} })
	f.deps.Providers[0].Carries = models.Capabilities{Copies: true, Attachments: true, Inline: true, Headers: true,
		Variables: true}
	f.serve(f.server.cfg)
	return f
}

func (f *fixture) emails(path, body string, header ...string) *reply {
	f.Helper()
	return f.do(http.MethodPost, path, "application/json", strings.NewReader(body), header...)
}

// TestResendEmail: one mail goes to all addresses, with everything that the request says, in the forms of all SDKs.
func TestResendEmail(t *testing.T) {
	t.Parallel()
	f := resendFixture(t)
	r := f.emails("//emails/",
		`{"from": "Shop <shop@example.com>", "to": ["Ann <ann@example.com>", "bob@example.com"], "cc": "cc@example.com",
		"bcc": [], "replyTo": "help@example.com", "subject": "Hi {{you}}", "html": "<img src=\"cid:a b\">", "text": null,
		"headers": {"X-A": "b\r\nc", "Sender": "x@y.z", "X-N": 7, "Message-ID": "<own@example.com>"},
		"tags": [{"name": "kind", "value": "welcome"}, {"env": "test"}], "topic_id": "letter", "scheduled_at": "in 5 min",
		"attachments": [{"filename": "a/b.txt", "content": "aGFsbG8"}, {"content": [104, 105], "content_id": "a b"},
			{"filename": "c", "content": {"type": "Buffer", "data": [1, 2]}, "content_type": "Text/Plain; charset=utf-8"}], "unknown": 1}`)
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	bs, to := f.batches()
	b, c := bs[0], bs[0].Content
	require.Equal(t, `{"id":"`+b.ID.String()+`"}`, strings.TrimSpace(string(r.Body)))
	require.Equal(t, &models.Envelope{To: 2, CC: 1}, b.Envelope)
	subject, _, html := shown(&b, &to[0][0])
	require.Equal(t, []string{"Hi {{you}}", `<img src="cid:inline-1">`}, []string{subject, html})
	require.Equal(t, []models.Header{{Name: "Message-ID", Value: "<own@example.com>"}, {Name: "X-A", Value: "b c"},
		{Name: "X-N", Value: "7"}}, c.Headers)
	require.Equal(t, map[string]string{"kind": "welcome", "env": "test"}, b.Metadata)
	require.Equal(t, []string{"kind:welcome", "env:test"}, c.Tags)
	require.Equal(t, "letter", b.Category)
	require.WithinDuration(t, b.ID.Time().Add(5*time.Minute), b.DeliverAt, 2*time.Second)
	var files []string
	for _, a := range c.Attachments {
		files = append(files, fmt.Sprint(a.Filename, " ", a.Type, " ", a.ContentID, " ", a.Size))
	}
	require.Equal(t, []string{"a-b.txt application/octet-stream  5",
		"attachment-2.bin application/octet-stream inline-1 2", "c text/plain  2"}, files)
}

// TestResendReads: an email can be read, moved and cancelled until it is sent. A list has pages.
func TestResendReads(t *testing.T) {
	t.Parallel()
	f := resendFixture(t)
	id := func(body string) string { return f.emails("/emails", body).object(t)["id"].(string) }
	id(`{"from": "shop@example.com", "to": ["ann@example.com"], "subject": "s", "text": "t"}`)
	later := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	one := id(fmt.Sprintf(`{"from": "Shop <shop@example.com>", "to": "ann@example.com", "subject": "s", "text": "t", "scheduled_at": %q}`, later.Format(time.RFC3339)))
	got := f.get("/emails/" + one).object(t)
	require.Equal(t, "email scheduled s <nil> t [ann@example.com] Shop <shop@example.com>", fmt.Sprint(got["object"],
		" ", got["last_event"], " ",
		got["subject"], " ", got["html"], " ", got["text"], " ", got["to"], " ", got["from"]))
	require.Equal(t, later.Format("2006-01-02 15:04:05.000000-07"), got["scheduled_at"])
	moved := f.do(http.MethodPatch, "/emails/"+one, "application/json",
		strings.NewReader(`{"scheduled_at": "in 2 hours"}`))
	require.Equal(t, http.StatusOK, moved.Status, string(moved.Body))
	require.NotEqual(t, got["scheduled_at"], f.get("/emails/" + one).object(t)["scheduled_at"])
	require.Equal(t, "email", f.emails("/emails/"+one+"/cancel", "").object(t)["object"])

	sent := id(`{"from": "shop@example.com", "to": ["a1@example.com", "a2@example.com"], "subject": "x", "html": "h"}`)
	batch, err := models.ParseBatchID(sent)
	require.NoError(t, err)
	(&fed{fixture: f, Writer: feed.NewWriter(f.store)}).end(batch, 2, 1, 2)
	require.Equal(t, "failed", f.get("/emails/" + sent).object(t)["last_event"])
	require.Equal(t, http.StatusUnprocessableEntity, f.emails("/emails/"+sent+"/cancel", "").Status)

	var ids []string
	for after := ""; ; {
		page := f.get("/emails?limit=1" + after).object(t)
		for _, e := range page["data"].([]any) {
			ids = append(ids, e.(map[string]any)["id"].(string))
		}
		if page["has_more"] != true {
			break
		}
		after = "&after=" + ids[len(ids)-1]
	}
	require.Len(t, ids, 3)
	require.Equal(t, sent, ids[0])
	require.Equal(t, http.StatusNotFound, f.get("/emails/"+sent, "Authorization", "Bearer "+f.foreign).Status)
}

// TestResendBatch: many emails are sent, or none if one has a mistake. Permissive requests send the others.
func TestResendBatch(t *testing.T) {
	t.Parallel()
	f := resendFixture(t)
	body := func(to ...string) string {
		var list []string
		for _, a := range to {
			list = append(list, `{"from": "shop@example.com", "to": "`+a+`", "subject": "s", "text": "t"}`)
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	r := f.emails("/emails/batch", body("a@b.de", "unknown"))
	require.Equal(t, http.StatusUnprocessableEntity, r.Status)
	require.Contains(t, r.object(t)["message"], "Invalid `to` field.")
	bs, _ := f.batches()
	require.Empty(t, bs)
	r = f.emails("/emails/batch", body("a@b.de", "unknown", "c@d.de"), "X-Batch-Validation", "permissive")
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	var got struct {
		Data   []struct{ ID string }
		Errors []struct{ Index int }
	}
	require.NoError(t, json.Unmarshal(r.Body, &got))
	require.Len(t, got.Data, 2)
	require.Equal(t, 1, got.Errors[0].Index)
	for range 2 {
		r = f.emails("/emails/batch", body("e@f.de", "g@h.de"), "Idempotency-Key", "k")
		require.Equal(t, http.StatusOK, r.Status)
	}
	bs, _ = f.batches()
	require.Len(t, bs, 4)
	r = f.emails("/emails/batch", body("x@f.de", "g@h.de"), "Idempotency-Key", "k")
	require.Equal(t, "invalid_idempotent_request", r.object(t)["name"], string(r.Body))

	// An email that was refused may be corrected, and the other one is not sent again.
	data := func(to ...string) (ids []any) {
		r := f.emails("/emails/batch", body(to...), "X-Batch-Validation", "permissive", "Idempotency-Key", "other")
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
		return r.object(t)["data"].([]any) //nolint:forcetypeassert // else the test fails
	}
	second := data("unknown", "b@c.de")
	corrected := data("a@c.de", "b@c.de")
	require.Equal(t, second[0], corrected[1])
	bs, _ = f.batches()
	require.Len(t, bs, 6)
}

// TestBatchThatWasNotStored: a request that was checked, but not stored, is checked again when it is repeated.
func TestBatchThatWasNotStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) {
		s.cfg.Dialects = []*dialect.Dialect{resend.New()}
		s.service.Quotas = models.Limits{models.RecipientsPerDay: 3}
	})
	f.store.failing("PutBatch", func(n int) error {
		if n == 1 {
			return models.ErrUnavailable
		}
		return nil
	})
	one := `{"from": "shop@example.com", "to": "a@b.de", "subject": "s", "text": "t"}`
	both := func() int { return f.emails("/emails/batch", "["+one+","+one+"]", "Idempotency-Key", "k").Status }
	require.Equal(t, http.StatusServiceUnavailable, both())
	require.Equal(t, http.StatusOK, f.emails("/emails", one).Status)
	require.Equal(t, http.StatusOK, f.emails("/emails", one).Status)
	require.Equal(t, http.StatusTooManyRequests, both())
	bs, _ := f.batches()
	require.Len(t, bs, 2, "none of both is sent")
}

// TestBatchAtQuota: the emails of a request count together. If they are more than the quota, none is sent. The request is
// answered again as before, even after it has used up the quota.
func TestBatchAtQuota(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) {
		s.cfg.Dialects = []*dialect.Dialect{resend.New(), sendgrid.New()}
		s.service.Quotas = models.Limits{models.RecipientsPerDay: 10}
	})
	resent := func(n int, header ...string) *reply {
		one := `{"from": "shop@example.com", "to": "a@b.de", "subject": "s", "text": "t"}`
		return f.emails("/emails/batch", "["+strings.Repeat(one+",", n-1)+one+"]", header...)
	}
	r := resent(11)
	require.Equal(t, http.StatusRequestEntityTooLarge, r.Status)
	require.Empty(t, r.Header.Get("Retry-After"), "it can never be accepted")
	var groups []string
	for i := range 11 {
		groups = append(groups, fmt.Sprintf(`{"to": [{"email": "a@b.de"}], "subject": "%d"}`, i))
	}
	r = f.emails("/v3/mail/send", `{"from": {"email": "a@b.de"}, "content": [{"type": "text/plain", "value": "t"}],
		"personalizations": [`+strings.Join(groups, ",")+`]}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, r.Status)
	bs, _ := f.batches()
	require.Empty(t, bs)
	first := resent(10, "Idempotency-Key", "k")
	require.Equal(t, http.StatusOK, first.Status, string(first.Body))
	again := resent(10, "Idempotency-Key", "k")
	require.Equal(t, string(first.Body), string(again.Body))
	r = resent(2)
	require.Equal(t, http.StatusTooManyRequests, r.Status)
	require.NotEmpty(t, r.Header.Get("Retry-After"))
	bs, _ = f.batches()
	require.Len(t, bs, 10)
}

// TestResendMistakes: errors have Resend's shape, and the names that its SDKs know.
func TestResendMistakes(t *testing.T) {
	t.Parallel()
	f := resendFixture(t)
	for body, want := range map[string]string{
		`{}`: "422 missing_required_field",
		`{"from": "x", "to": "a@b.de", "subject": "s", "text": "t"}`:                                      "422 invalid_from_address",
		`{"from": "a@b.de", "to": 7, "subject": "s", "text": "t"}`:                                        "422 validation_error",
		`{"from": "a@b.de", "to": "a@b.de", "subject": "s", "text": "t", "tags": [{"name": "a b"}]}`:      "422 validation_error",
		`{"from": "a@b.de", "to": "a@b.de", "subject": "s", "text": "t", "scheduled_at": "tomorrow"}`:     "422 validation_error",
		`{"from": "a@b.de", "to": "a@b.de", "subject": "s", "text": "t", "attachments": [{"path": "x"}]}`: "422 validation_error",
		`{"from": "a@b.de", "to": "a@b.de", "template": {"id": "none"}}`:                                  "404 not_found",
		`[`: "400 validation_error",
	} {
		r := f.emails("/emails", body)
		v := r.object(t)
		require.Equal(t, want, fmt.Sprint(v["statusCode"], " ", v["name"]), "%s: %s", body, r.Body)
		require.EqualValues(t, r.Status, v["statusCode"])
		require.NotEmpty(t, v["message"])
	}
	for want, r := range map[string]*reply{
		"404 not_found":               f.get("/emails/x"),
		"404 not_found ":              f.get("/emails/x/y/z"),
		"405 method_not_allowed":      f.do(http.MethodDelete, "/emails", "", nil),
		"401 missing_api_key":         f.get("/emails", "Authorization", ""),
		"403 invalid_api_key":         f.get("/emails", "Authorization", "Bearer x"),
		"400 invalid_idempotency_key": f.emails("/emails", "{}", "Idempotency-Key", strings.Repeat("x", 300)),
	} {
		v := r.object(t)
		require.Equal(t, strings.TrimSpace(want), fmt.Sprint(v["statusCode"], " ", v["name"]))
		require.Contains(t, r.Header.Get("Content-Type"), "application/json")
	}
}
