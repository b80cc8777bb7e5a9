package client_test

import (
	"context"
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

// TestFieldsMatchDescription compares every type with its schema in the description.
func TestFieldsMatchDescription(t *testing.T) {
	schemas := description(t).Components.Schemas
	for name, v := range map[string]any{
		"Accepted":          client.Accepted{},
		"Address":           client.Address{},
		"Batch":             client.Batch{},
		"Counts":            client.Counts{},
		"DryRun":            client.Plan{},
		"FieldError":        client.FieldError{},
		"UpdatePost":        client.Event{},
		"Log":               client.Log{},
		"Moment":            client.Moment{},
		"Problem":           client.Error{},
		"Readiness":         client.Readiness{},
		"ChangeResult":      client.ChangeResult{},
		"Message":           client.Message{},
		"MessageVersion":    client.MessageVersion{},
		"Rejected":          client.Rejected{},
		"Rejection":         client.Rejection{},
		"Reschedule":        client.Reschedule{},
		"SetDefaults":       client.SetDefaults{},
		"NewCheck":          client.NewCheck{},
		"NewReplay":         client.NewReplay{},
		"Wait":              client.Wait{},
		"SuppressionImport": client.SuppressionImport{},
		"TemplateUse":       client.TemplateUse{},
		"Update":            client.Update{},
		"Notice":            client.Notice{},
	} {
		require.Contains(t, schemas, name)
		require.Equal(t, properties(schemas[name].Value), members(reflect.TypeOf(v)), name)
	}
	change := properties(schemas["MessageChange"].Value)
	delete(change, "body") // another name of html
	require.Equal(t, change, members(reflect.TypeFor[client.MessageChange]()))
	batch := properties(schemas["NewBatch"].Value)
	delete(batch, "body")
	require.Equal(t, batch, members(reflect.TypeFor[client.NewBatch]()))
	counts := schemas["CountFields"].Value.Properties["providers"].Value.AdditionalProperties.Schema.Value
	require.Equal(t, properties(counts), members(reflect.TypeFor[client.ProviderCounts]()))
}

// recorder is a server that checks requests against the description and answers with an empty object.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	called map[string]bool // operations
}

// lists has the name under which each operation with pages returns its list.
var lists = map[string]string{
	"listBatches":   "batches",
	"listLogs":      "logs",
	"listRejected":  "rejected",
	"searchLogs":    "logs",
	"listRequests":  "requests",
	"listAudit":     "commands",
	"listParked":    "parked",
	"listUnmatched": "events",
	"listUsers":     "users",
	"listKeys":      "keys",
	"listAccess":    "entries",

	"listProviderSuppressions": "suppressions",

	"listSuppressions": "suppressions",
	"listTemplates":    "templates",
	"templateVersions": "versions",
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
		if name := lists[found.Operation.OperationID]; name != "" {
			answer[name] = []any{}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return rec, client.New(server.URL, "key")
}

// TestEveryOperationHasAMethod calls every method. The requests must be those of the description, without any missing.
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
	source := client.NewTemplateVersion{TemplateSource: client.TemplateSource{
		TemplateContent: client.TemplateContent{Subject: "s", Text: "t"},
		Defaults:        map[string]any{"a": 1},
		Schema:          json.RawMessage(`{}`),
		Languages:       map[string]client.TemplateContent{"de": {Subject: "s"}},
	}}
	require.NoError(t, err(c.CreateTemplate(ctx, client.NewTemplate{Name: "welcome", NewTemplateVersion: source})))
	require.NoError(t, err(c.AddTemplateVersion(ctx, "welcome", source)))
	require.NoError(t, err(c.PublishTemplate(ctx, "welcome", 1)))
	require.NoError(t, err(c.ArchiveTemplate(ctx, "welcome")))
	require.NoError(t, err(c.GetTemplate(ctx, "welcome", 1)))
	require.NoError(t, err(c.Preview(ctx, client.NewPreview{Template: "welcome", To: &batch.To[0]})))
	for _, err := range c.ListTemplates(ctx, client.ListOptions{}) {
		require.NoError(t, err)
	}
	for _, err := range c.TemplateVersions(ctx, "welcome", client.ListOptions{}) {
		require.NoError(t, err)
	}
	hook := client.EndpointSettings{
		URL:     "https://example.com/",
		Events:  []string{"log.failed"},
		Tags:    []string{"a"},
		Batch:   true,
		Rate:    5,
		AtOnce:  2,
		Headers: map[string]string{"Authorization": "x"},

		Signature: client.SignatureEd25519,
	}
	require.NoError(t, err(c.CreateEndpoint(ctx, hook)))
	require.NoError(t, err(c.UpdateEndpoint(ctx, "id", hook)))
	require.NoError(t, err(c.ListEndpoints(ctx)))
	require.NoError(t, err(c.GetEndpoint(ctx, "id")))
	require.NoError(t, err(c.ListEndpointAttempts(ctx, "id")))
	require.NoError(t, err(c.RotateEndpoint(ctx, "id")))
	require.NoError(t, err(c.DisableEndpoint(ctx, "id", "why")))
	require.NoError(t, err(c.EnableEndpoint(ctx, "id")))
	require.NoError(t, err(c.ReplayEndpoint(ctx, "id", client.Replay{From: now})))
	require.NoError(t, err(c.ReplayEndpoint(ctx, "id", client.Replay{Post: "msg_1"})))
	require.NoError(t, err(c.GetEndpointPost(ctx, "id", "msg_1")))
	require.NoError(t, err(c.TestEndpoint(ctx, "id")))
	require.NoError(t, c.RemoveEndpoint(ctx, "id"))
	require.NoError(t, err(c.Batch(ctx, "id")))
	require.NoError(t, err(c.Log(ctx, "id")))
	require.NoError(
		t,
		err(c.Stats(ctx, client.StatsQuery{From: now.AddDate(0, 0, -1), To: now, By: "tag", Name: "march"})),
	)
	require.NoError(t, err(c.GetUsage(ctx)))
	require.NoError(t, err(c.CountUpdates(ctx, client.UpdateOptions{From: now, Events: []string{client.AllTypes}})))
	require.NoError(t, err(c.NoticePage(ctx, client.NoticeOptions{Types: []string{client.FailoverEnded}})))
	require.NoError(
		t,
		err(c.UpdatePage(ctx, client.UpdateOptions{From: now, Tag: "a", State: "failed", Wait: time.Second})),
	)
	limits := client.NewLimits{RequestsPerSecond: new(int64(5)), Why: "why"}
	require.NoError(t, err(c.GetUserLimits(ctx, "ann")))
	require.NoError(t, err(c.SetUserLimits(ctx, "ann", limits)))
	require.NoError(t, err(c.GetKeyLimits(ctx, "ann", "key")))
	require.NoError(t, err(c.SetKeyLimits(ctx, "ann", "key", limits)))
	require.NoError(t, err(c.GetDefaults(ctx, "ann")))
	require.NoError(t, err(c.SetUserDefaults(ctx, "ann", client.SetDefaults{SendWindow: batch.SendWindow, Why: "why"})))
	require.NoError(t, err(c.ListProviders(ctx)))
	require.NoError(t, err(c.ProviderHistory(ctx, client.Week)))
	for _, err := range c.ListProviderSuppressions(ctx, "sg", client.ListOptions{}) {
		require.NoError(t, err)
	}
	for _, list := range []string{"", "bounces"} {
		require.NoError(t, c.ClearProviderSuppression(ctx, "sg", "a+b/c@example.com", list, "why"))
	}
	type aboutBatch = func(context.Context, string, string, ...client.CallOption) (client.BatchControlResult, error)
	for _, command := range []aboutBatch{
		c.StopBatch, c.ResumeBatch, c.CancelBatch, c.TryBatch, c.RetryBatch, c.ReleaseBatch, c.ReleaseLog,
	} {
		require.NoError(t, err(command(ctx, "id", "why", client.IdempotencyKey("k"))))
		require.NoError(t, err(command(ctx, "id", "why", client.DryRun())))
	}
	for _, change := range []client.Reschedule{
		{DeliverAt: now, ExpiresAt: now.Add(time.Hour), SendWindow: client.AnyTime(), Why: "why"},
		{SendWindow: batch.SendWindow},
	} {
		require.NoError(t, err(c.RescheduleBatch(ctx, "id", change, client.IdempotencyKey("k"))))
	}
	for _, command := range []func(context.Context, string, string, ...client.CallOption) (client.ControlResult, error){
		c.PauseUser, c.ResumeUser, c.DisableUser, c.EnableUser, c.EndSessions,
		c.ProviderOffline, c.ProviderOnline, c.ProviderDrain, c.ProviderProbe,
	} {
		require.NoError(t, err(command(ctx, "name with/slash", "")))
	}
	for _, options := range [][]client.CallOption{nil, {client.DryRun()}} {
		require.NoError(t, err(c.ReleaseRange(ctx, client.Release{From: now.Add(-time.Hour), To: now}, options...)))
	}
	require.NoError(t, err(c.ListBlocks(ctx)))
	require.NoError(t, err(c.AddBlock(ctx, client.NewBlock{Domain: "example.com", Fail: true})))
	require.NoError(t, err(c.RemoveBlock(ctx, "id", "why")))
	require.NoError(t, err(c.ListUserKeys(ctx, "name with/slash")))
	require.NoError(t, c.RevokeKey(ctx, "user", "key", "why"))
	for _, err := range c.ListUsers(ctx, client.ListOptions{}) {
		require.NoError(t, err)
	}
	for _, err := range c.ListKeys(ctx, client.ListOptions{}) {
		require.NoError(t, err)
	}
	for _, kind := range []string{"", "login"} {
		for _, err := range c.ListAccess(ctx, kind, client.ListOptions{}) {
			require.NoError(t, err)
		}
	}
	for _, err := range c.ListSuppressions(ctx, "complaint", "news", "ann", client.ListOptions{}, client.Everyone()) {
		require.NoError(t, err)
	}
	require.NoError(t, err(c.AddSuppression(ctx, client.NewSuppression{Email: "a@example.com"}, client.Everyone())))
	require.NoError(t, err(c.GetSuppressions(ctx, "a+b/c@example.com")))
	require.NoError(t, err(c.RemoveSuppressions(ctx, "a@example.com", "complaint", "", "why")))
	require.NoError(t, err(c.ImportSuppressions(ctx, strings.NewReader("email\n"))))
	require.NoError(t, c.ExportSuppressions(ctx, io.Discard))
	require.NoError(t, err(c.ListHolds(ctx)))
	require.NoError(t, err(c.LiftHolds(ctx, "why")))
	require.NoError(t, err(c.EraseAddress(ctx, client.NewErasure{Email: "eve@example.com", Why: "why"})))
	require.NoError(t, err(c.ListQueues(ctx)))
	require.NoError(t, err(c.RequeueParked(ctx, "id", "why")))
	require.NoError(t, err(c.DiscardParked(ctx, "id", "")))
	require.NoError(t, err(c.ListWorkers(ctx)))
	require.NoError(t, err(c.GetWaiting(ctx)))
	_, ends := c.RunCheck(ctx, client.NewCheck{Since: now, User: "u", Repair: true}, func(*client.Step[client.Check]) {})
	require.ErrorContains(t, ends, "the answer has no end")
	_, ends = c.RunReplay(ctx, client.NewReplay{Since: now, Until: now}, func(*client.Step[client.Replayed]) {})
	require.ErrorContains(t, ends, "the answer has no end")
	require.NoError(t, err(c.GetUser(ctx, "name with/slash")))
	require.NoError(t, err(c.AddUser(ctx, "shop")))
	require.NoError(t, err(c.CreateKey(ctx, "shop", client.NewKey{Name: "web", Scopes: []string{"send"}, Expires: now})))
	require.NoError(t, err(c.GetSenders(ctx, "shop")))
	require.NoError(t, err(c.SetSenders(ctx, "shop", client.SetSenders{Senders: []string{"@example.com"}, Why: "why"})))
	require.NoError(t, err(c.GetCheck(ctx)))
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
	for _, err := range c.SearchLogs(ctx, client.FindOptions{LogOptions: properties, Email: "a@example.com", Part: "a", Tag: "t",
		From: now, To: now.Add(1), Everyone: true}) {
		require.NoError(t, err)
	}
	for _, err := range c.ListRequests(ctx, "key", client.ListOptions{}) {
		require.NoError(t, err)
	}
	for _, err := range c.FindBatches(ctx, client.BatchOptions{State: "done", Subject: "s", Sender: "a", Tag: "t", User: "u",
		From: now, To: now.Add(1), Everyone: true, Recipients: properties}) {
		require.NoError(t, err)
	}
	for _, err := range c.ListAudit(ctx, client.ListOptions{}) {
		require.NoError(t, err)
	}
	for _, err := range c.ListParked(ctx, client.ListOptions{}) {
		require.NoError(t, err)
	}
	for _, err := range c.ListUnmatched(ctx, client.ListOptions{}) {
		require.NoError(t, err)
	}
	require.NoError(t, err(c.GetUnmatched(ctx, "id")))
	var all []string
	for _, item := range description(t).Paths.Map() {
		for _, op := range item.Operations() {
			all = append(all, op.OperationID)
		}
	}
	slices.Sort(all)
	require.Equal(t, all, slices.Sorted(maps.Keys(rec.called)))
}
