package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// TestQueryParameters: each route takes exactly the parameters that are described, once.
func TestQueryParameters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.secret = f.operator().secret
	doc, err := openapi3.NewLoader().LoadFromData(f.get("/v1/openapi.yaml").Body)
	require.NoError(t, err)
	described := map[string][]string{}
	for path, item := range doc.Paths.Map() {
		if !strings.HasPrefix(path, "/v1/") || path == "/v1/openapi.yaml" {
			continue
		}
		for method, op := range item.Operations() {
			route := method + " " + strings.NewReplacer("{", ":", "}", "").Replace(path)
			for _, p := range op.Parameters {
				if p.Value.In == openapi3.ParameterInQuery {
					described[route] = append(described[route], p.Value.Name)
				}
			}
			require.NotNil(t, op.Responses.Value("400"), route)
			here := strings.NewReplacer("{id}", "x", "{key}", "x").Replace(path)
			r := f.do(method, here+"?colour=1&colour=2", "", nil)
			require.Equal(t, http.StatusBadRequest, r.Status, "%s: %s", route, r.Body)
			p := r.problem(t)
			require.Equal(t, "invalid_query", p.Code)
			require.Equal(t, []string{"/colour unknown_field"}, p.pointers())
			require.Contains(t, p.Errors[0].Detail, `"colour"`)
			for _, name := range described[route] {
				p := f.do(method, here+"?"+name+"=1&"+name+"=2", "", nil).problem(t)
				require.Equal(t, []string{"/" + name + " repeated"}, p.pointers())
			}
		}
	}
	known := map[string][]string{}
	for route, names := range f.server.parameters {
		known[route] = slices.Sorted(slices.Values(names))
	}
	for _, names := range described {
		slices.Sort(names)
	}
	require.Equal(t, described, known)
	for _, bad := range []string{"%zz", "limit=1;cursor=", "limit=%"} {
		require.Equal(t, "invalid_query", f.get("/v1/batches?"+bad).problem(t).Code, bad)
	}
}

// TestEmptyQueryValues: a parameter without a value is a mistake, as any other bad value is, at every route.
func TestEmptyQueryValues(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	for route, names := range f.server.parameters {
		method, path, _ := strings.Cut(route, " ")
		for _, name := range names {
			for _, query := range []string{name + "=", name} {
				r := f.do(method, path+"?"+query, "", nil)
				require.Equal(t, http.StatusBadRequest, r.Status, "%s?%s", route, query)
				p := r.problem(t)
				require.Equal(t, "invalid_query", p.Code)
				require.Equal(t, []string{"/" + name + " invalid_value"}, p.pointers(), "%s?%s", route, query)
			}
		}
	}
}
