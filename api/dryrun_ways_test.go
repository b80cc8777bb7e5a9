package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// announced returns the number of messages in all queues.
func (f *fixture) announced() (n int) {
	f.Helper()
	depths, err := f.broker.Depths(f.Context())
	require.NoError(f, err)
	for _, d := range depths {
		n += d.Ready
	}
	return n
}

// published is a broker that says when a message was published.
type published struct {
	models.Broker
	done chan struct{}
}

func (p published) Publish(ctx context.Context, ms ...models.Message) error {
	err := p.Broker.Publish(ctx, ms...)
	select {
	case p.done <- struct{}{}:
	default:
	}
	return err
}

// TestDryRunOfEveryWay: a dry run of every request that sends mail answers what would happen. It stores nothing and
// wakes no worker.
func TestDryRunOfEveryWay(t *testing.T) {
	t.Parallel()
	done := make(chan struct{}, 1)
	f := newFixture(t, func(s *setup) { s.broker = func(b models.Broker) models.Broker { return published{b, done} } })
	for i := range f.deps.Providers {
		f.deps.Providers[i].Carries.Attachments, f.deps.Providers[i].Carries.Inline = true, true
		f.deps.Providers[i].Carries.Copies = true
	}
	f.serve(Config{})
	require.Equal(t, http.StatusCreated, f.do(http.MethodPost, "/v1/templates", "application/json", strings.NewReader(
		`{"name": "hi", "subject": "Hi {{name}}", "text": "t", "sender": "shop@example.com", "publish": true}`)).Status)
	require.Equal(t, []string{"old accepted"}, resultWords(f.changed(record("new", "old", "Old", "ann@example.com"))))
	<-done
	require.Equal(t, 1, f.announced())
	before, stored := len(f.store.writes()), f.mails()

	fields := []string{"from", "shop@example.com", "subject", "s", "text", "t"}
	const urlencoded, list = "application/x-www-form-urlencoded", "application/json"
	kind, form := formOf(t, "a.txt", []byte("1"), []byte("2"))
	send := func(method, path, kind, body string) func() *reply {
		return func() *reply { return f.do(method, path+"?dry_run=true", kind, strings.NewReader(body)) }
	}
	post := func(body string) func() *reply { return send(http.MethodPost, "/v1/batches", "application/json", body) }
	records := []string{
		record("new", "a", "s", "ann@example.com"), record("update", "old", "New", "ann@example.com"),
		`{"id": "none", "action": "cancel"}`,
	}
	results := []any{
		map[string]any{"id": "a", "status": "accepted"},
		map[string]any{"id": "old", "status": "updated"},
		map[string]any{"id": "none", "status": "rejected", "code": "not_found"},
	}
	for name, c := range map[string]struct {
		send func() *reply
		puts bool
	}{
		"JSON":        {send: post(batchOf(t, `{}`))},
		"attachment":  {send: post(batchOf(t, `{"attachments": [{"filename": "a", "content": "AA=="}]}`))},
		"cc":          {send: post(batchOf(t, `{"to": ["ann@example.com"], "cc": ["bob@example.com"]}`))},
		"template":    {send: post(`{"template": "hi", "to": [{"email": "ann@example.com", "name": "Ann"}]}`)},
		"form":        {send: send(http.MethodPost, "/v1/batches", urlencoded, "from=a@b.de&to=c@d.de&subject=s&text=t")},
		"multipart":   {send: send(http.MethodPost, "/v1/batches", kind, form.String())},
		"CSV":         {send: func() *reply { return f.form("?dry_run=true", "a.csv", "email\na@b.de\n", fields...) }},
		"NDJSON":      {send: func() *reply { return f.form("?dry_run=true", "a.ndjson", `"a@b.de"`, fields...) }},
		"PUT":         {send: send(http.MethodPut, "/v1/messages", list, "["+strings.Join(records, ",")+"]"), puts: true},
		"PUT, NDJSON": {send: send(http.MethodPut, "/v1/messages", ndjson, strings.Join(records, "\n")), puts: true},
	} {
		r := c.send()
		require.Equal(t, http.StatusOK, r.Status, "%s: %s", name, r.Body)
		v := r.object(t)
		require.Equal(t, true, v["dry_run"], name)
		switch {
		case c.puts:
			var got []any
			for _, one := range v["results"].([]any) {
				o := one.(map[string]any)
				delete(o, "detail")
				delete(o, "pointer")
				delete(o, "log")
				got = append(got, o)
			}
			require.Equal(t, results, got, name)
		default:
			require.NotEmpty(t, v["routes"], name)
			require.NotZero(t, v["recipients"], name)
		}
		require.Len(t, f.store.writes(), before, name)
		require.Equal(t, stored, f.mails(), name)
		require.Equal(t, 1, f.announced(), name)
	}
	_, now := f.present("old")
	require.Equal(t, "Old queued", now)

	strict := f.do(http.MethodPut, "/v1/messages?dry_run=true&mode=strict", ndjson,
		strings.NewReader(strings.Join(records, "\n")))
	require.Equal(t, []string{"a rejected other_rejected", "old rejected other_rejected", "none rejected not_found"},
		resultWords(putResults(t, strict)))
}
