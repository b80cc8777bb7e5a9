package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An error in JSON says where it is and what people usually do wrong there, in batches as in commands.
func TestJSONMistakesAreExplained(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for body, want := range map[string]struct {
		at   int64
		text string
	}{
		`{'from': 'a@example.com'}`:               {1, `JSON needs double quotes (")`},
		`{"from": 'a@example.com'}`:               {9, `JSON needs double quotes (")`},
		`{"from": "a@example.com",}`:              {25, "Remove the comma before it."},
		`{"to": ["b@example.com",]}`:              {24, "Remove the comma before it."},
		`{from: "a@example.com"}`:                 {1, `Put the name in double quotes (").`},
		`{"from": a@example.com}`:                 {9, `Put text in double quotes (")`},
		`{"from: "a@example.com"}`:                {9, `or a double quote (").`},
		`{"from": "a@example.com" "text": ""}`:    {25, "A comma is missing before it"},
		"{\"from\": \"a@example.com\n,\"to\":[]}": {23, `A double quote (") is missing before it`},
		`{"from": "a@example.com"`:                {24, "the JSON ends unexpectedly."},
	} {
		for _, path := range []string{"/v1/batches", "/v1/endpoints"} {
			r := f.do(http.MethodPost, path, "application/json", strings.NewReader(body))
			require.Equal(t, http.StatusBadRequest, r.Status, "%s: %s", body, r.Body)
			p := r.problem(t)
			require.Equal(t, "bad_json", p.Code, body)
			require.Contains(t, p.Detail, want.text, body)
			require.NotNil(t, p.Position, body)
			require.Equal(t, want.at, *p.Position, "%s: %s", path, body)
		}
	}
}
