package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// plan asks what would happen to a batch.
func (f *fixture) plan(fields string) service.DryRun {
	f.Helper()
	r := f.do(http.MethodPost, "/v1/batches?dry_run=true", "application/json", strings.NewReader(batchOf(f, fields)))
	require.Equal(f, http.StatusOK, r.Status, string(r.Body))
	var v service.DryRun
	require.NoError(f, json.Unmarshal(r.Body, &v))
	require.True(f, v.DryRun)
	n := 0
	for _, route := range v.Routes {
		n += route.Recipients
	}
	require.Equal(f, v.Recipients, n, "each recipient has one route")
	return v
}

// TestDryRunOfBatch: a dry run says which providers would get the mail and why others would not, and
// stores nothing.
func TestDryRunOfBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	f.deps.Providers[0].Weight, f.deps.Providers[0].Rate, f.deps.Providers[0].Carries.Tags = 3, 2, 1
	f.deps.Providers[1].Rate = 1
	f.serve(Config{})
	report := func(sg telemetry.Health) {
		raw, err := json.Marshal(telemetry.WorkerState{Share: 1, Providers: []telemetry.ProviderState{
			{Name: "sg", Health: sg}, {Name: "mg", Health: telemetry.Health{State: telemetry.Healthy}}}})
		require.NoError(t, err)
		require.NoError(t, f.store.PutTransient(t.Context(), telemetry.WorkerReport, "w", raw, time.Hour))
		f.serve(Config{}) // it has not read the reports yet
	}
	first, second := f.deps.Providers[0].Name, f.deps.Providers[1].Name
	require.Equal(t, []string{"sg", "mg"}, []string{first, second})

	report(telemetry.Health{State: telemetry.Healthy})
	to := `"to": ["a@one.test", "b@one.test", "A@one.test", "c@two.test", "d@two.test"]`
	v := f.plan(`{"tags": ["x", "y"], ` + to + `}`)
	require.Equal(t, []int{4, 1}, []int{v.Recipients, v.Duplicates})
	require.Equal(t, []service.RouteProvider{
		{Name: "sg", Share: 0.75, LeftOut: "1 of 2 tags: it takes 1"},
		{Name: "mg", Share: 0.25, LeftOut: "2 of 2 tags: it takes 0"},
	}, v.Routes[0].Providers)
	require.Equal(t, "sent now: sg gets 75 %; mg gets 25 %", v.Routes[0].Text)
	require.InDelta(t, 1.5, *v.Seconds, 1e-9, "3 of 4 messages at 2/s")
	require.Equal(t, models.Urgent, v.Lane)
	require.WithinDuration(t, time.Now().Add(7*24*time.Hour), v.ExpiresAt, time.Minute)

	added := f.do(http.MethodPost, "/v1/suppressions", "application/json",
		strings.NewReader(`{"email": "c@two.test", "reason": "complaint"}`))
	require.Equal(t, http.StatusCreated, added.Status)
	v = f.plan(`{` + to + `}`)
	require.Equal(t, []int{4, 1}, []int{v.Recipients, v.Suppressed})
	require.Equal(t, []int{1, 3}, []int{v.Routes[0].Recipients, v.Routes[1].Recipients})
	require.Equal(t, models.Suppressed, v.Routes[0].Reason)
	require.Equal(t, "not sent: the recipient complained about earlier mail", v.Routes[0].Text)
	removed := f.do(http.MethodDelete, "/v1/suppressions/c@two.test?why=test", "", nil)
	require.Equal(t, http.StatusOK, removed.Status)

	v = f.plan(`{"to": ["b@one.test", {"email": "a@one.test", "name": "Smith, Ann"}]}`)
	require.Equal(t, "commas and semicolons in names: they become spaces", v.Routes[0].Providers[0].LeftOut)

	v = f.plan(`{"providers": ["mg", "sg"], ` + to + `}`)
	require.Equal(t, "sent now: mg gets 100 %; sg gets what the ones before it do not take", v.Routes[0].Text)

	until := time.Now().Add(time.Hour).UTC()
	report(telemetry.Health{State: telemetry.Suspended, Why: "503 Service Unavailable", Until: until})
	v = f.plan(`{` + to + `}`)
	require.Equal(t, models.WaitProviderSuspend, v.Routes[0].Providers[0].Waits.Code)
	require.Equal(t, "sent now: sg is suspended: 503 Service Unavailable; mg gets 100 %", v.Routes[0].Text)
	v = f.plan(`{"providers": ["sg"], ` + to + `}`)
	require.Equal(t, models.WaitProviderSuspend, v.Routes[0].Waits.Code)
	require.Nil(t, v.Seconds)

	postCommand[models.Block](f, "/v1/blocks", `{"domain": "two.test", "fail": true, "why": "a test"}`)
	v = f.plan(`{` + to + `}`)
	require.Len(t, v.Routes, 2)
	require.Equal(t, models.BlockedByRule, v.Routes[1].Reason)
	require.Equal(t, []int{2, 2}, []int{v.Routes[0].Recipients, v.Routes[1].Recipients})
	postCommand[client.ControlResult](f, "/v1/providers/mg/offline", ``)
	v = f.plan(`{` + to + `}`)
	require.Equal(t, models.WaitProviderOffline, v.Routes[0].Providers[1].Waits.Code)
	postCommand[client.ControlResult](f, "/v1/users/ann/pause", ``)
	v = f.plan(`{` + to + `}`)
	require.Equal(t, models.WaitUserPaused, v.Routes[0].Waits.Code)

	wrong := f.do(http.MethodPost, "/v1/batches?dry_run=true", "application/json", strings.NewReader(`{}`))
	require.Equal(t, http.StatusUnprocessableEntity, wrong.Status)
	require.Empty(t, f.store.writes(), "nothing is stored")
}

// TestDryRunCost: a dry run says what the batch costs, at least, at most and at each provider. What
// fails costs nothing, and a provider that cannot carry the message has no part in it.
func TestDryRunCost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	to := `"to": ["a@one.test", "b@one.test", "c@one.test", "d@one.test"]`
	f.serve(Config{})
	require.Nil(t, f.plan(`{`+to+`}`).Cost)

	f.deps.Config.Currency, f.deps.Config.Prices = "EUR", map[string]float64{"sg": 0.5, "mg": 2}
	f.deps.Providers[0].Carries.Attachments = true
	raw, err := json.Marshal(telemetry.WorkerState{Share: 1, Providers: []telemetry.ProviderState{
		{Name: "sg", Health: telemetry.Health{State: telemetry.Healthy}},
		{Name: "mg", Health: telemetry.Health{State: telemetry.Healthy}}}})
	require.NoError(t, err)
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.WorkerReport, "w", raw, time.Hour))
	f.serve(Config{})
	require.Equal(t, &client.Cost{Currency: "EUR", Least: 0.002, Most: 0.008,
		Providers: map[string]float64{"sg": 0.001, "mg": 0.004}}, f.plan(`{`+to+`}`).Cost)
	require.Equal(t, &client.Cost{Currency: "EUR", Least: 0.008, Most: 0.008,
		Providers: map[string]float64{"mg": 0.008}}, f.plan(`{"providers": ["mg"], `+to+`}`).Cost)
	attached := `"attachments": [{"filename": "a.txt", "content": "YQ=="}]`
	require.Equal(t, &client.Cost{Currency: "EUR", Least: 0.002, Most: 0.002,
		Providers: map[string]float64{"sg": 0.002}}, f.plan(`{`+attached+`, `+to+`}`).Cost)
	added := f.do(http.MethodPost, "/v1/suppressions", "application/json",
		strings.NewReader(`{"email": "c@one.test", "reason": "complaint"}`))
	require.Equal(t, http.StatusCreated, added.Status)
	require.InDelta(t, 0.006, f.plan(`{`+to+`}`).Cost.Most, 1e-9)
}

// TestDryRunChecksLimits: a dry run is refused by the limits that would refuse the request, as the request would be,
// and takes nothing of them. Each part of a request counts for the ones after it.
func TestDryRunChecksLimits(t *testing.T) {
	t.Parallel()
	testkit.WithinHour()
	f := newFixture(t, func(s *setup) {
		s.service.Quotas = models.Limits{
			models.RecipientsPerHour: 10, models.BatchesPerDay: 4, models.StoredBytes: 20_000, models.UrgentRecipientsPerHour: 4,
		}
	})
	ask := func(method, path, body string) *reply {
		kind := "application/json"
		if method == http.MethodPut {
			kind = "application/x-ndjson"
		}
		return f.do(method, path, kind, strings.NewReader(body))
	}
	same := func(method, path, body string, status int) {
		t.Helper()
		for range 3 { // it takes nothing
			tried := ask(method, path+"?dry_run=true", body)
			require.Equal(t, status, tried.Status, "%s", tried.Body)
			if status >= 400 {
				real := ask(method, path, body)
				require.Equal(t, status, real.Status, "%s", real.Body)
				require.Equal(t, real.problem(t).Code, tried.problem(t).Code)
				require.Equal(t, real.problem(t).Detail, tried.problem(t).Detail)
				require.Equal(t, real.Header.Get("Retry-After") == "", tried.Header.Get("Retry-After") == "")
			}
		}
	}
	large := `{"from": "a@one.example", "to": ["b@two.example"], "subject": "s", "text": "` +
		strings.Repeat("x", 19_000) + `"}`
	same(http.MethodPost, "/v1/batches", batchTo(11), 413)
	same(http.MethodPost, "/v1/batches", batchTo(10), 200)
	same(http.MethodPost, "/v1/batches", large, 200)
	f.accepted(f.post(batchTo(3)))
	require.Empty(t, f.plan(`{"to": ["a@two.example"]}`).LaneLimit)
	v := f.plan(`{"to": ["a@two.example", "b@two.example"]}`)
	require.Equal(t, models.Bulk, v.Lane)
	require.Equal(t, models.UrgentRecipientsPerHour, v.LaneLimit)
	f.accepted(f.post(batchTo(3)))
	same(http.MethodPost, "/v1/batches", batchTo(5), 429)
	same(http.MethodPost, "/v1/batches", batchTo(4), 200)
	put := func(ids ...string) (out string) {
		for _, id := range ids {
			out += `{"id": "` + id + `", "from": "a@one.example", "to": "b@two.example", "subject": "` + id +
				`", "text": "t"}` + "\n"
		}
		return out
	}
	tried := ask(http.MethodPut, "/v1/messages?dry_run=true", put("a", "b", "c"))
	require.Equal(t, 1, strings.Count(string(tried.Body), "limit_reached"), "%s", tried.Body)
	require.Equal(t, http.StatusTooManyRequests, ask(http.MethodPut, "/v1/messages?mode=strict&dry_run=true",
		put("a", "b", "c")).Status)
	require.Equal(t, http.StatusTooManyRequests, ask(http.MethodPut, "/v1/messages?mode=strict",
		put("a", "b", "c")).Status)
	real := ask(http.MethodPut, "/v1/messages", put("a", "b", "c"))
	require.Equal(t, 1, strings.Count(string(real.Body), "limit_reached"), "%s", real.Body)
}
