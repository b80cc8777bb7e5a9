package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/intake"
)

// TestSuggestions: an error about a name that does not exist says which one was probably meant.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for body, want := range map[string]string{
		`{"replyTo": "a@b.de"}`:       "Did you mean reply_to?",
		`{"Tags": ["a"]}`:             "Did you mean tags?",
		`{"subjekt": "a"}`:            "Did you mean subject?",
		`{"nothing_like_it": "a"}`:    "There is no field with this name.",
		`{"providers": ["sendgrid"]}`: "There are mg, sg.",
		`{"providers": ["SG"]}`:       "Did you mean sg?",
	} {
		p := f.post(body).problem(t)
		details := ""
		for _, e := range p.Errors {
			details += e.Detail + "\n"
		}
		require.Contains(t, details, want, body)
	}
	for path, want := range map[string]string{
		"/v1/batch":    "Did you mean /v1/batches?",
		"/v1/batches/": "Did you mean /v1/batches?",
		"/batches":     "Did you mean /v1/batches?",
	} {
		r := f.get(path)
		require.Equal(t, http.StatusNotFound, r.Status)
		require.Contains(t, r.problem(t).Detail, want, path)
	}
	require.Contains(t, f.get("/v1/batches?limits=3").problem(t).Errors[0].Detail, "Did you mean limit?")
	r := f.do(http.MethodPost, "/v1/batches", "application/x-www-form-urlencoded", strings.NewReader(`{"from": "a@b.de"}`))
	require.Equal(t, http.StatusUnsupportedMediaType, r.Status)
	require.Contains(t, r.problem(t).Detail, "Set the header Content-Type: application/json")
}

// TestFieldNames: all fields are suggested.
func TestFieldNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"to", "attachments", "from", "template", "deliver_at", "send_window", "unsubscribe"} {
		require.Contains(t, intake.FieldNames, name)
	}
}
