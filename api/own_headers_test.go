package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service"
)

// wrong posts a batch that is refused for some mistakes.
func (f *fixture) wrong(body string, want ...string) {
	f.Helper()
	r := f.post(body)
	require.Equal(f, http.StatusUnprocessableEntity, r.Status, string(r.Body))
	p := r.problem(f)
	require.ElementsMatch(f, want, p.pointers())
}

// TestOwnHeaders: recipients may have header fields in place of those of the batch, in every request that may have
// variables of recipients.
func TestOwnHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	svc := f.serve(Config{})
	order := []models.Header{{Name: "X-Order", Value: "№ {{order}}"}}
	ann := `{"email": "ann@example.com", "vars": {"order": 1}, "headers": {"X-Order": "№ {{order}}"}}`
	bob := `{"email": "bob@example.com", "headers": null}`
	a, b, rs := f.accepted(f.post(batchOf(t, `{"headers": {"x-order": "none"}, "to": [`+ann+`, `+bob+`]}`)))
	require.Equal(t, [][]models.Header{order, nil}, [][]models.Header{rs[0].Headers, rs[1].Headers})
	require.Equal(t, models.SameNames, b.OwnHeaders)
	for log, want := range map[models.ID]string{a.ID.Log(1): "№ 1", a.ID.Log(2): "none"} {
		mail, err := svc.Mail.Mail(t.Context(), service.Caller{User: f.user}, log.String())
		require.NoError(t, err)
		require.Equal(t, []models.Header{{Name: "x-order", Value: want}}, mail.Headers)
	}
	_, b, _ = f.accepted(f.post(batchOf(t, `{"to": [`+ann+`, `+bob+`]}`)))
	require.Equal(t, models.DifferentNames, b.OwnHeaders)
	_, b, rs = f.accepted(f.form("", "a.ndjson", ann+"\n"+strings.ReplaceAll(ann, "ann", "bob"),
		"from", "shop@example.com", "subject", "s", "text", "t"))
	require.Equal(t, [][]models.Header{order, order}, [][]models.Header{rs[0].Headers, rs[1].Headers})
	require.Equal(t, models.SameNames, b.OwnHeaders)

	f.wrong(batchOf(t, `{"to": [
		{"email": "a@b.de", "headers": {"From": "x", "X-A": "a\nb", "X-B": "{{b", "X-C": 1, "x-b": "", "X-Long": "`+
		strings.Repeat("x", 999)+`"}},
		{"email": "b@b.de", "headers": []}, {"email": "c@b.de", "headers": {}, "headers": {}}]}`),
		"/to/0/headers/From reserved_header", "/to/0/headers/X-A invalid_header", "/to/0/headers/X-B unknown_placeholder",
		"/to/0/headers/X-C wrong_type", "/to/0/headers/x-b repeated", "/to/0/headers/X-Long too_long",
		"/to/1/headers wrong_type", "/to/2/headers repeated")
	f.wrong(batchOf(t, `{"to": [{"email": "a@b.de", "vars": {"long": "`+strings.Repeat("x", 999)+`"},
		"headers": {"X-A": "{{none}}", "X-B": "{{unsubscribe_url}}", "X-C": "{{long}}"}}]}`),
		"/to/0/headers/X-A unknown_placeholder", "/to/0/headers/X-B unknown_placeholder", "/to/0 too_long")
}

// TestMessageIDs: the Message-ID of a mail is that of the sender, and logs and updates show it.
func TestMessageIDs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	svc := f.serve(Config{})
	refs := strings.Repeat("<a@example.com> ", 100) + "<last@example.com>"
	a, b, _ := f.accepted(f.post(batchOf(t,
		`{"headers": {"message-id": "order-{{n}}@example.com", "References": "`+refs+`"},
		"to": [{"email": "ann@example.com", "vars": {"n": 1}},
			{"email": "bob@example.com", "vars": {"n": 2}, "headers": {"Message-ID": " <own@example.com> "}}]}`)))
	require.LessOrEqual(t, len(b.Content.Headers[1].Value), 998)
	require.True(t, strings.HasSuffix(b.Content.Headers[1].Value, "<last@example.com>"))
	describer := feed.NewDescriber(f.store)
	for log, want := range map[models.ID]string{a.ID.Log(1): "<order-1@example.com>", a.ID.Log(2): "<own@example.com>"} {
		got := f.get("/v1/logs/" + log.String()).object(t)
		require.Equal(t, want, got["rfc_message_id"])
		mail, err := svc.Mail.Mail(t.Context(), service.Caller{User: f.user}, log.String())
		require.NoError(t, err)
		require.Equal(t, want, mail.Headers[0].Value)
		described, err := describer.Describe(t.Context(), f.user, []feed.Update{{Log: log}})
		require.NoError(t, err)
		require.Equal(t, want, described[0].RFCMessageID)
	}
	_, _, _ = f.accepted(f.post(batchOf(t,
		`{"headers": {"Message-ID": "<{{id}}>"}, "to": [{"email": "a@b.de", "vars": {"id": "1@x"}}]}`)))
	for _, id := range []string{"", "a", "a@", "@b", "<a b@c>", "a@b>, <c@d", "<<a@b>>", "ä@b", "a@b\\u0000"} {
		f.wrong(batchOf(t, `{"headers": {"Message-ID": "`+id+`"}}`), "/headers/Message-ID invalid_header")
	}
}

// TestOwnHeadersOfMessages: records share a batch if their header fields have the same names.
func TestOwnHeadersOfMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rs := f.changed(
		record("new", "a", "Hi", "ann@example.com", `, "headers": {"X-A": "1", "X-B": "{{name}}"}`),
		record("new", "b", "Hi", "bob@example.com", `, "headers": {"x-b": "2", "X-A": "2"}`),
		record("new", "c", "Hi", "eve@example.com", `, "headers": {"X-A": "3"}`),
		record("new", "d", "Hi", "lou@example.com", `, "headers": {"X-A": "{{none}}"}`),
		record("new", "e", "Hi", "max@example.com", `, "headers": 1`),
	)
	require.Equal(t, rs[0].Log.Batch(), rs[1].Log.Batch())
	require.NotEqual(t, rs[0].Log.Batch(), rs[2].Log.Batch())
	require.Equal(t, []string{"/headers/X-A unknown_placeholder", "/headers wrong_type"},
		[]string{rs[3].Pointer + " " + rs[3].Code, rs[4].Pointer + " " + rs[4].Code})
	b, err := f.store.Store.Batch(t.Context(), rs[0].Log.Batch())
	require.NoError(t, err)
	require.Equal(t, models.SameNames, b.OwnHeaders)
}

// TestOwnHeadersNotCarried: a provider that cannot carry the header fields of the recipients is no option, and the dry
// run and the log say so. If none can, the batch is refused.
func TestOwnHeadersNotCarried(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.deps.Providers[0].Carries.HeaderNames = false
	f.serve(Config{})
	to := `{"to": ["bob@example.com", {"email": "ann@example.com", "headers": {"X-A": "1"}}]}`
	why := "the mails to all recipients have header fields of the same names there"
	v := f.plan(to)
	require.Equal(t, []string{why, ""}, []string{v.Routes[0].Providers[0].Refused, v.Routes[0].Providers[1].Refused})
	a, _, _ := f.accepted(f.post(batchOf(t, to)))
	require.Equal(t, []any{map[string]any{
		"provider": "sg", "text": "the whole message, because it cannot carry it: " + why,
	}}, f.get("/v1/logs/" + a.ID.Log(1).String()).object(t)["left_out"])
	f.wrong(batchOf(t, `{"providers": ["sg"], `+to[1:]), "/to no_provider")
}
