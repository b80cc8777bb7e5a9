package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// contract checks requests and answers against the description of the API.
type contract struct {
	*fixture
	router routers.Router
	doc    *openapi3.T
	seen   map[string]bool // "operation status"
}

// check sends a request and checks its status, the request and the answer.
func (c *contract) check(method, path, contentType, body string, status int, header ...string) *reply {
	c.Helper()
	r := c.do(method, path, contentType, strings.NewReader(body), header...)
	assert.Equal(c, status, r.Status, "%s %s: %s", method, path, r.Body)
	req, err := http.NewRequestWithContext(c.Context(), method, path, strings.NewReader(body))
	require.NoError(c, err)
	req.Header.Set("Content-Type", contentType)
	route, params, err := c.router.FindRoute(req)
	require.NoError(c, err, path)
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true,
			MultiError:            true,
			AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
		}}
	if status < 300 {
		err := openapi3filter.ValidateRequest(c.Context(), in)
		assert.NoError(c, err, "%s %s: the request is not as described", method, path)
	}
	err = openapi3filter.ValidateResponse(
		c.Context(),
		&openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: r.Status, Header: r.Header,
			Body: io.NopCloser(bytes.NewReader(r.Body)), Options: in.Options},
	)
	assert.NoError(c, err, "%s %s %d: %s", method, path, status, r.Body)
	c.seen[route.Operation.OperationID+" "+http.StatusText(status)] = true
	return r
}

// checkDamaged lists damaged batches.
func (c *contract) checkDamaged(b *models.Batch) {
	c.Helper()
	c.store.setDamaged(true)
	defer c.store.setDamaged(false)
	c.check("GET", "/v1/batches", "", "", 200)
	list := read[batchList](c.fixture, "/v1/batches").Batches
	i := slices.IndexFunc(list, func(v mail.BatchView) bool { return v.ID == b.ID })
	require.GreaterOrEqual(c, i, 0)
	require.Equal(c, models.BatchDamaged, list[i].State)
	require.EqualValues(c, b.Recipients, list[i].Counts.Accepted, "the counts are known")
	c.check(
		"POST",
		"/v1/release",
		"application/json",
		`{"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}`,
		200,
	)
}

func init() { openapi3filter.RegisterBodyDecoder(ndjson, openapi3filter.FileBodyDecoder) }

// checkMessages changes messages by ids.
func (c *contract) checkMessages() {
	c.Helper()
	const js = "application/json"
	one := record("new", "a/b", "s", "ann@example.com", `, "vars": {"n": 1}, "metadata": {"k": "v"}, "tags": ["x"]`)
	for _, query := range []string{"", "?mode=strict"} {
		c.check("PUT", "/v1/messages"+query, js, "["+one+`, {"id": "x", "action": "cancel"}]`, 200)
	}
	c.check("PUT", "/v1/messages", ndjson, one+"\n"+one, 200)
	c.check("PUT", "/v1/messages", js, `{}`, 422)
	c.check("PUT", "/v1/messages", js, `[`, 400)
	c.check("PUT", "/v1/messages", "text/csv", "id", 415)
	c.check("PUT", "/v1/messages", js, "["+strings.Repeat("7,", maxRecords)+"7]", 413)
	c.check("GET", "/v1/messages/a%2Fb", "", "", 200)
	c.check("GET", "/v1/messages/none", "", "", 404)
}

// checkControl gives all commands.
func (c *contract) checkControl(b *models.Batch) {
	c.Helper()
	const js = "application/json"
	own := c.secret
	c.secret = c.operator().secret
	defer func() { c.secret = own }()
	batch := batchPath(b.ID)
	c.checkTimes()
	c.check("PATCH", batch, js, `{"expires_at": "2099-01-01T00:00:00Z"}`, 422)
	for _, verb := range []string{"stop", "resume", "try", "retry", "release", "cancel"} {
		c.check("POST", batch+"/"+verb, js, `{"why": "a test"}`, 200, "Idempotency-Key", "k")
	}
	c.check("POST", batch+"/resume", js, `{}`, 409)
	for range 11 {
		_ = c.do("POST", batch+"/stop?dry_run=true", "", nil)
	}
	c.check("POST", batch+"/stop?dry_run=true", js, `{}`, 429)
	other := c.four()
	c.story(other)
	c.check("POST", "/v1/logs/"+other.ID.Log(3).String()+"/release?dry_run=true", js, `{}`, 200)
	c.check("POST", "/v1/logs/"+other.ID.Log(3).String()+"/release", js, `{}`, 200)
	c.check("POST", batchPath(other.ID)+"/retry?dry_run=true", js, `{}`, 200)
	c.check("POST", "/v1/logs/"+other.ID.Log(1).String()+"/release", js, `{}`, 409)
	c.check(
		"POST",
		"/v1/release",
		js,
		`{"provider": "sg", "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}`,
		200,
	)
	c.check("POST", "/v1/release", js, `{}`, 422)
	keys, err := c.store.Keys(c.Context(), c.other)
	require.NoError(c, err)
	for _, path := range []string{"/v1/users/bob/limits", "/v1/users/bob/keys/" + keys[0].ID + "/limits"} {
		c.check("PUT", path, js, `{"requests_per_second": 1000, "why": "a test"}`, 200)
		c.check("PUT", path, js, `{"requests_per_second": -1}`, 422)
		c.check("GET", path, "", "", 200)
		c.check("GET", path, "", "", 403, "Authorization", "Bearer "+own)
	}
	c.check("GET", "/v1/users/eve/limits", "", "", 404)
	for _, path := range []string{
		"/v1/users/bob/pause",
		"/v1/users/bob/resume",
		"/v1/users/bob/end-sessions",
		"/v1/users/bob/disable",
		"/v1/users/bob/enable",
		"/v1/providers/sg/offline",
		"/v1/providers/sg/drain",
		"/v1/providers/sg/online",
		"/v1/providers/sg/probe",
	} {
		c.check("POST", path, js, `{"why": "a test"}`, 200)
		c.check("POST", path, js, `{}`, 403, "Authorization", "Bearer "+own)
		c.check("POST", path, js, `{`, 400)
	}
	c.checkSuppressions(js, own)
	c.checkProviderLists(own)
	c.check("POST", "/v1/blocks", js, `{"domain": "example.com", "why": "a test"}`, 200)
	c.check("GET", "/v1/blocks", "", "", 200)
	r := c.get("/v1/blocks")
	id := regexp.MustCompile(`"id":"([^"]+)"`).FindStringSubmatch(string(r.Body))[1]
	c.check("DELETE", "/v1/blocks/"+id, "", "", 200)
	c.check("DELETE", "/v1/blocks/"+id, "", "", 200)
	c.check("DELETE", "/v1/blocks/nothing", "", "", 404)
	require.NoError(
		c,
		c.serve(Config{}).Operate.HoldOld(c.Context(), service.Caller{By: "cli:zoe", Operator: true},
			"restored from a backup"),
	)
	c.check("GET", "/v1/holds", "", "", 200)
	for range 2 {
		c.check("POST", "/v1/holds/lift", js, `{"why": "looked at"}`, 200)
		c.check("POST", "/v1/holds/lift", js, ``, 403, "Authorization", "Bearer "+own)
	}
	c.check("POST", "/v1/erasures", js, `{"email": "eve@example.com", "why": "asked"}`, 200)
	c.check("POST", "/v1/erasures", js, `{"email": "eve@example.com", "cursor": "x"}`, 422)
	c.check("POST", "/v1/erasures", js, `{"email": "eve"}`, 422)
	c.check("POST", "/v1/erasures", js, `{"email": "eve@example.com"}`, 403, "Authorization", "Bearer "+own)
	c.check("POST", "/v1/users/ann/disable", js, `{}`, 409)
	c.check("POST", "/v1/users/eve/disable", js, `{}`, 404)
	every := read[client.KeyPage](c.fixture, "/v1/keys").Keys
	last := every[slices.IndexFunc(every, func(k client.Key) bool { return k.UserName == "bob" })]
	for range 2 {
		c.check("DELETE", "/v1/users/"+last.User+"/keys/"+last.ID+"?why=lost", "", "", 204)
	}
	c.check("DELETE", "/v1/users/bob/keys/x", "", "", 404)
	c.check("GET", "/v1/users/eve/keys", "", "", 404)
	c.check("GET", "/v1/audit/access?kind=x", "", "", 400)
	for _, path := range []string{
		"/v1/users", "/v1/users/bob/keys", "/v1/keys", "/v1/audit/access", "/v1/holds", "/v1/audit",
		"/v1/queues", "/v1/parked", "/v1/unmatched", "/v1/workers", "/v1/check"} {
		c.check("GET", path, "", "", 200)
		c.check("GET", path, "", "", 403, "Authorization", "Bearer "+own)
	}
	c.checkUsers(own)
	c.checkWork(own)
	c.checkParked(b)
	event := c.unmatched([]models.ID{b.ID.Log(1), b.ID.Log(2)}, "ann@example.com")[0].String()
	c.check("GET", "/v1/unmatched", "", "", 200)
	c.check("GET", "/v1/unmatched?cursor=x", "", "", 400)
	c.check("GET", "/v1/unmatched/"+event, "", "", 200)
	c.check("GET", "/v1/unmatched/x", "", "", 404)
}

// checkUsers adds a user with a key, and sets the senders.
func (c *contract) checkUsers(own string) {
	c.Helper()
	const js = "application/json"
	c.check("POST", "/v1/users", js, `{"name": "shop"}`, 201)
	c.check("POST", "/v1/users", js, `{"name": "shop"}`, 409)
	c.check("POST", "/v1/users", js, `{"name": "A shop"}`, 422)
	c.check("POST", "/v1/users/shop/keys", js, `{"name": "web", "scopes": ["send"], "networks": ["192.0.2.7"]}`, 201)
	for scopes, code := range map[string]string{`["operate"]`: "scope_not_yours", `["all"]`: "invalid_value"} {
		r := c.check("POST", "/v1/users/shop/keys", js, `{"scopes": `+scopes+`}`, 422)
		p := r.problem(c)
		require.Equal(c, []string{"/scopes/0 " + code}, p.pointers(), "a key gives away no more than it has")
	}
	c.check("POST", "/v1/users/eve/keys", js, `{}`, 404)
	c.check("PUT", "/v1/users/shop/senders", js, `{"senders": ["@shop.example.com"], "why": "theirs"}`, 200)
	c.check("PUT", "/v1/users/shop/senders", js, `{}`, 422)
	c.check("PUT", "/v1/users/shop/senders", js, `{"senders": ["x"]}`, 422)
	for _, path := range []string{"/v1/users/shop", "/v1/users/shop/senders", "/v1/waiting"} {
		c.check("GET", path, "", "", 200)
		c.check("GET", path, "", "", 403, "Authorization", "Bearer "+own)
	}
	c.check("GET", "/v1/users/eve", "", "", 404)
}

// checkWork has a worker do long work, which breaks off at the second request, and asks a process without a worker.
func (c *contract) checkWork(own string) {
	c.Helper()
	const js = "application/json"
	c.check("POST", "/v1/check", js, `{}`, 409)
	defer c.serve(Config{})
	var work Config
	work.Work.Check = func(_ context.Context, in client.NewCheck,
		say func(*client.Step[client.Check])) (client.Check, error) {
		require.NotEmpty(c, in.User)
		say(&client.Step[client.Check]{Found: &client.Difference{What: "chunk", Damaged: "it is",
			Text: "a chunk is damaged"}})
		say(&client.Step[client.Check]{Progress: &client.Check{Batches: 1}})
		if in.Repair {
			return client.Check{Batches: 2}, errors.New("the store has gone")
		}
		return client.Check{Batches: 3, Differences: 1}, nil
	}
	work.Work.Replay = func(_ context.Context, in client.NewReplay,
		_ func(*client.Step[client.Replayed])) (client.Replayed, error) {
		require.False(c, in.Since.IsZero())
		return client.Replayed{Posts: 7}, nil
	}
	c.serve(work)
	r := c.check("POST", "/v1/check", js, `{"user": "bob", "since": "2026-01-31T00:00:00Z"}`, 200)
	require.Contains(c, string(r.Body), "{\"found\":{\"what\":\"chunk\"")
	require.Regexp(c, `\n{"done":{.*"differences":1,.*}}\n$`, string(r.Body))
	r = c.check("POST", "/v1/check", js, `{"user": "bob", "repair": true}`, 200)
	require.Regexp(c, `\n{"progress":{.*"batches":2.*}}\n{"error":"the store has gone"}\n$`, string(r.Body))
	c.check("POST", "/v1/check", js, `{"user": "eve"}`, 404)
	c.check("POST", "/v1/check", js, `{"users": "bob"}`, 422)
	c.check("POST", "/v1/check", js, `{}`, 403, "Authorization", "Bearer "+own)
	r = c.check("POST", "/v1/replay", js, `{"since": "2026-01-31T00:00:00Z"}`, 200)
	require.JSONEq(c, `{"done": {"posts": 7, "events": 0}}`, string(r.Body))
	c.check("POST", "/v1/replay", js, `{"since": "soon"}`, 422)
}

// checkParked lists, requeues and discards parked messages.
func (c *contract) checkParked(b *models.Batch) {
	c.Helper()
	const js = "application/json"
	for _, verb := range []string{"POST requeue", "DELETE "} {
		require.NoError(
			c,
			c.broker.Publish(
				c.Context(),
				models.Message{Kind: models.LogMessage, Provider: "sg", ID: b.ID.Log(1), Lane: models.Bulk},
			),
		)
		c.handleOne(models.Queue{Kind: models.LogMessage, Provider: "sg", Lane: models.Bulk}, models.Park("a test"))
		parked, err := c.broker.Parked(c.Context(), 1)
		require.NoError(c, err)
		c.check("GET", "/v1/parked", "", "", 200)
		c.check("GET", "/v1/parked?cursor=x", "", "", 400)
		method, last, _ := strings.Cut(verb, " ")
		for range 2 { // a repeat changes nothing
			c.check(method, strings.TrimSuffix("/v1/parked/"+parked[0].ID+"/"+last, "/"), js, "", 200)
		}
		c.check(method, strings.TrimSuffix("/v1/parked/nothing/"+last, "/"), js, "", 404)
		_ = c.broker.Purge(c.Context()) // the requeued message
	}
}

// checkRejected posts batches whose bad recipients are left out, and lists them.
func (c *contract) checkRejected() {
	c.Helper()
	const js = "application/json"
	bad := batchOf(c.TB, `{"to": ["ann@example.com", "bob", "eve"]}`)
	c.check("POST", "/v1/batches?mode=permissive&dry_run=true", js, bad, 200)
	c.check("POST", "/v1/batches?mode=permissive", js, bad, 202)
	c.check("POST", "/v1/batches?mode=lenient", js, bad, 400)
	batch := "/v1/batches/" + c.permissive(bad).object(c.TB)["id"].(string)
	c.check("GET", batch, "", "", 200)
	c.check("GET", batch+"/rejected", "", "", 200)
	c.check("GET", batch+"/rejected?limit=1", "", "", 200)
	c.check("GET", batch+"/rejected", "", "", 200, "Accept", "text/csv")
	c.check("GET", batch+"/rejected.csv", "", "", 200)
	c.check("GET", batch+"/rejected?limit=x", "", "", 400)
	c.check("GET", batch+"/rejected", "", "", 404, "Authorization", "Bearer "+c.foreign)
	c.check("GET", batch+"/rejected.csv", "", "", 404, "Authorization", "Bearer "+c.foreign)
}

// TestContract checks successful answers and errors of each route against the OpenAPI
// description that the API serves.
func TestContract(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	served := f.get("/v1/openapi.yaml", "Authorization", "")
	require.Equal(t, http.StatusOK, served.Status)
	doc, err := openapi3.NewLoader().LoadFromData(served.Body)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()), "the description and its examples are valid")
	router, err := legacy.NewRouter(doc)
	require.NoError(t, err)
	c := &contract{fixture: f, router: router, doc: doc, seen: map[string]bool{}}

	const js, form = "application/json", "application/x-www-form-urlencoded"
	b := f.four()
	f.story(b)
	batch, log := batchPath(b.ID), "/v1/logs/"+b.ID.Log(1).String()
	c.check("POST", "/v1/batches", js, batchOf(t, `{
		"reply_to": "Ann <ann@example.com>",
		"to": [{"email": "ann@example.com", "name": null, "vars": {"a": 1, "b": "x", "c": true}}],
		"lane": "bulk",
		"on_unknown": "resend",
		"providers": ["sg"]
	}`), 202)
	full := f.post(batchOf(t, `{
		"reply_to": ["a@example.com", "b@example.com"], "headers": {"X-Order": "{{name}}"}, "tags": ["welcome"],
		"category": "receipt", "metadata": {"run": 7}, "track_opens": true, "track_clicks": null,
		"to": [{"email": "ann@example.com", "metadata": {"customer": "17"}}]
	}`)).object(t)["id"].(string)
	c.check("GET", "/v1/batches/"+full, "", "", 200)
	c.check("GET", "/v1/batches/"+full+"/logs", "", "", 200)
	c.check("POST", "/v1/batches?dry_run=true", js, batchOf(t, `{"tags": ["a"], "to": ["ann@example.com"]}`), 200)
	c.checkRejected()
	f.carryCopies()
	copies := f.post(batchOf(t, `{"to": ["ann@example.com"], "cc": ["b@example.com"], "bcc": ["c@example.com"]}`))
	c.check("GET", "/v1/batches/"+copies.object(t)["id"].(string)+"/logs", "", "", 200)
	c.check(
		"POST",
		"/v1/batches",
		js,
		batchOf(t, `{"to": ["ann@example.com"], "cc": ["b@example.com"], "bcc": null}`),
		202,
	)
	f.carryAttachments()
	attached := batchOf(t, `{"attachments": [`+attachmentOf("a.png", "image/png", "x@y", []byte("1"))+`]}`)
	c.check("POST", "/v1/batches", js, attached, 202)
	c.check("POST", "/v1/batches?dry_run=true", js, attached, 200)
	c.check("GET", "/v1/batches/"+f.post(attached).object(t)["id"].(string), "", "", 200)
	c.check("POST", "/v1/batches", form, "from=a@b.de&subject=s&body=b&to=a@b.de", 202)
	c.check("POST", "/v1/batches", js, batchOf(t, `{}`), 202, "Idempotency-Key", "k")
	c.check("POST", "/v1/batches", js, batchOf(t, `{}`), 202, "Idempotency-Key", "k")
	c.check("POST", "/v1/batches", js, `{"from": `, 400)
	c.check("POST", "/v1/batches", js, `{}`, 401, "Authorization", "")
	c.check("POST", "/v1/batches", js, `{"x": "`+strings.Repeat(" ", 32<<20)+`"}`, 413)
	c.check("POST", "/v1/batches", "text/plain", `{}`, 415)
	c.check("POST", "/v1/batches", js, batchOf(t, `{"to": [`+strings.Repeat(`"bad",`, 150)+`"bad"]}`), 422)
	for _, path := range []string{
		"/v1/batches?limit=1",
		batch,
		batch + "/logs?limit=2&state=failed",
		batch + "/logs",
		log,
		"/v1/logs/" + b.ID.Log(2).String(),
		"/v1/stats",
		"/v1/usage",
		"/v1/requests?limit=2",
		"/v1/providers",
		"/v1/providers/history",
		"/v1/providers/history?range=week",
		"/v1/logs?email=ann@example.com",
		"/v1/logs?state=failed&reason=mailbox_invalid&provider=sg&result=failed&from=2026-01-01T00:00:00Z",
		"/v1/logs?q=b@&limit=1",
		"/v1/updates",
		"/v1/updates/counts",
		"/v1/updates/counts?from=2026-01-01T00:00:00Z&to=2099-01-01T00:00:00Z&events=all&batch=" + b.ID.String(),
		"/v1/updates?from=2026-01-01T00:00:00Z&to=2099-01-01T00:00:00Z&wait=1ms&state=failed&tag=welcome&batch=" +
			b.ID.String(),
		"/v1/batches?state=sending&recipient_state=failed&rerouted=true&subject=hello&sender=shop&tag=news",
	} {
		c.check("GET", path, "", "", 200)
		c.check("GET", path, "", "", 401, "Authorization", "Bearer x")
	}
	for _, path := range []string{
		"/v1/batches?limit=x",
		batch + "/logs?cursor=x",
		"/v1/stats?from=x",
		"/v1/updates?cursor=x",
		"/v1/updates/counts?cursor=x",
		"/v1/providers/history?range=year",
	} {
		c.check("GET", path, "", "", 400)
	}
	for _, path := range []string{batch, batch + "/logs", log} {
		c.check("GET", path, "", "", 404, "Authorization", "Bearer "+f.foreign)
	}
	for _, path := range []string{"/healthz", "/readyz", "/v1/openapi.yaml"} {
		c.check("GET", path, "", "", 200, "Authorization", "")
	}
	c.checkTemplates()
	c.checkEndpoints()
	c.checkMessages()
	c.checkControl(b)
	c.checkDamaged(b)
	f.store.failing("PutBatch", func(int) error { return models.ErrOutcomeUnknown })
	f.giveUpSoon()
	c.check("POST", "/v1/batches", js, batchOf(t, `{}`), 503)
	f.store.before("BatchIDs", func() { panic("a bug") })
	c.check("GET", "/v1/batches", "", "", 500)
	f.store.setDown(true)
	for _, path := range []string{
		batch,
		batch + "/logs",
		log,
		"/v1/stats",
		"/v1/providers",
		"/v1/providers/history?range=day",
		"/readyz",
	} {
		c.check("GET", path, "", "", 503)
	}
	f.store.setDown(false)

	described := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			described[method+" "+strings.NewReplacer("{", ":", "}", "").Replace(path)] = true
			ok := c.seen[op.OperationID+" "+http.StatusText(http.StatusOK)] ||
				c.seen[op.OperationID+" "+http.StatusText(http.StatusNoContent)] ||
				c.seen[op.OperationID+" "+http.StatusText(http.StatusCreated)] ||
				c.seen[op.OperationID+" "+http.StatusText(http.StatusAccepted)]
			assert.True(t, ok, "%s has no successful request in this test", op.OperationID)
		}
	}
	routed := map[string]bool{}
	for _, r := range f.server.engine.Routes() {
		routed[r.Method+" "+r.Path] = true
	}
	testkit.SameLines(t, slices.Sorted(maps.Keys(routed)), slices.Sorted(maps.Keys(described)),
		"exactly the routes are described")
}

// TestErrorsAreDocumented: docs/errors.md lists exactly the codes in the source.
func TestErrorsAreDocumented(t *testing.T) {
	t.Parallel()
	var files []string
	for _, room := range []string{".", "../service", "../service/*"} {
		some, err := filepath.Glob(room + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, some)
		files = append(files, some...)
	}
	uses := map[string]*regexp.Regexp{
		"problem": regexp.MustCompile(`(?:Fail|New)\(\s*(?:service\.|problem\.)?([A-Z]\w+),\s*"([a-z_]+)"`),
		"field":   regexp.MustCompile(`(?m)\.Wrong\(\s*[^\n]*?,\s*"([a-z_]+)",\s*"|Code:\s+"([a-z_]+)"|^\tinvalidTable\s+= "([a-z_]+)"`),
	}
	used := map[string]map[string]bool{"problem": {}, "field": {}}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		require.NoError(t, err)
		for kind, re := range uses {
			for _, m := range re.FindAllStringSubmatch(string(src), -1) {
				m = slices.DeleteFunc(m[1:], func(s string) bool { return s == "" })
				used[kind][strings.Join(m, " ")] = true
			}
		}
	}
	doc, err := os.ReadFile("../docs/errors.md")
	require.NoError(t, err)
	documented := map[string]map[string]bool{"problem": {}, "field": {}}
	byNumber := map[string]string{
		"400": "Malformed",
		"401": "Unauthorized",
		"403": "Forbidden",
		"404": "NotFound",
		"405": "NotAllowed",
		"409": "Conflict",
		"410": "Gone",
		"413": "TooLarge",
		"415": "Unsupported",
		"422": "Invalid",
		"429": "TooMany",
		"500": "Internal",
		"503": "Unavailable",
	}
	rows := regexp.MustCompile("(?m)^\\| <a id=\"([a-z_]+)\"></a>`([a-z_]+)` \\| (\\d+) \\|")
	for _, m := range rows.FindAllStringSubmatch(string(doc), -1) {
		require.Equal(t, m[1], m[2], "the anchor is the code")
		documented["problem"][byNumber[m[3]]+" "+m[2]] = true
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(doc), -1) {
		documented["field"][m[1]] = true
	}
	require.Greater(t, len(used["problem"]), 30, "the search above finds them")
	for kind := range used {
		testkit.SameLines(t, slices.Sorted(maps.Keys(used[kind])), slices.Sorted(maps.Keys(documented[kind])),
			"docs/errors.md")
	}
}
