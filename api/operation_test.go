package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
)

// TestOperations: what the table declares is kept by each operation, and nothing happens before a request is right.
func TestOperations(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	names, routes := map[string]bool{}, map[string]bool{}
	for _, o := range service.Operations(f.server.svc) {
		require.False(t, names[o.Name], "%s is declared twice", o.Name)
		require.False(t, routes[o.Route], "%s is declared twice", o.Route)
		names[o.Name], routes[o.Route] = true, true
		require.NotEmpty(t, o.Title, o.Name)
		require.False(t, strings.HasSuffix(o.Title, "."), o.Name)
		require.Equal(t, o.Out == nil, o.Returns == "", "%s: Returns says what the body of the answer is", o.Name)
		if o.Method() != http.MethodGet {
			require.NotEqual(t, models.ScopeRead, o.Scope, "%s changes something", o.Name)
		}
		require.Equal(t, strings.Count(o.Path(), "{"), len(o.Parameters())-queries(&o), "%s: parts of the path", o.Name)
		path := partsOfPath.ReplaceAllString(o.Path(), "x")
		require.Equal(t, http.StatusUnauthorized, f.do(o.Method(), path, "", nil, "Authorization", "").Status, o.Name)
		if o.HasBody() {
			f.checkBodies(&o, path)
		}
	}
	require.Empty(t, f.commands())
}

func queries(o *operation.Operation) (n int) {
	for _, p := range o.Parameters() {
		if p.In == "query" {
			n++
		}
	}
	return n
}

// checkBodies sends bodies with mistakes to an operation.
func (f *fixture) checkBodies(o *operation.Operation, path string) {
	f.Helper()
	type want map[string][]string
	wants := want{`{"nope": 1}`: {"/nope unknown_field"}, `{"a/b~c": 1}`: {"/a~1b~0c unknown_field"}}
	if o.Body() != nil {
		for _, field := range operation.Fields(o.Body()) {
			at := "/" + field.Name
			switch field.Field.Type.Kind() {
			case reflect.Map, reflect.Pointer:
				wants[`{"`+field.Name+`": [1]}`] = []string{at + " wrong_type"}
			default:
				if field.Field.Type != reflect.TypeFor[json.RawMessage]() { // which its function checks
					wants[`{"`+field.Name+`": {"x": {}}}`] = []string{at + " wrong_type"}
				}
			}
			wants[`{"`+field.Name+`": null}`] = []string{at + " wrong_type"}
			wants[`{"`+strings.ToUpper(field.Name)+`": ""}`] = []string{"/" + strings.ToUpper(field.Name) + " unknown_field"}
		}
	}
	for body, pointers := range wants {
		r := f.do(o.Method(), path, "application/json", strings.NewReader(body))
		require.Equal(f, http.StatusUnprocessableEntity, r.Status, "%s %s: %s", o.Name, body, r.Body)
		p := r.problem(f)
		require.Equal(f, pointers, p.pointers(), "%s %s", o.Name, body)
	}
	if o.Body() != nil {
		for _, field := range operation.Fields(o.Body()) {
			if field.Field.Type.Kind() == reflect.String && field.Field.Tag.Get("max") != "" {
				body := `{"` + field.Name + `": "` + strings.Repeat("x", 1<<15) + `"}`
				p := f.do(o.Method(), path, "application/json", strings.NewReader(body)).problem(f)
				require.Contains(f, p.pointers(), "/"+field.Name+" too_long",
					"%s: its function must call operation.Check on the body before it looks anything up", o.Name)
			}
		}
	}
	for body, status := range map[string]int{`{`: 400, `{}{}`: 400, `[]`: 422} {
		r := f.do(o.Method(), path, "application/json", strings.NewReader(body))
		require.Equal(f, status, r.Status, "%s %s: %s", o.Name, body, r.Body)
	}
	require.Equal(f, http.StatusUnsupportedMediaType, f.do(o.Method(), path, "text/csv", strings.NewReader("{}")).Status,
		o.Name)
}
