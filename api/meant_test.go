package api

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service"
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
	operator := newFixture(t).operator()
	for _, wrong := range []struct{ method, path, contentType, body, want string }{
		{"PUT", "/v1/messages", "application/json", `[{"id": "1", "acton": "new", "to": "a@b.de"}]`, "Did you mean action?"},
		{"PUT", "/v1/messages", "application/json", `[{"id": "1", "to": "a@b.de", "Metadata": {}}]`, "Did you mean metadata?"},
		{"POST", "/v1/batches", "multipart/form-data; boundary=b",
			"--b\r\nContent-Disposition: form-data; name=colums\r\n\r\n{}\r\n--b--\r\n", "Did you mean columns?"},
		{"POST", "/v1/batches", "multipart/form-data; boundary=b",
			"--b\r\nContent-Disposition: form-data; name=columns\r\n\r\n{\"Frist\": \"first\"}\r\n" +
				"--b\r\nContent-Disposition: form-data; name=to; filename=to.csv\r\n\r\nemail,First\r\na@b.de,Ann\r\n--b--\r\n",
			"Did you mean First?"},
		{"POST", "/v1/suppressions", "application/json", `{"emial": "a@b.de"}`, "Did you mean email?"},
		{"POST", "/v1/release", "application/json", `{"provider": "SG"}`, "Did you mean sg?"},
		{"POST", "/v1/blocks", "application/json", `{"provider": "sendgrid"}`, "There are mg, sg."},
		{"PUT", "/v1/users/u/limits", "application/json", `{"batch_per_day": 1}`, "Did you mean batches_per_day?"},
	} {
		r := operator.do(wrong.method, wrong.path, wrong.contentType, strings.NewReader(wrong.body))
		require.Contains(t, string(r.Body), wrong.want, wrong.body)
	}
	for path, want := range map[string]string{
		"/v1/batch":    "Did you mean /v1/batches?",
		"/v1/batches/": "Did you mean /v1/batches?",
		"/batches":     "Did you mean /v1/batches?",

		"/v1/batches/x/log":               "Did you mean /v1/batches/{id}/logs?",
		"/v1/batch/x/stop":                "Did you mean /v1/batches/{id}/stop?",
		"/batches/x/logs/":                "Did you mean /v1/batches/{id}/logs?",
		"/v1/v1/batches":                  "Did you mean /v1/batches?",
		"/v1/update/counts":               "Did you mean /v1/updates/counts?",
		"/v1/suppression/ann@example.com": "Did you mean /v1/suppressions/{email}?",
	} {
		r := f.get(path)
		require.Equal(t, http.StatusNotFound, r.Status)
		require.Contains(t, r.problem(t).Detail, want, path)
	}
	require.Contains(t, f.get("/v1/batches?limits=3").problem(t).Errors[0].Detail, "Did you mean limit?")
}

// TestJSONOfOtherType: an error about the type of a body that looks like JSON says which type to send, at every path
// that takes JSON.
func TestJSONOfOtherType(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	routes := []string{"POST /v1/batches", "PUT /v1/messages", "PATCH /v1/batches/x", "PUT /v1/users/x/defaults"}
	for _, o := range service.Operations(f.server.svc) {
		if o.HasBody() {
			routes = append(routes, o.Method()+" "+o.Path())
		}
	}
	require.Greater(t, len(routes), 40)
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		for _, contentType := range []string{"", "application/x-www-form-urlencoded", "text/plain;charset=UTF-8"} {
			for _, body := range []string{`[{"from": "a@b.de"}]`, "\n\n  [{}]", "\ufeff[{}]", "\ufeff \r\n\t["} {
				r := f.do(method, path, contentType, strings.NewReader(body))
				require.Equal(t, http.StatusUnsupportedMediaType, r.Status, "%s %q", route, body)
				p := r.problem(t)
				require.Equal(t, "wrong_type", p.Code)
				require.Equal(t, "The body looks like JSON. Set the header Content-Type: application/json.", p.Detail,
					"%s %q %q", route, contentType, body)
			}
		}
	}
	r := f.do(http.MethodPut, "/v1/messages", "", strings.NewReader(" {}\n{}\n"))
	require.Contains(t, r.problem(t).Detail, "Set the header Content-Type: application/x-ndjson.")
	for _, body := range []string{"", "from=a", " \n", "\ufeff", strings.Repeat(" ", 1<<20) + "{}"} {
		r := f.do(http.MethodPost, "/v1/batches", "", strings.NewReader(body))
		require.Contains(t, r.problem(t).Detail, "The Content-Type must be application/json, ")
	}
}

// TestTypeDoesNotWait: the error about the type of a body does not wait for one that never comes, or never begins.
func TestTypeDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, inBubble)
		for _, begin := range []string{"", " "} {
			body, sent := io.Pipe()
			go func() { _, _ = io.WriteString(sent, begin) }()
			began := time.Now()
			r := f.do(http.MethodPost, "/v1/batches", "text/plain", body)
			require.Equal(t, http.StatusUnsupportedMediaType, r.Status)
			require.LessOrEqual(t, time.Since(began), jsonWait)
			require.NoError(t, sent.Close())
		}
	})
}

// TestFieldNames: all fields are suggested.
func TestFieldNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"to", "attachments", "from", "template", "deliver_at", "send_window", "unsubscribe"} {
		require.Contains(t, intake.FieldNames, name)
	}
}
