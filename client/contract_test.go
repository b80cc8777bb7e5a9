package client_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

func description(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../api/openapi.yaml")
	require.NoError(t, err)
	return doc
}

// properties returns the names of a schema's members, with those of the schemas that it is composed of.
func properties(s *openapi3.Schema) map[string]bool {
	out := map[string]bool{}
	for name := range s.Properties {
		out[name] = true
	}
	for _, part := range s.AllOf {
		maps.Copy(out, properties(part.Value))
	}
	return out
}

// members returns the JSON names of the fields of a struct.
func members(of reflect.Type) map[string]bool {
	out := map[string]bool{}
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(out, members(f.Type))
		case name != "" && name != "-":
			out[name] = true
		}
	}
	return out
}

// TestFieldsMatchDescription compares the requests that the description has from the decoders of the server.
func TestFieldsMatchDescription(t *testing.T) {
	t.Parallel()
	schemas := description(t).Components.Schemas
	for name, v := range map[string]any{
		"MessageChange":   client.MessageChange{},
		"NewBatch":        client.NewBatch{},
		"RecipientFields": client.Recipient{},
	} {
		want := properties(schemas[name].Value)
		delete(want, "body") // another name of html
		require.Equal(t, want, members(reflect.TypeOf(v)), name)
	}
}

// recorder is a server that checks requests against the description and answers with an empty object.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	called map[string]bool // operations
}

// listIn returns the member of an operation's answer that has the items of a list with pages; "": there is none.
func listIn(o *openapi3.Operation) string {
	if o.Parameters.GetByInAndName("query", "cursor") == nil {
		return ""
	}
	for name, p := range o.Responses.Value("200").Value.Content["application/json"].Schema.Value.Properties {
		if p.Value.Type.Is("array") {
			return name
		}
	}
	return ""
}

func init() {
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", openapi3filter.FileBodyDecoder)
}

func newRecorder(t *testing.T) (*recorder, *client.Client) {
	t.Helper()
	doc := description(t)
	router, err := legacy.NewRouter(doc)
	require.NoError(t, err)
	rec := &recorder{t: t, called: map[string]bool{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		target, _ := url.Parse(r.URL.RequestURI())
		r.URL = target
		found, params, err := router.FindRoute(r)
		if err != nil {
			rec.t.Errorf("%s %s: %v", r.Method, r.URL, err)
			return
		}
		in := &openapi3filter.RequestValidationInput{
			Request:    r,
			PathParams: params,
			Route:      found,
			Options:    &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		}
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			rec.t.Errorf("%s %s with %s: %v", r.Method, r.URL, body, err)
		}
		rec.mu.Lock()
		rec.called[found.Operation.OperationID] = true
		rec.mu.Unlock()
		answer := map[string]any{"next_cursor": "", "status": "ready"}
		if name := listIn(found.Operation); name != "" {
			answer[name] = []any{}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return rec, client.New(server.URL, "key")
}

// example returns a value of a schema, with all its members or only those that are required.
func example(s *openapi3.Schema, all bool) any {
	switch {
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.OneOf) > 0:
		return example(s.OneOf[0].Value, all)
	case len(s.AnyOf) > 0:
		return example(s.AnyOf[0].Value, all)
	case s.Type.Is("array"):
		return []any{example(s.Items.Value, all)}
	case s.Type.Is("boolean"):
		return true
	case s.Type.Is("integer"), s.Type.Is("number"):
		return 2
	case s.Format == "date":
		return "2026-01-31"
	case s.Format == "date-time":
		return "2099-01-02T03:04:05Z"
	case s.Type.Is("string"):
		return "x"
	}
	out := map[string]any{}
	for name, p := range s.Properties {
		if all || slices.Contains(s.Required, name) || p.Value.Type.Is("array") { // no list of a request is null
			out[name] = example(p.Value, all)
		}
	}
	if more := s.AdditionalProperties.Schema; more != nil {
		out["x"] = example(more.Value, all)
	}
	return out
}

// arguments returns values for the arguments of a generated method but the context and the options: the parts of the
// path and of the query, and the body or its only field. Without all, those that a request may leave out are zero. It
// returns false if the method has other arguments.
func arguments(t *testing.T, o *openapi3.Operation, method reflect.Type, all bool) (out []reflect.Value, ok bool) {
	t.Helper()
	var values []any
	for _, p := range o.Parameters {
		switch s := p.Value.Schema.Value; {
		case p.Value.In == "header", p.Value.Name == "cursor", p.Value.Name == "limit", s.Type.Is("boolean"):
		case !all && !p.Value.Required:
			values = append(values, nil)
		case len(s.Enum) == 0 && s.Format == "" && s.Type.Is("string"):
			values = append(values, p.Value.Name+" with/slash")
		default:
			values = append(values, example(s, all))
		}
	}
	if o.RequestBody != nil && o.RequestBody.Value.Content["application/json"] != nil {
		body := o.RequestBody.Value.Content["application/json"].Schema.Value
		switch object, _ := example(body, all).(map[string]any); len(body.Properties) {
		case 0:
		case 1:
			values = append(values, object[slices.Collect(maps.Keys(body.Properties))[0]])
		default:
			values = append(values, object)
		}
	}
	for i := 1; i < method.NumIn()-1; i++ {
		v := reflect.New(method.In(i))
		if method.In(i) != reflect.TypeFor[client.ListOptions]() {
			if len(values) == 0 {
				return nil, false
			}
			raw, err := json.Marshal(values[0])
			require.NoError(t, err)
			values = values[1:]
			if json.Unmarshal(raw, v.Interface()) != nil {
				return nil, false
			}
		}
		out = append(out, v.Elem())
	}
	return out, len(values) == 0
}

// callGenerated calls the method of an operation with all arguments, with few, and with each option that it takes.
func callGenerated(t *testing.T, c *client.Client, o *openapi3.Operation) {
	t.Helper()
	name := strings.ToUpper(o.OperationID[:1]) + o.OperationID[1:]
	method := reflect.ValueOf(c).MethodByName(name)
	require.True(t, method.IsValid(), "there is no method %s", name)
	call := func(all bool, options ...client.CallOption) {
		in, ok := arguments(t, o, method.Type(), all)
		require.True(t, ok, "%s has other arguments than the operation", name)
		in = append(append([]reflect.Value{reflect.ValueOf(t.Context())}, in...), reflect.ValueOf(options))
		results := method.CallSlice(in)
		last := results[len(results)-1]
		if last.Kind() != reflect.Func {
			require.Nil(t, last.Interface(), name)
			return
		}
		for _, err := range last.Seq2() {
			require.Nil(t, err.Interface(), name)
		}
	}
	call(true)
	call(false)
	for parameter, option := range map[string]client.CallOption{
		"Idempotency-Key": client.IdempotencyKey("k"),
		"dry_run":         client.DryRun(),
		"everyone":        client.Everyone(),
		"installation":    client.OfInstallation(),
	} {
		if slices.ContainsFunc(o.Parameters, func(p *openapi3.ParameterRef) bool { return p.Value.Name == parameter }) {
			call(true, option)
		}
	}
}

func (rec *recorder) wasCalled(o *openapi3.Operation) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.called[o.OperationID]
}

// TestEveryOperationHasAMethod calls every method, those that are not generated first. The requests must be those of
// the description, without any missing.
func TestEveryOperationHasAMethod(t *testing.T) {
	rec, c := newRecorder(t)
	ctx := t.Context()
	now := time.Now()
	err := func(_ any, err error) error { return err }
	batch := client.NewBatch{
		From:    "a@example.com",
		Subject: "s",
		Text:    "t",
		To: []client.Recipient{
			{Email: "b@example.com", Name: "B", Vars: map[string]any{"n": 1, "x": "y", "z": true}},
			{
				Email:      "e@example.com",
				DeliverAt:  now,
				TimeZone:   "UTC",
				SendWindow: client.AnyTime(),
				ExpiresAt:  now.Add(time.Hour),
			},
		},
		CC:        []string{"C <c@example.com>"},
		BCC:       []string{"d@example.com"},
		Providers: []string{"sg"},
		Lane:      client.Urgent,
		OnUnknown: client.Resend,
		DeliverAt: now.Add(time.Hour),
		SendWindow: &client.SendWindow{
			From:     "09:00",
			To:       "17:00",
			Weekdays: []string{"monday"},
			TimeZone: "Europe/Vienna",
			Strict:   true,
		},
		ExpiresAt: now.Add(24 * time.Hour),
	}
	require.NoError(t, err(c.CreateBatch(ctx, batch, client.IdempotencyKey("k"))))
	require.NoError(t, err(c.PlanBatch(ctx, batch, client.Permissive())))
	require.NoError(t, err(c.PutMessages(ctx, slices.Values([]client.MessageChange{{ID: "a"}}), client.Strict())))
	require.NoError(t, err(c.PutMessages(ctx, slices.Values([]client.MessageChange{{ID: "a"}}), client.DryRun())))
	require.NoError(t, err(c.Message(ctx, "a/b c")))
	for _, err := range c.Rejected(ctx, "id", client.ListOptions{}) {
		require.NoError(t, err)
	}
	require.NoError(t, c.ExportRejected(ctx, "id", io.Discard))
	require.NoError(t, err(c.Preview(ctx, client.NewPreview{Template: "welcome", To: &batch.To[0]})))
	require.NoError(t, err(c.Batch(ctx, "id")))
	require.NoError(t, err(c.Log(ctx, "id")))
	require.NoError(t, err(c.CountUpdates(ctx, client.UpdateOptions{From: now, Events: []string{client.AllTypes}})))
	require.NoError(t, err(c.NoticePage(ctx, client.NoticeOptions{Types: []string{client.FailoverEnded}})))
	require.NoError(
		t,
		err(c.UpdatePage(ctx, client.UpdateOptions{From: now, Tag: "a", State: "failed", Wait: time.Second})),
	)
	require.NoError(t, err(c.SetUserDefaults(ctx, "ann", client.SetDefaults{SendWindow: batch.SendWindow, Why: "why"})))
	for _, change := range []client.Reschedule{
		{DeliverAt: now, ExpiresAt: now.Add(time.Hour), SendWindow: client.AnyTime(), Why: "why"},
		{SendWindow: batch.SendWindow},
	} {
		require.NoError(t, err(c.RescheduleBatch(ctx, "id", change, client.IdempotencyKey("k"))))
	}
	require.NoError(t, err(c.ImportSuppressions(ctx, strings.NewReader("email\n"))))
	require.NoError(t, c.ExportSuppressions(ctx, io.Discard))
	_, ends := c.RunCheck(ctx, client.NewCheck{Since: now, User: "u", Repair: true}, func(*client.Step[client.Check]) {})
	require.ErrorContains(t, ends, "the answer has no end")
	_, ends = c.RunReplay(ctx, client.NewReplay{Since: now, Until: now}, func(*client.Step[client.Replayed]) {})
	require.ErrorContains(t, ends, "the answer has no end")
	require.NoError(t, err(c.OpenAPI(ctx)))
	require.NoError(t, c.Health(ctx))
	require.NoError(t, err(c.Readiness(ctx)))
	for _, err := range c.Batches(ctx, client.ListOptions{PageSize: 10}) {
		require.NoError(t, err)
	}
	for _, err := range c.Logs(ctx, "id", client.LogOptions{State: client.Failed}) {
		require.NoError(t, err)
	}
	properties := client.LogOptions{State: client.Failed, Reason: "expired", Provider: "sg", Result: "failed",
		Rerouted: true, PossibleDuplicate: true, Doubled: true}
	now = time.Now()
	for _, err := range c.SearchLogs(ctx, client.FindOptions{LogOptions: properties, Email: "a@example.com", Part: "a",
		Tag:  "t",
		From: now, To: now.Add(1), Everyone: true}) {
		require.NoError(t, err)
	}
	for _, err := range c.FindBatches(ctx, client.BatchOptions{State: "done", Subject: "s", Sender: "a", Tag: "t",
		User: "u",
		From: now, To: now.Add(1), Everyone: true, Recipients: properties}) {
		require.NoError(t, err)
	}
	for _, item := range description(t).Paths.Map() {
		for _, op := range item.Operations() {
			if !rec.wasCalled(op) {
				callGenerated(t, c, op)
				require.True(t, rec.wasCalled(op), op.OperationID)
			}
		}
	}
}
