package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAllow: the answer to a method that a path does not have names those that it has, for any parameters.
func TestAllow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fits := func(route, path string) bool {
		want, have := strings.Split(route, "/"), strings.Split(path, "/")
		if len(want) != len(have) {
			return false
		}
		for i := range want {
			if want[i] != have[i] && !strings.HasPrefix(want[i], ":") {
				return false
			}
		}
		return true
	}
	routes := f.server.engine.Routes()
	for _, r := range routes {
		for _, value := range []string{"x", "import", "batches"} {
			path := r.Path
			for part := range strings.SplitSeq(r.Path, "/") {
				if strings.HasPrefix(part, ":") {
					path = strings.Replace(path, part, value, 1)
				}
			}
			var methods []string
			for _, other := range routes {
				if fits(other.Path, path) && !slices.Contains(methods, other.Method) {
					methods = append(methods, other.Method)
				}
			}
			for _, method := range []string{"TRACE", "PATCH", "DELETE", "PUT", "POST", "GET", "HEAD", "OPTIONS"} {
				if slices.Contains(methods, method) {
					continue
				}
				got := f.do(method, path, "", nil)
				require.Equal(t, http.StatusMethodNotAllowed, got.Status, "%s %s", method, path)
				require.ElementsMatch(t, methods, strings.Split(got.Header.Get("Allow"), ", "), "%s %s", method, path)
			}
		}
	}
}
