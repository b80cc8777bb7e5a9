package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhy: every command checks its reason alike.
func TestWhy(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	b := f.four()
	f.story(b)
	paths := []string{
		batchPath(b.ID) + "/stop", batchPath(b.ID) + "/resume", batchPath(b.ID) + "/cancel",
		batchPath(b.ID) + "/retry", batchPath(b.ID) + "/release", batchPath(b.ID) + "/release?dry_run=true",
		"/v1/logs/" + b.ID.Log(4).String() + "/release", "/v1/users/bob/pause", "/v1/users/bob/resume",
		"/v1/users/bob/disable", "/v1/users/bob/enable", "/v1/users/bob/end-sessions",
		"/v1/providers/sg/offline", "/v1/providers/sg/online", "/v1/providers/sg/drain", "/v1/providers/sg/probe",
		"/v1/holds/lift", "/v1/parked/x/requeue", "/v1/blocks", "/v1/release", "/v1/erasures",
	}
	for value, want := range map[string]string{
		`null`:                               "/why wrong_type",
		`["x"]`:                              "/why wrong_type",
		`"` + strings.Repeat("ü", 501) + `"`: "/why too_long",
		`"one\ntwo"`:                         "/why invalid_value",
		"\"\xff\"":                           "/why invalid_text",
	} {
		for _, path := range paths {
			members := ""
			switch path {
			case "/v1/erasures":
				members = `"email": "ann@example.com", `
			case "/v1/blocks":
				members = `"domain": "example.com", `
			case "/v1/release":
				members = `"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", `
			}
			p := f.refused(path, "{"+members+`"why": `+value+"}")
			require.Equal(t, []string{want}, p.pointers(), path)
		}
	}
	for _, path := range []string{"/v1/blocks/x", "/v1/parked/x", "/v1/users/bob/keys/x"} {
		p := f.do(http.MethodDelete, path+"?why=one%0Atwo", "", nil).problem(t)
		require.Equal(t, []string{"/why invalid_value"}, p.pointers(), path)
	}
	require.Empty(t, f.commands())
	require.True(t, control(f, batchPath(b.ID)+"/stop", `{"why": "`+strings.Repeat("ü", 500)+`"}`).Changed)
}

// TestCommandBody: the body of a command must be a JSON object.
func TestCommandBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	for _, path := range []string{batchPath(b.ID) + "/stop", "/v1/users/ann/pause", "/v1/release"} {
		for kind, body := range map[string]string{
			"application/x-www-form-urlencoded": "why=x",
			"multipart/form-data; boundary=x":   "--x--",
			"text/plain":                        `{"why": "x"}`,
			"":                                  `{"why": "x"}`,
		} {
			r := f.do(http.MethodPost, path, kind, strings.NewReader(body))
			require.Equal(t, http.StatusUnsupportedMediaType, r.Status, kind)
			require.Equal(t, "wrong_type", r.problem(t).Code)
		}
		r := f.do(http.MethodPost, path, "application/json", strings.NewReader("{}"), "Content-Encoding", "gzip")
		require.Equal(t, "wrong_encoding", r.problem(t).Code)
		for _, body := range []string{`[]`, `["why"]`, `null`, `"why"`, `1`} {
			p := f.refused(path, body)
			require.Equal(t, http.StatusUnprocessableEntity, p.Status, body)
			require.Equal(t, []string{" wrong_type"}, p.pointers(), body)
		}
	}
	require.Empty(t, f.commands())
	r := f.do(http.MethodPost, batchPath(b.ID)+"/stop", "application/json; charset=utf-8", strings.NewReader(" {} "))
	require.Equal(t, http.StatusOK, r.Status)
}

// TestCommandBodies: the body of a command is a JSON object or empty.
func TestCommandBodies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.secret = f.operator().secret
	const js, form = "application/json", "application/x-www-form-urlencoded"
	for name, c := range map[string]struct {
		kind, body string
		status     int
		code       string
		want       []string
	}{
		"form":       {form, "why=x", 415, "wrong_type", nil},
		"form, JSON": {form, `{"why": "x"}`, 415, "wrong_type", nil},
		"no type":    {"", `{"why": "x"}`, 415, "wrong_type", nil},
		"list":       {js, `["x"]`, 422, "invalid_request", []string{" wrong_type"}},
		"string":     {js, `"x"`, 422, "invalid_request", []string{" wrong_type"}},
		"surrogate":  {js, `{"why": "\ud800"}`, 422, "invalid_request", []string{"/why invalid_text"}},
		"not UTF-8":  {js, "{\"why\": \"\xff\"}", 422, "invalid_request", []string{"/why invalid_text"}},
		"cut off":    {js, `{"why": `, 400, "bad_json", nil},
		"empty":      {form, "", 200, "", nil},
		"object":     {js + "; charset=utf-8", `{"why": "x"}`, 200, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := f.with(t).do(http.MethodPost, "/v1/providers/sg/drain", c.kind, strings.NewReader(c.body))
			require.Equal(t, c.status, r.Status, string(r.Body))
			if c.status == 200 {
				return
			}
			p := r.problem(t)
			require.Equal(t, c.code, p.Code)
			require.ElementsMatch(t, c.want, p.pointers())
		})
	}
}

// manyVars returns n members of an object of variables.
func manyVars(n int) string {
	var out []string
	for i := range n {
		out = append(out, `"v`+strings.Repeat("x", i%60)+string(rune('a'+i%26))+string(rune('a'+i/26))+`": 1`)
	}
	return strings.Join(out, ",")
}
