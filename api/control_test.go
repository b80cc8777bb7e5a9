package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// key makes a key of the first user with options.
func (f *fixture) key(o models.KeyOptions) string {
	f.Helper()
	k, secret := models.NewKey(f.user, "with options", time.Now())
	k.KeyOptions = o
	require.NoError(f, f.store.CreateKey(f.Context(), k))
	return secret
}

// operator is the fixture with a key that may do everything.
func (f *fixture) operator() *fixture {
	g := *f
	g.secret = f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeSend, models.ScopeRead, models.ScopeOperate}})
	return &g
}

// order posts an order and decodes the answer.
func order[T any](f *fixture, path, body string) T {
	f.Helper()
	r := f.do(http.MethodPost, path, "application/json", strings.NewReader(body))
	require.Equal(f, http.StatusOK, r.Status, string(r.Body))
	var v T
	require.NoError(f, json.Unmarshal(r.Body, &v))
	return v
}

// journal lists what was ordered.
func (f *fixture) journal() []string {
	f.Helper()
	lines, err := f.store.Commands(f.Context(), 0, 100)
	require.NoError(f, err)
	out := []string{}
	for _, c := range lines {
		out = append(out, strings.TrimSpace(string(c.Kind)+" "+c.Why))
	}
	return out
}

// TestSteer: each order stands once, is written down with its reason, and lets
// the batch be looked at where it goes on.
func TestSteer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	path := "/v1/batches/" + b.ID.String()
	s := order[service.BatchControlResult](f, path+"/stop", `{"why": "wrong subject"}`)
	require.Equal(
		t,
		service.BatchControlResult{BatchID: b.ID, Order: models.StopBatch, Changed: true, Stopped: true, InFlight: new(0)},
		s,
	)
	require.True(t, read[service.BatchView](f, path).Stopped)
	require.NotEmpty(t, read[service.BatchView](f, path).Waits)
	s = order[service.BatchControlResult](f, path+"/stop", ``)
	require.False(t, s.Changed, "it is stopped")
	require.True(t, s.Stopped)
	s = order[service.BatchControlResult](f, path+"/resume", `{}`)
	require.True(t, s.Changed)
	require.False(t, s.Stopped)
	require.False(t, order[service.BatchControlResult](f, path+"/resume", `{}`).Changed)
	require.NotEmpty(t, order[service.BatchControlResult](f, path+"/release", `{}`).Warning)
	require.True(t, order[service.BatchControlResult](f, path+"/retry", `{}`).Changed)
	require.True(t, order[service.BatchControlResult](f, path+"/cancel", `{"why": "all wrong"}`).Cancelled)
	require.False(t, order[service.BatchControlResult](f, path+"/cancel", `{}`).Changed)
	require.True(t, read[service.BatchView](f, path).Cancelled)
	for _, verb := range []string{"resume", "retry", "release"} {
		r := f.do(http.MethodPost, path+"/"+verb, "", nil)
		require.Equal(t, http.StatusConflict, r.Status)
		require.Equal(t, "batch_cancelled", r.problem(t).Code)
	}
	require.Equal(
		t,
		[]string{"batch.stop wrong subject", "batch.resume", "batch.release", "batch.retry", "batch.cancel all wrong"},
		f.journal(),
	)
	lines, err := f.store.Commands(t.Context(), 0, 1)
	require.NoError(t, err)
	require.Equal(t, f.user, lines[0].By)
}

// TestContentRemoved: what has lost its content after its time cannot go out again.
func TestContentRemoved(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b)
	require.NoError(t, f.store.Redact(t.Context(), b.ID))
	for _, path := range []string{"/v1/batches/" + b.ID.String() + "/retry", "/v1/batches/" + b.ID.String() + "/release", "/v1/logs/" + b.ID.Log(3).String() + "/release"} {
		r := f.do(http.MethodPost, path, "", nil)
		require.Equal(t, http.StatusConflict, r.Status)
		require.Equal(t, "content_removed", r.problem(t).Code)
	}
	require.Empty(t, f.journal())
	require.True(t, order[service.BatchControlResult](f, "/v1/batches/"+b.ID.String()+"/stop", ``).Stopped)
}

// TestSteerOrder: what goes on is on the agenda before the order stands.
func TestSteerOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.store.failing("Schedule", func(int) error { return models.ErrUnavailable })
	path := "/v1/batches/" + b.ID.String()
	require.Equal(t, http.StatusServiceUnavailable, f.do(http.MethodPost, path+"/cancel", "", nil).Status)
	require.Empty(t, f.journal())
	require.True(t, order[service.BatchControlResult](f, path+"/stop", ``).Changed, "a stop needs no agenda")
}

// TestInFlight: a stop tells how many calls may be running.
func TestInFlight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	now := time.Now()
	attempt := func(n int, set models.Set, ends time.Time) {
		t.Helper()
		require.NoError(
			t,
			f.store.Append(
				t.Context(),
				b.ID,
				models.Entry{Number: n, Token: models.NewToken(), Kind: models.Attempt, At: now, Recipients: set, Provider: "sg",
					StartBy: now, CallEnds: ends},
			),
		)
	}
	attempt(1, models.SetOf(1), now.Add(time.Hour))
	attempt(2, models.SetOf(2, 3), now.Add(time.Hour))
	attempt(3, models.SetOf(4), now.Add(-time.Minute))
	require.NoError(
		t,
		f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: models.Fact{Key: models.OutcomeKey(1),
			Outcome: &models.Outcome{
				Attempt: 1,
				At:      now,
				Parts:   []models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}},
			}}}),
	)
	s := order[service.BatchControlResult](f, "/v1/batches/"+b.ID.String()+"/stop", ``)
	require.Equal(t, new(2), s.InFlight)
	require.NotEmpty(t, s.Warning)
}

// TestInFlightAfterRelease: what a release let go counts as in flight, also where
// the stored summary is from before it and says that nothing is queued.
func TestInFlightAfterRelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	now := time.Now()
	entry := models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         now,
		Recipients: models.SetOf(1, 2, 3, 4),
		Reason:     models.OutcomeUnknown,
	}
	require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
	require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: b.User, Chunk: b.ID,
		Summary: models.Summary{
			Version:  1,
			Accepted: 4,
			Failed:   4,
			Reasons:  map[models.Reason]int64{models.OutcomeUnknown: 4},
		}}))
	require.Equal(t, new(0), order[service.BatchControlResult](f, "/v1/batches/"+b.ID.String()+"/release", ``).InFlight)
	entry = models.Entry{
		Number:     2,
		Token:      models.NewToken(),
		Kind:       models.Release,
		At:         now,
		Recipients: entry.Recipients,
		MayDouble:  true,
		Order:      1,
	}
	require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
	entry = models.Entry{
		Number:     3,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         now,
		Recipients: entry.Recipients,
		Provider:   "sg",
		StartBy:    now,
		CallEnds:   now.Add(time.Hour),
	}
	require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
	require.Equal(t, new(4), order[service.BatchControlResult](f, "/v1/batches/"+b.ID.String()+"/stop", ``).InFlight)
}

func TestReleaseLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b) // 1 delivered, 2 bounced, 3 ended for retries used up, 4 queued
	path := func(n int) string { return "/v1/logs/" + b.ID.Log(n).String() + "/release" }
	for _, n := range []int{1, 2} {
		r := f.do(http.MethodPost, path(n), "", nil)
		require.Equal(t, "not_releasable", r.problem(t).Code)
	}
	s := order[service.BatchControlResult](f, path(3), `{"why": "asked for"}`)
	require.True(t, s.Changed)
	require.Equal(t, b.ID.Log(3), s.LogID)
	require.False(
		t,
		order[service.BatchControlResult](f, path(3), `{"why": "asked for again"}`).Changed,
		"ordered, and not obeyed yet",
	)
	require.False(t, order[service.BatchControlResult](f, path(4), ``).Changed, "it is on its way")
	lines, err := f.store.Commands(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, lines, 1)
	require.Equal(t, b.ID.Log(3), lines[0].Log)
	require.Equal(t, "not_found", f.do(http.MethodPost, path(5), "", nil).problem(t).Code)
}

// TestReleaseRange: batches of the range that hold something, one's own or, for
// an operator, everybody's.
func TestReleaseRange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	hold := func(b *models.Batch) {
		t.Helper()
		sum := models.Summary{
			Version:   1,
			Accepted:  4,
			Failed:    4,
			Reasons:   map[models.Reason]int64{models.OutcomeUnknown: 1, models.Expired: 3},
			Providers: map[string]models.ProviderCounts{"sg": {Tried: 1}},
		}
		require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: sum}))
	}
	held := f.four()
	f.four()
	hold(held)
	g := *f
	g.secret = f.foreign
	foreign := g.four()
	hold(foreign)
	body := func(provider string, from, to time.Duration) string {
		now := time.Now()
		return fmt.Sprintf(
			`{"provider": %q, "from": %q, "to": %q}`,
			provider,
			now.Add(from).Format(time.RFC3339),
			now.Add(to).Format(time.RFC3339),
		)
	}
	require.Zero(t, order[service.ReleaseResult](f, "/v1/release", body("mg", -time.Hour, time.Hour)).Batches, "nothing there")
	require.Zero(t, order[service.ReleaseResult](f, "/v1/release", body("sg", -2*time.Hour, -time.Hour)).Batches, "before them")
	require.Equal(t, 1, order[service.ReleaseResult](f, "/v1/release", body("sg", -time.Hour, time.Hour)).Batches)
	require.Equal(t, 2, order[service.ReleaseResult](f.operator(), "/v1/release", body("", -time.Hour, time.Hour)).Batches)
	p := f.do(
		http.MethodPost,
		"/v1/release",
		"application/json",
		strings.NewReader(`{"provider": "x", "fro": 1}`),
	).problem(
		t,
	)
	require.Equal(t, []string{"/fro unknown_field"}, p.pointers())
	p = f.do(http.MethodPost, "/v1/release", "application/json", strings.NewReader(`{"provider": "x"}`)).problem(t)
	require.Equal(t, []string{"/provider unknown_provider", "/from required", "/to required"}, p.pointers())
	p = f.do(
		http.MethodPost,
		"/v1/release",
		"application/json",
		strings.NewReader(`{"provider": 1, "from": "yesterday", "to": 5}`),
	).problem(
		t,
	)
	require.Equal(t, []string{"/provider wrong_type", "/from invalid_value", "/to wrong_type"}, p.pointers())
	require.Equal(t, "provider must be a string.", p.Errors[0].Detail)
}

// TestForeignOrders: nobody steers what belongs to somebody else, but an
// operator.
func TestForeignOrders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	g := *f
	g.secret = f.foreign
	b := g.four()
	for _, path := range []string{"/v1/batches/%s/stop", "/v1/batches/%s/resume", "/v1/batches/%s/cancel", "/v1/batches/%s/retry", "/v1/batches/%s/release"} {
		require.Equal(t, http.StatusNotFound, f.do(http.MethodPost, fmt.Sprintf(path, b.ID), "", nil).Status)
	}
	require.Equal(
		t,
		http.StatusNotFound,
		f.do(http.MethodPost, "/v1/logs/"+b.ID.Log(1).String()+"/release", "", nil).Status,
	)
	require.Empty(t, f.journal())
	require.Equal(t, http.StatusNotFound, f.get("/v1/batches/"+b.ID.String()).Status)
	read := f.operator().get("/v1/batches/" + b.ID.String())
	require.Equal(t, http.StatusOK, read.Status)
	require.Contains(t, string(read.Body), `"user":"`+b.User+`"`, "who may operate reads it, too")
	require.True(t, order[service.BatchControlResult](f.operator(), "/v1/batches/"+b.ID.String()+"/stop", ``).Changed)
}

// TestScopes: every route keeps to what the key may be used for.
func TestScopes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	send := []string{
		"POST /v1/batches",
		"POST /v1/batches/%s/stop",
		"POST /v1/batches/%s/resume",
		"POST /v1/batches/%s/cancel",
		"POST /v1/batches/%s/retry",
		"POST /v1/batches/%s/release",
		"POST /v1/logs/%l/release",
		"POST /v1/release",
	}
	see := []string{
		"GET /v1/batches",
		"GET /v1/batches/%s",
		"GET /v1/batches/%s/logs",
		"GET /v1/logs/%l",
		"GET /v1/logs?email=a@b.de",
		"GET /v1/stats",
		"GET /v1/providers",
		"GET /v1/providers/history",
	}
	operate := []string{
		"POST /v1/users/bob/pause",
		"POST /v1/users/bob/resume",
		"POST /v1/providers/sg/offline",
		"POST /v1/providers/sg/online",
		"POST /v1/providers/sg/drain",
		"POST /v1/providers/sg/probe",
		"GET /v1/blocks",
		"POST /v1/blocks",
		"DELETE /v1/blocks/x",
		"GET /v1/holds",
		"POST /v1/holds/lift",
		"GET /v1/audit",
		"GET /v1/queues",
		"GET /v1/parked",
		"POST /v1/parked/x/requeue",
		"DELETE /v1/parked/x",
		"GET /v1/workers",
		"GET /v1/check",
	}
	require.Len(t, f.server.engine.Routes(), len(send)+len(see)+len(operate)+3)
	try := func(secret string, routes []string, refused bool) {
		t.Helper()
		for _, route := range routes {
			method, path := fill(route, b.ID)
			body := `{}`
			if route == "POST /v1/release" {
				body = `{"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}`
			}
			r := f.do(method, path, "application/json", strings.NewReader(body), "Authorization", "Bearer "+secret)
			if refused {
				require.Equal(t, http.StatusForbidden, r.Status, route)
				require.Equal(t, "scope_missing", r.problem(t).Code)
				continue
			}
			require.NotEqual(t, http.StatusForbidden, r.Status, "%s: %s", route, r.Body)
		}
	}
	try(f.secret, operate, true)
	reader := f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeRead}})
	try(reader, append(send, operate...), true)
	try(reader, see, false)
	sender := f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeSend}})
	try(sender, append(see, operate...), true)
	require.Empty(t, f.journal())
	try(sender, send, false)
	try(f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeOperate}}), operate, false)
}

func TestKeyOptions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, c := range map[string]struct {
		o      models.KeyOptions
		status int
		code   string
	}{
		"expires later":   {models.KeyOptions{Expires: time.Now().Add(time.Hour)}, 200, ""},
		"expired":         {models.KeyOptions{Expires: time.Now().Add(-time.Second)}, 401, "expired_key"},
		"this network":    {models.KeyOptions{Networks: []string{"192.0.2.0/24", "127.0.0.0/8"}}, 200, ""},
		"another network": {models.KeyOptions{Networks: []string{"192.0.2.0/24"}}, 403, "address_not_allowed"},
	} {
		r := f.get("/v1/batches", "Authorization", "Bearer "+f.key(c.o))
		require.Equal(t, c.status, r.Status, name)
		if c.code != "" {
			require.Equal(t, c.code, r.problem(t).Code, name)
		}
	}
}

// TestPauseOneself: a user may pause and resume all of one's own batches, and
// nobody else's; what an operator paused, an operator resumes.
func TestPauseOneself(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	boss := f.operator()
	ask := func(path string) *reply {
		return f.do(http.MethodPost, path, "application/json", strings.NewReader(`{}`), "Authorization", "Bearer "+f.foreign)
	}
	changed := func(r *reply) bool {
		require.Equal(t, http.StatusOK, r.Status, "%s", r.Body)
		var v service.ControlResult
		require.NoError(t, json.Unmarshal(r.Body, &v))
		return v.Changed
	}
	require.False(t, changed(ask("/v1/users/bob/resume")), "not paused")
	require.True(t, changed(ask("/v1/users/bob/pause")))
	require.False(t, changed(ask("/v1/users/"+f.other+"/pause")))
	require.True(t, changed(ask("/v1/users/bob/resume")))
	require.True(t, changed(ask("/v1/users/bob/pause")))

	require.True(
		t,
		order[service.ControlResult](boss, "/v1/users/bob/pause", `{"why": "spam"}`).Changed,
		"an operator confirms it",
	)
	require.False(t, changed(ask("/v1/users/bob/pause")))
	require.Equal(t, "paused_by_operator", ask("/v1/users/bob/resume").problem(t).Code)
	require.True(t, order[service.ControlResult](boss, "/v1/users/bob/resume", ``).Changed)
	for _, path := range []string{"/v1/users/ann/pause", "/v1/users/" + f.user + "/resume", "/v1/users/eve/pause"} {
		require.Equal(t, "scope_missing", ask(path).problem(t).Code, "whether there is such a user is not said")
	}
}

// TestResumeOfOperatorsStop: what an operator stopped, its owner cannot resume, but
// an operator, who may be its owner; nor does the owner take back a stop of his own
// that an operator has confirmed.
func TestResumeOfOperatorsStop(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	boss := f.operator()
	g := *f
	g.secret = f.foreign
	b := g.four()
	path := "/v1/batches/" + b.ID.String()
	require.True(t, order[service.BatchControlResult](&g, path+"/stop", ``).Changed)
	require.Equal(t, f.other, read[service.BatchView](&g, path).StoppedBy)
	require.True(t, order[service.BatchControlResult](&g, path+"/resume", ``).Changed, "his own")
	require.True(t, order[service.BatchControlResult](&g, path+"/stop", ``).Changed)
	require.True(t, order[service.BatchControlResult](boss, path+"/stop", `{"why": "spam"}`).Changed, "an operator confirms it")
	require.False(t, order[service.BatchControlResult](boss, path+"/stop", ``).Changed)
	require.False(t, order[service.BatchControlResult](&g, path+"/stop", ``).Changed, "which does not make it the owner's again")
	require.Equal(t, f.user, read[service.BatchView](&g, path).StoppedBy)
	for range 2 {
		r := g.do(http.MethodPost, path+"/resume", "", nil)
		require.Equal(t, http.StatusForbidden, r.Status)
		require.Equal(t, "stopped_by_operator", r.problem(t).Code)
	}
	require.True(t, read[service.BatchView](&g, path).Stopped)
	require.True(t, order[service.BatchControlResult](boss, path+"/resume", ``).Changed)

	own := f.four() // the operator's
	require.NoError(
		t,
		f.store.AppendCommand(
			t.Context(),
			models.Command{Number: len(f.journal()) + 1, Token: models.NewToken(), At: time.Now(), By: "cli:zoe",
				Kind: models.StopBatch, Batch: own.ID},
		),
	)
	path = "/v1/batches/" + own.ID.String() + "/resume"
	require.Equal(
		t,
		"stopped_by_operator",
		f.do(http.MethodPost, path, "", nil).problem(t).Code,
		"a key without the scope is no operator's",
	)
	require.True(t, order[service.BatchControlResult](boss, path, ``).Changed, "an operator who owns it")

	require.True(t, order[service.BatchControlResult](boss, "/v1/batches/"+b.ID.String()+"/stop", ``).Changed)
	require.True(
		t,
		order[service.BatchControlResult](&g, "/v1/batches/"+b.ID.String()+"/cancel", ``).Cancelled,
		"to give it up is the owner's right",
	)
	require.Equal(
		t,
		"batch_cancelled",
		g.do(http.MethodPost, "/v1/batches/"+b.ID.String()+"/resume", "", nil).problem(t).Code,
	)
}

// TestOperate: users, providers and blocks, each order once, and all of it in the
// audit trail.
func TestOperate(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	require.Equal(
		t,
		service.ControlResult{Name: "bob", Order: models.PauseUser, Changed: true},
		order[service.ControlResult](f, "/v1/users/bob/pause", `{"why": "spam"}`),
	)
	require.False(t, order[service.ControlResult](f, "/v1/users/"+f.other+"/pause", ``).Changed)
	require.True(t, order[service.ControlResult](f, "/v1/users/bob/resume", ``).Changed)
	require.Equal(t, "not_found", f.do(http.MethodPost, "/v1/users/eve/pause", "", nil).problem(t).Code)
	require.True(t, order[service.ControlResult](f, "/v1/providers/sg/offline", ``).Changed)
	require.False(t, order[service.ControlResult](f, "/v1/providers/sg/offline", ``).Changed)
	require.Equal(t, "provider_offline", f.do(http.MethodPost, "/v1/providers/sg/probe", "", nil).problem(t).Code)
	require.True(t, order[service.ControlResult](f, "/v1/providers/sg/drain", ``).Changed)
	require.True(t, order[service.ControlResult](f, "/v1/providers/sg/online", ``).Changed)
	require.False(t, order[service.ControlResult](f, "/v1/providers/mg/online", ``).Changed, "it always was")
	require.Equal(t, "not_found", f.do(http.MethodPost, "/v1/providers/xx/offline", "", nil).problem(t).Code)
	require.Equal(
		t,
		service.ControlResult{Name: "sg", Order: models.ProviderProbe, Changed: true},
		order[service.ControlResult](f, "/v1/providers/sg/probe", `{"why": "new key"}`),
	)
	require.True(t, order[service.ControlResult](f, "/v1/providers/sg/probe", ``).Changed, "each time")
	require.Equal(t, "not_found", f.do(http.MethodPost, "/v1/providers/xx/probe", "", nil).problem(t).Code)

	p := f.do(
		http.MethodPost,
		"/v1/blocks",
		"application/json",
		strings.NewReader(`{"provider": "xx", "user": "eve", "sender": "x", "domain": "a b"}`),
	).problem(
		t,
	)
	require.Equal(
		t,
		[]string{"/provider unknown_provider", "/user invalid_value", "/sender invalid_address", "/domain invalid_value"},
		p.pointers(),
	)
	require.Equal(t, []string{" required"}, func() []string {
		p := f.do(http.MethodPost, "/v1/blocks", "application/json", strings.NewReader(`{"fail": true}`)).problem(t)
		return p.pointers()
	}())
	one := order[models.Block](
		f,
		"/v1/blocks",
		`{"user": "bob", "sender": "@Bücher.example", "domain": "EXAMPLE.com", "fail": true, "why": "phishing"}`,
	)
	require.Equal(
		t,
		[]any{f.other, "@xn--bcher-kva.example", "example.com", true, "phishing", f.user},
		[]any{one.User, one.Sender, one.Domain, one.Fail, one.Why, one.By},
	)
	require.Equal(
		t,
		one,
		order[models.Block](
			f,
			"/v1/blocks",
			`{"user": "bob", "sender": "@bücher.example", "domain": "example.com", "fail": true}`,
		),
		"it is there already",
	)
	type list struct{ Blocks []models.Block }
	require.Equal(t, []models.Block{one}, read[list](f, "/v1/blocks").Blocks)
	require.Equal(t, http.StatusNoContent, f.do(http.MethodDelete, "/v1/blocks/"+one.ID+"?why=over", "", nil).Status)
	require.Equal(
		t,
		http.StatusNoContent,
		f.do(http.MethodDelete, "/v1/blocks/"+one.ID, "", nil).Status,
		"a repeat changes nothing",
	)
	require.Equal(t, http.StatusNotFound, f.do(http.MethodDelete, "/v1/blocks/nothing", "", nil).Status)
	require.Empty(t, read[list](f, "/v1/blocks").Blocks)

	want := []string{
		"user.pause spam",
		"user.resume",
		"provider.offline",
		"provider.drain",
		"provider.online",
		"provider.probe new key",
		"provider.probe",
		"block.add phishing",
		"block.remove over",
	}
	require.Equal(t, want, f.journal())
	var got []string
	for cursor := ""; ; {
		page := read[service.AuditPage](f, "/v1/audit?limit=3&cursor="+cursor)
		for _, o := range page.Orders {
			got = append([]string{strings.TrimSpace(string(o.Order) + " " + o.Why)}, got...)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
		require.Len(t, page.Orders, 3)
	}
	require.Equal(t, want, got, "newest first, page by page")
	p = f.do(
		http.MethodPost,
		"/v1/users/bob/pause",
		"application/json",
		strings.NewReader(`{"why": "`+strings.Repeat("x", 501)+`"}`),
	).problem(
		t,
	)
	require.Equal(t, []string{"/why too_long"}, p.pointers())
}

// TestHolds: what is held since a restore is listed, and let go once.
func TestHolds(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	type holds struct{ Holds []service.Hold }
	require.Contains(t, string(f.get("/v1/holds").Body), `"holds":[]`)
	b := f.four()
	require.NoError(t, f.serve(Config{}).HoldOld(t.Context(), service.Caller{By: "cli:zoe", Operator: true}, "restored"))
	list := read[holds](f, "/v1/holds").Holds
	require.Len(t, list, 1)
	require.Equal(t, []any{"cli:zoe", "restored"}, []any{list[0].By, list[0].Why})
	require.True(t, list[0].Before.After(b.Created()))
	require.Contains(t, read[service.BatchView](f, "/v1/batches/"+b.ID.String()).Waits, "held after a restore")
	require.Equal(
		t,
		service.LiftResult{Order: models.LiftHolds, Changed: true},
		order[service.LiftResult](f, "/v1/holds/lift", `{"why": "looked at"}`),
	)
	require.False(t, order[service.LiftResult](f, "/v1/holds/lift", ``).Changed, "nothing is held")
	require.Empty(t, read[holds](f, "/v1/holds").Holds)
	require.Equal(t, []string{"hold.add restored", "hold.lift looked at"}, f.journal())
}

// What is let go by a request whose answer was lost is not let go once more by its
// repeat: it may have been held again meanwhile.
func TestLetGoOnceForOneRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	for i, path := range []string{"/v1/batches/" + b.ID.String() + "/retry", "/v1/batches/" + b.ID.String() + "/release"} {
		f.store.failing("PutAnswer", func(int) error { return models.ErrUnavailable })
		post := func() *reply { return f.do(http.MethodPost, path, "application/json", nil, "Idempotency-Key", path) }
		require.Equal(t, http.StatusOK, post().Status)
		f.store.failing("PutAnswer", func(int) error { return nil })
		second := post()
		require.Equal(t, http.StatusOK, second.Status, string(second.Body))
		require.Contains(t, string(second.Body), `"changed":true`)
		require.Equal(t, "true", post().Header.Get("Idempotency-Replayed"))
		require.Len(t, f.journal(), i+1, path)
	}
	require.True(t, order[service.BatchControlResult](f, "/v1/batches/"+b.ID.String()+"/release", ``).Changed)
	require.Len(t, f.journal(), 3, "another request")
}
