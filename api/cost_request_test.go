//go:build full

package api

import (
	"cmp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// requests returns the work of a request whose body has size n.
func (f *fixture) requests(call, kind string, body func(n int) string) func(n int) (work func()) {
	method, path, _ := strings.Cut(call, " ")
	return func(n int) func() {
		body := body(n)
		return func() {
			r := f.do(method, path, kind, strings.NewReader(body))
			require.Less(f, r.Status, 500, "%s", r.Body)
		}
	}
}

// quoted returns a text as JSON.
func quoted(s string) string { return strconv.Quote(s) }

// TestCostOfPreviews: as TestCostIsLinear, for previews, with Liquid.
func TestCostOfPreviews(t *testing.T) {
	f := newFixture(t)
	x := strings.Repeat
	source := func(html, more string) string {
		return `{"subject": "s", "html": ` + quoted(html) + more + "}"
	}
	for name, c := range map[string]struct {
		n    int
		body func(n int) string
	}{
		"placeholders": {5_000, func(n int) string { return source(each(n, "{{a%d}}"), "") }},
		"braces":       {50_000, func(n int) string { return source(x("{", n), "") }},
		"values": {5_000, func(n int) string {
			return source("{{a}}", `, "to": {"email": "a@b.de", "vars": {`+each(n, `"v%d":1`)+"}}")
		}},
		"defaults": {5_000, func(n int) string {
			return source("{{a}}", `, "defaults": {`+each(n, `"v%d":1`)+"}")
		}},
		"links":       {2_000, func(n int) string { return source(x(`<a href="http://">`, n), "") }},
		"tags":        {20_000, func(n int) string { return source(x("<", n), "") }},
		"outputs":     {300, func(n int) string { return source(x("{{ a | upcase }}", n), "") }},
		"blocks":      {300, func(n int) string { return source(x("{% if a %}b{% endif %}", n), "") }},
		"open blocks": {2_000, func(n int) string { return source(x("{% if a %}", n), "") }},
		"raw":         {700, func(n int) string { return source(x("{% raw %}{{{% endraw %}", n), "") }},
		"loops": {1_000, func(n int) string {
			return source("{% for i in list %}{{ i }}{% endfor %}", `, "defaults": {"list": [`+each(n, "%d")+"]}")
		}},
		"languages": {500, func(n int) string {
			return source("h", `, "languages": {`+each(n, `"x%d": {"text": "t"}`)+"}")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			requireLinear(t, c.n, f.with(t).requests("POST /v1/preview", "application/json", c.body))
		})
	}
}

// TestCostOfMessages: as TestCostIsLinear, for records.
func TestCostOfMessages(t *testing.T) {
	f := newFixture(t)
	const put = "PUT /v1/messages"
	x := strings.Repeat
	for name, c := range map[string]struct {
		n    int
		kind string
		body func(n int) string
	}{
		"records of no use": {1_000, "", func(n int) string {
			return "[" + each(n, `{"id": "m%d", "action": "new"}`) + "]"
		}},
		"cancelled records": {1_000, ndjson, func(n int) string {
			return strings.NewReplacer(",", "\n", ";", ",").Replace(each(n, `{"id": "m%d"; "action": "cancel"}`))
		}},
		"equal records": {1_000, "", func(n int) string {
			return "[" + x(`{"id": "m", "action": "cancel"},`, n) + `{"id": "m", "action": "cancel"}]`
		}},
		"members of a record": {2_000, "", func(n int) string {
			return `[{"id": "m",` + each(n, `"m%d":1`) + "}]"
		}},
		"nested record": {2_000, "", func(n int) string { return "[" + x("[", n) + x("]", n) + "]" }},
	} {
		t.Run(name, func(t *testing.T) {
			requireLinear(t, c.n, f.with(t).requests(put, cmp.Or(c.kind, "application/json"), c.body))
		})
	}
}

// TestCostOfFiles: as TestCostIsLinear, for multipart forms, files of recipients in them, and lists of suppressed
// addresses.
func TestCostOfFiles(t *testing.T) {
	f := newFixture(t)
	const tried, imported = "POST /v1/batches?dry_run=true&mode=permissive", "POST /v1/suppressions/import"
	x, lines := strings.Repeat, func(n int, format string) string {
		return strings.ReplaceAll(each(n, format), ",", "\n") + "\n"
	}
	part := func(name, value string) string {
		return "--x\r\nContent-Disposition: form-data; name=" + name + "\r\n\r\n" + value + "\r\n"
	}
	content := part("from", "shop@example.com") + part("subject", "s") + part("text", "t")
	file := func(name, value string) string { return content + part("to; filename="+name, value) + "--x--\r\n" }
	parts := func(n int, format string) string {
		return content + strings.ReplaceAll(each(n, format), ",", "") + "--x--\r\n"
	}
	const multi = "multipart/form-data; boundary=x"
	for name, c := range map[string]struct {
		n          int
		call, kind string
		body       func(n int) string
	}{
		"parts":      {2_000, tried, multi, func(n int) string { return parts(n, part("m%d", "1")) }},
		"recipients": {2_000, tried, multi, func(n int) string { return parts(n, part("to", "a%d@example.com")) }},
		"boundaries": {8_000, tried, multi, func(n int) string {
			return content + part("to", x("\r\n--", n)) + "--x--\r\n"
		}},
		"headers": {2_000, tried, multi, func(n int) string {
			return "--x\r\n" + lines(n, "A%d: b\r") + "\r\nx--x--\r\n"
		}},
		"attachments": {500, tried, multi, func(n int) string {
			return parts(n, part("attachments; filename=a%d", "x"))
		}},
		"columns": {1_000, tried, multi, func(n int) string {
			return content + part("columns", "{"+each(n, `"h%d":"v%[1]d"`)+"}") + part("to; filename=a.csv", "email\na@b.de") +
				"--x--\r\n"
		}},
		"table": {4_000, tried, multi, func(n int) string {
			return file("a.csv", "email\n"+lines(n, "a%d@example.com"))
		}},
		"bad rows": {1_500, tried, multi, func(n int) string {
			return file("a.csv", "email\n"+lines(n, "a%d"))
		}},
		"headings": {8_000, tried, multi, func(n int) string { return file("a.csv", "email,"+each(n, "h%d")) }},
		"cells": {8_000, tried, multi, func(n int) string {
			return file("a.csv", "email\na@b.de"+x(",", n))
		}},
		"quotes": {20_000, tried, multi, func(n int) string { return file("a.csv", "email\n"+x(`"`, n)) }},
		"objects": {1_500, tried, multi, func(n int) string {
			return file("a.ndjson", lines(n, `{"email":"a%d@b.de"}`))
		}},
		"no objects":    {4_000, tried, multi, func(n int) string { return file("a.ndjson", lines(n, "%d")) }},
		"nested object": {2_000, tried, multi, func(n int) string { return file("a.ndjson", x("[", n)+x("]", n)) }},
		"suppressions": {400, imported, "text/csv", func(n int) string {
			return "email\n" + lines(n, "a%d@b.de")
		}},
		"no addresses": {4_000, imported, "text/csv", func(n int) string { return "email\n" + lines(n, "a%d") }},
		"many columns": {5_000, imported, "text/csv", func(n int) string { return "email," + each(n, "h%d") }},
		"empty cells":  {8_000, imported, "text/csv", func(n int) string { return "email\na@b.de" + x(",", n) }},
		"open quote":   {20_000, imported, "text/csv", func(n int) string { return "email\n\"" + x(`""`, n) }},
		"formulas": {10_000, imported, "text/csv", func(n int) string {
			return "email,why\na@b.de," + x("'=", n)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			requireLinear(t, c.n, f.with(t).requests(c.call, c.kind, c.body))
		})
	}
}
