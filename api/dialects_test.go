package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/mailgun"
	"github.com/safedelivr/safedelivr/api/postmark"
	"github.com/safedelivr/safedelivr/api/resend"
	"github.com/safedelivr/safedelivr/api/sendgrid"
)

// TestTemplatesOfDialects: each dialect makes mail from a template, with lists, numbers and values that are not there.
func TestTemplatesOfDialects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) {
		s.cfg.Dialects = []*dialect.Dialect{mailgun.New(), sendgrid.New(), resend.New(), postmark.New()}
	})
	r := f.do(http.MethodPost, "/v1/templates", "application/json",
		strings.NewReader(`{"name": "order", "subject": "Order {{ n }}",
		"html": "<p>{{ who }}{% for i in items %}-{{ i }}{% endfor %}{% for i in none %}!{% endfor %}{{ gone }}</p>"}`))
	require.Equal(t, http.StatusCreated, r.Status, string(r.Body))
	r = f.do(http.MethodPost, "/v1/templates/order/publish", "application/json", strings.NewReader(`{"version": 1}`))
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	const values = `{"n": 7, "who": "A & B", "items": ["x", 2], "none": [], "gone": null}`
	for name, send := range map[string]func() *reply{
		"mailgun": func() *reply {
			return f.multiform("/v3/"+domain+"/messages", "from", "a@b.de", "to", "c@d.de", "template", "order", "t:variables",
				values)
		},
		"sendgrid": func() *reply {
			return f.emails("/v3/mail/send", `{"from": {"email": "a@b.de"}, "template_id": "order", "personalizations": [
				{"to": [{"email": "c@d.de"}], "dynamic_template_data": `+values+`}]}`)
		},
		"resend": func() *reply {
			return f.emails("/emails",
				`{"from": "a@b.de", "to": "c@d.de", "template": {"id": "order", "variables": `+values+`}}`)
		},
		"postmark": func() *reply {
			return f.emails("/email/withTemplate",
				`{"From": "a@b.de", "To": "c@d.de", "TemplateAlias": "order", "TemplateModel": `+
					values+`}`, f.token()...)
		},
	} {
		before, _ := f.batches()
		r := send()
		require.Contains(t, []int{http.StatusOK, http.StatusAccepted}, r.Status, "%s: %s", name, r.Body)
		after, to := f.batches()
		require.Len(t, after, len(before)+1)
		for i := range after {
			subject, _, html := shown(&after[i], &to[i][0])
			require.Equal(t, "Order 7 <p>A &amp; B-x-2</p>", fmt.Sprint(subject, " ", html), name)
		}
	}
}

// TestKeysOfDialects: a key that was used for another request is refused, and a repeat sends nothing again.
func TestKeysOfDialects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) {
		s.cfg.Dialects = []*dialect.Dialect{sendgrid.New(), resend.New(), postmark.New()}
	})
	for path, body := range map[string]string{
		"/v3/mail/send": `{"from": {"email": "a@b.de"}, "subject": "s", "content": [{"type": "text/plain", "value": "t"}],
			"personalizations": [{"to": [{"email": "c@d.de"}]}]}`,
		"/emails": `{"from": "a@b.de", "to": "c@d.de", "subject": "s", "text": "t"}`,
		"/email":  `{"From": "a@b.de", "To": "c@d.de", "Subject": "s", "TextBody": "t"}`,
	} {
		header := append([]string{"Idempotency-Key", strings.Repeat("k", 255)}, f.token()...)
		first, again := f.emails(path, body, header...), f.emails(path, body, header...)
		require.Less(t, first.Status, 300, string(first.Body))
		require.Equal(t, first.Status, again.Status)
		require.Equal(t, string(first.Body), string(again.Body))
		other := f.emails(path, strings.Replace(body, "c@d.de", "e@f.de", 1), header...)
		require.Contains(t, []int{400, 409, 422}, other.Status, string(other.Body))
	}
	bs, _ := f.batches()
	require.Len(t, bs, 3)
}

// TestIgnoredFields: an answer lists the fields of a request that change nothing, and no others.
func TestIgnoredFields(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(s *setup) {
		s.cfg.Dialects = []*dialect.Dialect{mailgun.New(), sendgrid.New(), resend.New(), postmark.New()}
	})
	form := []string{"from", "a@b.de", "to", "c@d.de", "subject", "s", "text", "t", "h:X-A", "b", "v:c", "d", "o:tag", "e"}
	const mail = `"from": "a@b.de", "to": "c@d.de", "subject": "s", "text": "t"`
	for want, r := range map[string]*reply{
		"o:dkim, amp-html": f.multiform("/v3/"+domain+"/messages", append(form, "o:dkim", "yes", "amp-html", "x")...),
		"":                 f.multiform("/v3/"+domain+"/messages", form...),
		"batch_id, ip_pool_name": f.emails("/v3/mail/send", `{"from": {"email": "a@b.de"}, "subject": "s",
			"content": [{"type": "text/plain", "value": "t"}], "batch_id": "1", "ip_pool_name": "p",
			"personalizations": [{"to": [{"email": "c@d.de"}]}]}`),
		"unknown": f.emails("/emails", `{`+mail+`, "unknown": 1}`),
		"InlineCss, X Y": f.emails("/email", `{"From": "a@b.de", "To": "c@d.de", "Subject": "s", "TextBody": "t",
			"InlineCss": true, "X\r\nY": 1}`, f.token()...),
	} {
		require.Less(t, r.Status, 300, "%s: %s", want, r.Body)
		require.Equal(t, want, r.Header.Get(dialect.IgnoredField))
	}
}
