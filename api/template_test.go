package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mail"
)

const letter = `{"name": "welcome", "subject": "Hi {{name}}",
	"sender": "Shop <shop@example.com>", "category": "receipt",
	"html": "<p>{% for i in items %}{{ i.title }};{% endfor %}{% if vip %}VIP{% endif %} {{city}}</p>",
	"defaults": {"city": "Wien & Graz"}, "schema": {"properties": {"vip": {"type": "boolean"}}},
	"languages": {"de": {"subject": "Hallo {{name}}"}}, "publish": true}`

// checkTemplates checks the calls about templates.
func (c *contract) checkTemplates() {
	c.Helper()
	const js = "application/json"
	c.check("POST", "/v1/templates", js, letter, 201, "Idempotency-Key", "t")
	c.check("POST", "/v1/templates", js, letter, 201, "Idempotency-Key", "t")
	c.check("POST", "/v1/templates", js, `{"name": "welcome", "subject": "x", "text": "t"}`, 409)
	c.check("POST", "/v1/templates", js, `{"name": "x", "subject": "{{", "languages": {"de": {"x": 1}}}`, 422)
	c.check("POST", "/v1/templates/welcome/versions", js, `{"subject": "x", "text": "t"}`, 201)
	c.check("POST", "/v1/templates/nothing/versions", js, `{"subject": "x", "text": "t"}`, 404)
	c.check("POST", "/v1/templates/welcome/versions", js, `{"subject": "x", "html": "<p>", "allow_raw": true}`, 201)
	c.check("POST", "/v1/templates/welcome/versions", js, `{"subject": "x", "html": "<p {{a}", "allow_raw": true}`, 422)
	c.check("GET", "/v1/templates/welcome?version=3", "", "", 200)
	c.check("POST", "/v1/templates/welcome/publish", js, `{"version": 1}`, 200)
	c.check("POST", "/v1/templates/welcome/publish", js, `{"version": 7}`, 422)
	for _, path := range []string{
		"/v1/templates", "/v1/templates/welcome", "/v1/templates/welcome?version=2", "/v1/templates/welcome/versions?limit=1",
	} {
		c.check("GET", path, "", "", 200)
	}
	c.check("GET", "/v1/templates?cursor=x", "", "", 400)
	c.check("GET", "/v1/templates/welcome?version=x", "", "", 400)
	c.check("GET", "/v1/templates/welcome?version=9", "", "", 404)
	c.check("GET", "/v1/templates/welcome", "", "", 404, "Authorization", "Bearer "+c.foreign)
	c.check("POST", "/v1/preview", js, `{"template": "welcome", "language": "de-AT", "to": {"email": "a@b.de",
		"vars": {"items": [{"title": "x"}]}}}`, 200)
	c.check("POST", "/v1/preview", js, `{"subject": "s", "text": "{{x}}"}`, 200)
	c.check("POST", "/v1/preview", js, `{"subject": "s", "text": "t", "to": {"email": "none"}}`, 422)
	c.check("POST", "/v1/batches", js, `{"template": {"name": "welcome", "version": 1}, "to": [{"email": "a@b.de",
		"vars": {"items": [{"title": "x"}], "vip": true}}]}`, 202)
	id := c.post(`{"template": "welcome", "to": ["a@b.de"]}`).object(c.TB)["id"].(string)
	c.check("GET", "/v1/batches/"+id, "", "", 200)
	c.check("POST", "/v1/templates/welcome/archive", js, ``, 200)
	c.check("POST", "/v1/templates/nothing/archive", js, ``, 404)
}

// template stores and publishes a template.
func (f *fixture) template(body string) {
	f.Helper()
	r := f.do(http.MethodPost, "/v1/templates", "application/json", strings.NewReader(body))
	require.Equal(f, http.StatusCreated, r.Status, "%s", r.Body)
}

// TestBatchFromTemplate: a batch is made from a template, wherever its name is in the
// request. Its recipients have the values of the placeholders, and it names the version.
func TestBatchFromTemplate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	for _, body := range []string{
		`{"template": "welcome", "language": "de-AT", "to": TO}`,
		`{"to": TO, "language": "de", "template": {"version": 1, "name": "welcome"}}`,
	} {
		r := f.post(strings.Replace(body, "TO", `[{"email": "a@b.de", "name": "<Ann>", "vars": {"vip": true, "unused": "x",
			"items": [{"title": "<Tea>"}, {"title": "Cup"}]}}, {"email": "b@b.de", "vars": {"city": "Linz", "vip": false}}]`, 1))
		require.Equal(t, http.StatusAccepted, r.Status, "%s", r.Body)
		id, err := models.ParseID(r.object(t)["id"].(string))
		require.NoError(t, err)
		v := read[mail.BatchView](f, batchPath(id))
		require.Equal(t, &models.TemplateUse{Name: "welcome", Version: 1, Language: "de"}, v.Template)
		require.Equal(t, "receipt", v.Category)
		require.Equal(t, models.Address{Email: "shop@example.com", Name: "Shop"}, v.From)
		b, err := f.store.Batch(t.Context(), id)
		require.NoError(t, err)
		rs, err := f.store.Recipients(t.Context(), id)
		require.NoError(t, err)
		for i, want := range []string{
			"Hallo <Ann>/<p>&lt;Tea&gt;;Cup;VIP Wien &amp; Graz</p>", "Hallo /<p> Linz</p>",
		} {
			require.Equal(t, want,
				rs[i].Fill(b.Content.Subject, nil)+"/"+rs[i].Fill(b.Content.HTML, models.EscapeHTML))
			require.NotContains(t, rs[i].Vars, "unused", "only what the message needs is stored")
		}
	}
}

// TestTemplateMistakes: mistakes in a batch from a template name the field or the recipient.
func TestTemplateMistakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	f.template(
		`{"name": "odd", "subject": "s", "text": "{{need}}\n{{ 1 | divided_by: n }}", "sender": "a@b.de", "publish": true}`,
	)
	f.template(`{"name": "draft", "subject": "s", "text": "t", "sender": "a@b.de"}`)
	for _, c := range [][2]string{
		{`{"template": "nothing", "to": ["a@b.de"]}`, "/template unknown_template"},
		{`{"template": "welcome@2", "to": ["a@b.de", "x"]}`, "/to/1 invalid_address,/template unknown_template"},
		{`{"template": "draft", "to": ["a@b.de"]}`, "/template template_not_published"},
		{`{"template": "welcome", "subject": "s", "html": "x", "to": ["a@b.de"]}`, "/subject conflict,/html conflict"},
		{
			`{"template": "welcome", "to": ["a@b.de", {"email": "b@b.de", "vars": {"vip": 1}}]}`,
			"/to/1/vars/vip schema_mismatch",
		},
		{`{"template": "odd", "to": [{"email": "b@b.de", "vars": {"n": 1}}]}`, "/template unknown_placeholder"},
		{`{"template": "odd", "to": [{"email": "b@b.de", "vars": {"n": 0, "need": 1}}]}`, "/to/0 template_failed"},
		{
			`{"template": {"name": 1, "x": 2}, "to": ["a@b.de"]}`,
			"/template/name wrong_type,/template/x unknown_field,/from required,/subject required,/html required",
		},
		{
			`{"from": "a@b.de", "subject": "s", "text": "t", "to": [{"email": "b@b.de", "vars": {"l": []}}]}`,
			"/to/0/vars/l wrong_type",
		},
		{
			`{"from": "a@b.de", "subject": "s", "text": "{{_slot.h0}}", "to": [` +
				`{"email": "b@b.de", "vars": {"_slot.h0": "<b>"}}]}`,
			"/to/0/vars/_slot.h0 invalid_name",
		},
		{`{"from": "a@b.de", "subject": "s", "text": "{{_slot.h0}}", "to": ["b@b.de"]}`, "/text unknown_placeholder"},
		{`{"from": "a@b.de", "subject": "s", "text": "t", "language": "de", "to": ["b@b.de"]}`, "/language conflict"},
	} {
		body, want := c[0], c[1]
		r := f.post(body)
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, "%s: %s", body, r.Body)
		var got []string
		for _, e := range r.problem(t).Errors {
			got = append(got, e.Pointer+" "+e.Code)
		}
		require.Equal(t, want, strings.Join(got, ","), body)
	}
	require.Empty(t, f.store.writes(), "nothing is stored")
	r := f.post(`{"template": "odd", "to": [{"email": "b@b.de", "vars": {"n": 0, "need": 1}}]}`)
	require.Contains(t, r.problem(t).Errors[0].Detail, "text of the template odd@1, line 2: ")
}

// TestTemplateRetry: a repeat of a request whose first attempt was cut off never mixes the
// versions of two attempts.
func TestTemplateRetry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(`{"name": "a", "subject": "one", "text": "{{ n | plus: 1 }}", "sender": "a@b.de", "publish": true}`)
	const body = `{"template": "a", "to": [{"email": "b@b.de", "vars": {"n": 1}}]}`
	f.store.failing("PutBatch", func(n int) error {
		if n == 1 {
			return models.ErrUnavailable
		}
		return nil
	})
	post := func() *reply {
		return f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body), "Idempotency-Key", "k")
	}
	require.Equal(t, http.StatusServiceUnavailable, post().Status)
	r := f.do(http.MethodPost, "/v1/templates/a/versions", "application/json",
		strings.NewReader(`{"subject": "two", "text": "{{ n | plus: 2 }}", "sender": "a@b.de", "publish": true}`))
	require.Equal(t, http.StatusCreated, r.Status)
	r = post()
	require.Equal(t, http.StatusConflict, r.Status)
	require.Equal(t, "attempt_abandoned", r.problem(t).Code)
	r = post()
	require.Equal(t, http.StatusAccepted, r.Status, "%s", r.Body)
	id, err := models.ParseID(r.object(t)["id"].(string))
	require.NoError(t, err)
	b, err := f.store.Batch(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, "two", b.Content.Subject)
	rs, err := f.store.Recipients(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, "3", rs[0].Fill(b.Content.Text, nil))
	require.Equal(t, r.object(t)["id"], post().object(t)["id"], "a repeat gets the same answer")
}

// TestPreviewIsTheBatch: a preview shows what a batch sends.
func TestPreviewIsTheBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	const to = `{"email": "a@b.de", "name": "Ann", "vars": {"vip": true, "items": [{"title": "&"}]}}`
	r := f.do(
		http.MethodPost,
		"/v1/preview",
		"application/json",
		strings.NewReader(`{"template": "welcome", "to": `+to+`}`),
	)
	require.Equal(t, http.StatusOK, r.Status, "%s", r.Body)
	var p client.Preview
	require.NoError(t, json.Unmarshal(r.Body, &p))
	id, err := models.ParseID(f.post(`{"template": "welcome", "to": [` + to + `]}`).object(t)["id"].(string))
	require.NoError(t, err)
	b, err := f.store.Batch(t.Context(), id)
	require.NoError(t, err)
	rs, err := f.store.Recipients(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, p.Subject, rs[0].Fill(b.Content.Subject, nil))
	require.Equal(t, p.HTML, rs[0].Fill(b.Content.HTML, models.EscapeHTML))
	require.Equal(t, "<p>&amp;;VIP Wien &amp; Graz</p>", p.HTML)
	require.Equal(t, "no_text", p.Warnings[0].Code)
}

// TestThousandFromTemplate: a thousand recipients of a template with Liquid are one chunk, so
// one call to a provider.
func TestThousandFromTemplate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.template(letter)
	var to []string
	for i := range models.MaxChunkRecipients {
		to = append(to, fmt.Sprintf(`{"email": "r%d@b.de", "vars": {"vip": true, "items": [{"title": "%d"}]}}`, i, i))
	}
	_, b, rs := f.accepted(f.post(`{"template": "welcome", "to": [` + strings.Join(to, ",") + `]}`))
	require.Equal(t, 1, b.Chunks)
	require.Len(t, rs, models.MaxChunkRecipients)
	require.Equal(t, "<p>7;VIP Wien &amp; Graz</p>", rs[7].Fill(b.Content.HTML, models.EscapeHTML))
}
