package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// takingWhy returns the operations of the API that take a reason, in the body and in the query. The parameters of their
// paths are those of ids, by the part of the path before.
func takingWhy(t *testing.T, ids map[string]string) (inBody, inQuery []string) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	require.NoError(t, err)
	for path, item := range doc.Paths.Map() {
		parts := strings.Split(path, "/")
		for i, part := range parts {
			if strings.HasPrefix(part, "{") {
				require.Contains(t, ids, parts[i-1], path)
				parts[i] = ids[parts[i-1]]
			}
		}
		for method, op := range item.Operations() {
			call := method + " " + strings.Join(parts, "/")
			if op.Parameters.GetByInAndName("query", "why") != nil {
				inQuery = append(inQuery, call+"?")
			}
			if op.RequestBody == nil || op.RequestBody.Value.Content["application/json"] == nil ||
				!hasProperty(op.RequestBody.Value.Content["application/json"].Schema.Value, "why") {
				continue
			}
			inBody = append(inBody, call)
			if op.Parameters.GetByInAndName("query", "dry_run") != nil {
				inBody = append(inBody, call+"?dry_run=true")
			}
		}
	}
	return inBody, inQuery
}

// hasProperty reports whether an object that a schema describes may have a property.
func hasProperty(s *openapi3.Schema, name string) bool {
	_, has := s.Properties[name]
	return has || slices.ContainsFunc(s.AllOf, func(r *openapi3.SchemaRef) bool { return hasProperty(r.Value, name) })
}

// TestWhy: every command checks its reason alike.
func TestWhy(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	ids := f.ids()
	inBody, inQuery := takingWhy(t, ids)
	require.Greater(t, len(inBody), 30)
	require.Greater(t, len(inQuery), 4)
	before := len(f.commands())
	refuses := func(call, body, want string) {
		t.Helper()
		method, path, _ := strings.Cut(call, " ")
		p := f.do(method, path, "application/json", strings.NewReader(body)).problem(t)
		require.Contains(t, p.pointers(), want, call)
	}
	for value, want := range map[string]string{
		`null`:                               "/why wrong_type",
		`["x"]`:                              "/why wrong_type",
		`"` + strings.Repeat("ü", 501) + `"`: "/why too_long",
		`"one\ntwo"`:                         "/why invalid_value",
		"\"\xff\"":                           "/why invalid_text",
	} {
		for _, call := range inBody {
			refuses(call, `{"why": `+value+"}", want)
		}
	}
	for value, want := range map[string]string{
		strings.Repeat("%C3%BC", 501): "/why too_long",
		"one%0Atwo":                   "/why invalid_value",
		"%FF":                         "/why invalid_text",
	} {
		for _, call := range inQuery {
			refuses(call+"why="+value, "", want)
		}
	}
	require.Len(t, f.commands(), before)
	require.True(t, control(f, "/v1/batches/"+ids["batches"]+"/stop", `{"why": "`+strings.Repeat("ü", 500)+`"}`).Changed)
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
