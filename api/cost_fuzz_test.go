//go:build full

package api

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzCost: reading and checking a body costs at most so much processor time for each byte, even if it repeats parts.
// That holds in every way to send, and in forms, files, previews and lists of suppressed addresses. The bounds are some
// four times what the most expensive bytes cost under the race detector.
func FuzzCost(f *testing.F) {
	const json, file = "application/json", "multipart/form-data; boundary=x"
	calls := []struct {
		method, path, kind string
		perByte            time.Duration
	}{
		{"POST", "/v1/batches?dry_run=true", json, 10 * time.Microsecond},
		{"POST", "/v1/batches?dry_run=true", "application/x-www-form-urlencoded", 10 * time.Microsecond},
		{"POST", "/v1/batches?dry_run=true&mode=permissive", file, 10 * time.Microsecond},
		{"PUT", "/v1/messages", json, 10 * time.Microsecond},
		{"PUT", "/v1/messages", ndjson, 10 * time.Microsecond},
		{"POST", "/v1/preview", json, 80 * time.Microsecond},
		{"POST", "/v1/suppressions/import", "text/csv", 30 * time.Microsecond},
	}
	const message = `{"from": "shop@example.com", "subject": "s", "to": ["a@b.de"], `
	field := "--x\r\nContent-Disposition: form-data; name="
	for call, bodies := range [][][3]string{
		{
			{message + `"text": "`, "{", `"}`}, {message + `"text": "`, "{{a}}", `"}`}, {"{", `"a":1,`, `"b":1}`},
			{`{"to": [`, `"a@b.de",`, `"a@b.de"]}`}, {`{"x":`, "[", "]}"},
		},
		{{"to=", `"a",`, ""}, {"text=", "%7B", ""}, {"", "a=1&", ""}},
		{
			{field + "to; filename=a.csv\r\n\r\nemail\n", "a@b.de\n", "\r\n--x--"},
			{field + "to; filename=a.ndjson\r\n\r\n", `{"email":"a@b.de"}` + "\n", "\r\n--x--"},
			{field + "to\r\n\r\n", "\r\n--", "\r\n--x--"}, {"", field + "a\r\n\r\n1\r\n", "--x--"},
		},
		{{"[", `{"id": "m", "action": "cancel"},`, "1]"}, {`[{"id": "m", `, `"a":1,`, `"b":1}]`}},
		{{"", `{"id": "m", "action": "cancel"}` + "\n", ""}, {"", "[", "]"}},
		{
			{`{"subject": "s", "html": "`, "{", `"}`}, {`{"subject": "s", "html": "`, "{{ a | upcase }}", `"}`},
			{`{"subject": "s", "html": "`, "{% if a %}", `"}`},
			{`{"subject": "s", "html": "`, "<a href='http://'>", `"}`},
		},
		{{"email,why\n", "a@b.de,x\n", ""}, {"email\n", `"`, ""}, {"email,", "h,", ""}},
	} {
		for _, b := range bodies {
			f.Add(uint8(call), b[0], b[1], b[2]) //nolint:gosec // there are few calls
		}
	}
	api := newFixture(f)
	f.Fuzz(func(t *testing.T, call uint8, head, unit, tail string) {
		const size = 16 << 10
		if unit == "" {
			return
		}
		body := head + strings.Repeat(unit, max(1, size/len(unit))) + tail
		c := calls[int(call)%len(calls)]
		began := processorTime()
		r := api.with(t).do(c.method, c.path, c.kind, strings.NewReader(body))
		took := processorTime() - began
		require.Less(t, r.Status, 500, "%s", r.Body)
		require.Less(t, took, 100*time.Millisecond+time.Duration(len(body))*c.perByte)
	})
}
