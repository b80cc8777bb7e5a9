package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// generator makes requests from the description of the API. Some are valid and some are
// not.
type generator struct {
	*rand.Rand
	ids map[string]string // of things that exist, by the part of the path before the ID
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// often are fields that a request needs unless it names a template.
var often = []string{"from", "subject", "html"}

// oddTexts are of no use anywhere, or nearly.
var oddTexts = []string{
	"", " ", "x", "0", "-1", "null", "true", "..", "../..", "a b", "a/b",
	"%00", "\x00", "\r\nX: y", "é", "\u202e", "😀",
	"{{", "{{x}}", "'; --", "9999999999999999999999", "1e400", "2026-13-45", strings.Repeat("y", 70_000),
}

// usual has values that fields of a name may have.
var usual = map[string][]string{
	"from": {"a@one.example", "Ann <a@one.example>"}, "to": {"x@two.example", "y@two.example"},
	"cc": {"x@two.example", "Ann <ann@example.com>"}, "bcc": {"y@two.example"},
	"email": {"x@two.example", "ann@example.com"}, "reply_to": {"a@one.example"},
	"subject": {"s", "Hello {{name}}"}, "text": {"t"}, "html": {"<p>t</p>"}, "body": {"t"},
	"expires_at": {"2099-01-01T00:00:00Z"},
	"deliver_at": {"2099-01-01T00:00", "2099-01-01T00:00:00Z", time.Now().AddDate(0, 0, 2).Format(time.RFC3339)},
	"url":        {"http://127.0.0.1:1/"}, "events": {"log.failed"}, "categories": {"receipt"},
	"time_zone": {"Europe/Vienna", "UTC"}, "from_time": {"09:00"}, "weekdays": {"monday", "sunday"},
	"providers": {"sg", "mg"}, "provider": {"sg"}, "senders": {"@example.com"}, "sender": {"a@one.example"},
	"tags": {"welcome", "v2"}, "template": {"none"}, "name": {"welcome", "Ann"}, "language": {"de"},
	"category": {"receipt"},
	"domain":   {"two.example"}, "user": {"bob"}, "cursor": {""}, "post": {"msg_0"}, "wait": {"0s", "1ms"},
}

// text returns a string that the schema of a field describes, most of the time.
func (g *generator) text(name string, s *openapi3.Schema) string {
	switch {
	case g.chance(3):
		return pick(g, oddTexts...)
	case len(s.Enum) > 0:
		return fmt.Sprint(pick(g, s.Enum...))
	}
	switch s.Format {
	case "date-time":
		return pick(g, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00+02:00", "2099-01-01T00:00:00Z")
	case "date":
		return pick(g, "2026-01-01", "2026-11-30")
	case "uuid":
		return pick(g, slices.Sorted(maps.Values(g.ids))...)
	}
	if values := usual[name]; len(values) > 0 {
		return pick(g, values...)
	}
	return pick(g, "ann@example.com", "sg", "bob", "why", "name")
}

// value returns a value that the schema of a field describes, most of the time.
func (g *generator) value(name string, ref *openapi3.SchemaRef, depth int) any {
	if ref == nil || ref.Value == nil || depth > 6 {
		return pick[any](g, nil, true, 1, "x")
	}
	s := ref.Value
	if g.chance(2) {
		return pick[any](g, nil, true, -1, 1.5, 1e300, pick(g, oddTexts...),
			[]any{}, []any{nil}, map[string]any{}, map[string]any{"a": nil})
	}
	for _, alternatives := range [][]*openapi3.SchemaRef{s.OneOf, s.AnyOf} {
		if len(alternatives) > 0 {
			return g.value(name, pick(g, alternatives...), depth+1)
		}
	}
	if s.Const != nil {
		return s.Const
	}
	switch {
	case s.Type.Includes("object") || len(s.Properties) > 0 || len(s.AllOf) > 0:
		return g.object(s, depth)
	case s.Type.Includes("array"):
		list := []any{}
		for range 1 + g.IntN(3) - g.IntN(20)/19 {
			list = append(list, g.value(name, s.Items, depth+1))
		}
		return list
	case s.Type.Includes("boolean"):
		return g.chance(50)
	case s.Type.Includes("integer"), s.Type.Includes("number"):
		return pick[any](g, 0, 1, 2, 100, 1000000)
	}
	return g.text(name, s)
}

func (g *generator) object(s *openapi3.Schema, depth int) map[string]any {
	out := map[string]any{}
	for _, part := range s.AllOf {
		if m, ok := g.value("", part, depth+1).(map[string]any); ok {
			maps.Copy(out, m)
		}
	}
	some := min(25, 400/max(1, len(s.Properties))) // of many optional fields, four
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		required := slices.Contains(s.Required, name) || slices.Contains(often, name)
		if required && g.chance(97) || !required && g.chance(some) {
			out[name] = g.value(name, s.Properties[name], depth+1)
		}
	}
	if more := s.AdditionalProperties.Schema; more != nil && g.chance(50) {
		out[pick(g, "name", "first_name", "x", "ünï")] = g.value("", more, depth+1)
	}
	if g.chance(4) {
		out[pick(g, "colour", "To", "", "a/b~c")] = 1
	}
	return out
}

// body returns a request body and its type.
func (g *generator) body(op *openapi3.Operation) (kind, body string) {
	if op.RequestBody == nil || g.chance(4) {
		return pick(g, "", "application/json"), pick(g, "", "", "{}", "x")
	}
	content := op.RequestBody.Value.Content
	kind = pick(g, slices.Sorted(maps.Keys(content))...)
	if content["application/json"] == nil {
		return pick(g, kind, kind, "text/plain"), pick(g, "email\na@b.example\n", "email\nx\n", "a,b\n", "", "email\n\"")
	}
	if g.chance(60) {
		kind = "application/json"
	}
	if kind == ndjson {
		return kind, g.lines(content["application/json"].Schema.Value.Items)
	}
	v := g.value("", content[kind].Schema, 0)
	if kind == "application/json" {
		raw, err := json.Marshal(v)
		switch {
		case err != nil:
			return kind, "{}"
		case g.chance(3): // cut off, or followed by something
			return kind, string(raw[:g.IntN(len(raw)+1)])
		case g.chance(3):
			return kind, string(raw) + pick(g, "{}", " ", "\x00", "x")
		}
		return pick(g, kind, kind, kind, kind, kind, kind+"; charset=utf-8", "text/plain"), string(raw)
	}
	fields, _ := v.(map[string]any)
	if kind == "multipart/form-data" {
		return g.parts(fields)
	}
	form := url.Values{}
	for name, field := range fields {
		form.Add(name, fmt.Sprint(field))
	}
	return kind, form.Encode()
}

// lines returns values that a schema describes, most of the time, each in a line.
func (g *generator) lines(ref *openapi3.SchemaRef) string {
	var b strings.Builder
	for range 1 + g.IntN(4) {
		raw, err := json.Marshal(g.value("", ref, 0))
		if err != nil || g.chance(3) {
			raw = []byte(pick(g, "", "{", "x", "{}{}", "[]", "\x00"))
		}
		b.Write(raw)
		b.WriteString(pick(g, "\n", "\n", "\n", "\r\n", "\n\n", " \n"))
	}
	return b.String()
}

// tables are files of recipients.
var tables = map[string][]string{
	"text/csv": {
		"email\nx@two.example\n", "E-Mail;Name\nx@two.example;Ann\n", "\ufeffemail\tcity\nx@two.example\tWien\n",
		"email,email\nx@two.example,y@two.example\n", "name\nAnn\n", "email\n\"x", "email,a\nx@two.example\n", "",
	},
	ndjson: {
		`{"email":"x@two.example","vars":{"a":1}}` + "\n", `"x@two.example"`, "{}\n", "{\n", `{"email":1}`, "",
	},
}

// parts returns fields as a multipart form, often with a file of recipients and attachments. It may be cut off.
func (g *generator) parts(fields map[string]any) (kind, body string) {
	var b strings.Builder
	w := multipart.NewWriter(&b)
	part := func(name, file, kind, text string) {
		h := textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf(`form-data; name=%q; filename=%q`, name, file)}}
		if kind != "" {
			h.Set("Content-Type", kind)
		}
		if p, err := w.CreatePart(h); err == nil {
			_, _ = io.WriteString(p, text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch {
		case name == "attachments":
			file, kind := pick(g, "a.txt", "", "../a", "b.png"), pick(g, "text/plain", "image/png", "", "x")
			part(name, file, kind, pick(g, "", "x", "\x00"))
		case name == "to" && g.chance(60):
			table := pick(g, "text/csv", ndjson)
			part(name, pick(g, "to.csv", "to.ndjson", "to", ""), pick(g, table, table, table, ""), pick(g, tables[table]...))
		default:
			_ = w.WriteField(name, fmt.Sprint(fields[name]))
		}
	}
	if !g.chance(3) {
		_ = w.Close()
	}
	return w.FormDataContentType(), b.String()
}

// target returns a path with its parameters, and a query.
func (g *generator) target(path string, op *openapi3.Operation) string {
	query := url.Values{}
	for _, ref := range op.Parameters {
		p := ref.Value
		switch {
		case p.In == "path":
			before, _, _ := strings.Cut(path, "/{"+p.Name+"}")
			id := g.ids[before[strings.LastIndexByte(before, '/')+1:]]
			switch {
			case g.chance(10):
				id = pick(g, slices.Sorted(maps.Values(g.ids))...)
			case g.chance(10):
				id = pick(g, oddTexts[1:]...)
			}
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(id[:min(len(id), 500)]))
		case p.In == "query" && g.chance(50):
			v := fmt.Sprint(g.value(p.Name, p.Schema, 0))
			query.Add(p.Name, v[:min(len(v), 500)])
			if g.chance(4) {
				query.Add(p.Name, "again")
			}
		}
	}
	if g.chance(3) {
		query.Add("colour", "1")
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// ids makes one of each thing that a path may name, and returns their IDs by the part of the path before.
func (f *fixture) ids() map[string]string {
	f.Helper()
	keys, err := f.store.Keys(f.Context(), f.other)
	require.NoError(f, err)
	require.NoError(f, f.broker.Purge(f.Context()))
	b := f.four()
	f.story(b)
	f.changed(record("new", "m", "s", "ann@example.com"))
	ids := map[string]string{
		"batches": b.ID.String(), "logs": b.ID.Log(3).String(), "messages": "m", "users": "bob", "keys": keys[0].ID,
		"providers": "sg", "parked": f.park().ID, "unmatched": f.unmatched(nil, "u@x.example")[0].String(),
	}
	for _, c := range kept {
		noun := strings.TrimPrefix(c.set, "POST /v1/")
		if strings.ContainsAny(noun, " /?") {
			continue
		}
		if strings.HasSuffix(c.get, "/ID") { // a user may have only a few
			for _, old := range read[map[string][]struct{ ID string }](f, "/v1/"+noun)[noun] {
				f.do(http.MethodDelete, "/v1/"+noun+"/"+old.ID, "", nil)
			}
		}
		body, r, id := c.make(f)
		require.Contains(f, []int{200, 201, 409}, r.Status, "%s: %s", body, r.Body) // 409: a former one is there
		if ids[noun] = path.Base(c.get); ids[noun] == "ID" || ids[noun] == noun {
			ids[noun] = id
		}
	}
	ids["endpoints"], ids["posts"] = f.endpoint(`{"url": "http://127.0.0.1:1/"}`).ID, "msg_0" // it gets all updates
	f.posted(ids["endpoints"], 1)
	return ids
}

// TestGeneratedRequests sends generated requests to each operation. No request may cause a
// server error, get an answer that is not described, or be accepted although the
// description refuses it.
func TestGeneratedRequests(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	require.NoError(t, err)
	router, err := legacy.NewRouter(doc)
	require.NoError(t, err)
	f := newFixture(t).operator()
	var work Config
	work.Work.Check = func(context.Context, client.NewCheck, func(*client.Step[client.Check])) (client.Check, error) {
		return client.Check{}, nil
	}
	work.Work.Replay = func(context.Context, client.NewReplay,
		func(*client.Step[client.Replayed])) (client.Replayed, error) {
		return client.Replayed{}, nil
	}
	f.serve(work)
	// requests to an operation; to that with the most fields
	each, ofBatches := testkit.Mails(4, 40), testkit.Mails(40, 250)
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		for method, op := range doc.Paths.Map()[path].Operations() {
			ids := f.ids()
			accepted, tries := 0, each
			if op.OperationID == "createBatch" {
				tries = ofBatches
			}
			for seed := 0; seed < tries || accepted == 0 && seed < 40; seed++ {
				if op.OperationID == "rescheduleBatch" { // a batch takes few commands in a minute
					ids["batches"] = f.scheduled(time.Now().AddDate(0, 0, 1)).String()
				}
				g := &generator{rand.New(rand.NewPCG(uint64(seed), uint64(len(op.OperationID)))), ids} //nolint:gosec // a test
				if f.try(g, router, method, path, op) < 300 {
					accepted++
				}
			}
			require.Positive(t, accepted, "%s %s: no generated request was accepted", method, path)
		}
	}
}

// someRejected matches answers that tell of rejected parts.
var someRejected = regexp.MustCompile(`"rejected":(\{"count":)?[1-9]|"status":"rejected"`)

// try sends a generated request, checks the answer and returns its status.
func (f *fixture) try(g *generator, router routers.Router, method, path string, op *openapi3.Operation) int {
	f.Helper()
	target := g.target(path, op)
	kind, body := g.body(op)
	var header []string
	if g.chance(20) {
		header = append(header, "Idempotency-Key", pick(g, "k1", "k2", "k3", "two words", strings.Repeat("k", 256)))
	}
	if g.chance(3) {
		header = append(header, "Authorization", pick(g, "Bearer x", "Basic eDp5", "Bearer "+f.foreign))
	}
	said := fmt.Sprintf("%s %s %s %.300s", method, target, kind, body)
	r := f.do(method, target, kind, strings.NewReader(body), header...)
	require.Less(f, r.Status, 500, "%s: %s", said, r.Body)
	if op.Responses.Status(r.Status) == nil {
		require.Contains(f, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, r.Status, "%s: %s", said, r.Body)
		require.NotEmpty(f, r.problem(f).Code, said)
		return r.Status // the path is not that of the operation
	}
	req, err := http.NewRequestWithContext(f.Context(), method, target, strings.NewReader(body))
	require.NoError(f, err)
	req.Header.Set("Content-Type", kind)
	route, params, err := router.FindRoute(req)
	require.NoError(f, err, said)
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true,
			AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
		}}
	// The description does not cover the content of files, nor omitted fields.
	files := strings.HasPrefix(kind, "multipart/")
	if r.Status < 300 && body != "" && !files && !someRejected.Match(r.Body) {
		require.NoError(f, openapi3filter.ValidateRequest(f.Context(), in), "accepted, but not described: %s", said)
	}
	require.NoError(f, openapi3filter.ValidateResponse(f.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: r.Status, Header: r.Header,
		Body: io.NopCloser(bytes.NewReader(r.Body)), Options: in.Options,
	}), "%s: %d %s", said, r.Status, r.Body)
	return r.Status
}
