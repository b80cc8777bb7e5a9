package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestListBatches walks the list page by page while new batches arrive: none is
// repeated, none that was there at the start is left out.
func TestListBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var want []models.ID
	post := func() models.ID {
		a, _, _ := f.accepted(f.post(batchOf(t, `{}`)))
		return a.ID
	}
	for range 11 {
		want = append(want, post())
	}
	slices.SortFunc(want, func(a, b models.ID) int { return strings.Compare(b.String(), a.String()) }) // newest first
	var got []models.ID
	for cursor, pages := "", 0; ; pages++ {
		page := read[batchList](f, "/v1/batches?limit=3&cursor="+cursor)
		for _, b := range page.Batches {
			got = append(got, b.ID)
		}
		if cursor = page.Next; cursor == "" {
			require.Equal(t, 3, pages)
			break
		}
		require.Len(t, page.Batches, 3)
		post()
	}
	require.Equal(t, want, got)
	require.Len(t, read[batchList](f, "/v1/batches").Batches, 14)
	require.Empty(t, read[batchList](f, "/v1/batches?limit=14").Next, "a full last page has no next one")
}

func TestBadQueries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _, _ := f.accepted(f.post(batchOf(t, `{"to": ["a@b.de", "c@d.de"]}`)))
	b, _, _ := f.accepted(f.post(batchOf(t, `{"to": ["a@b.de", "c@d.de"]}`)))
	logs := "/v1/batches/" + a.ID.String() + "/logs"
	batches := read[batchList](f, "/v1/batches?limit=1").Next
	mine := read[logList](f, logs+"?limit=1").Next
	queued := read[logList](f, logs+"?limit=1&state=queued").Next
	require.NotEmpty(t, batches)
	require.NotEmpty(t, mine)
	require.NotEmpty(t, queued)
	raw, err := base64.RawURLEncoding.DecodeString(mine)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"limit 0":                      {"/v1/batches?limit=0", []string{"/limit"}},
		"limit 501":                    {"/v1/batches?limit=501", []string{"/limit"}},
		"limit no number":              {logs + "?limit=ten", []string{"/limit"}},
		"limit negative":               {logs + "?limit=-1", []string{"/limit"}},
		"cursor no base64":             {"/v1/batches?cursor=%20", []string{"/cursor"}},
		"cursor cut off":               {"/v1/batches?cursor=" + batches[:20], []string{"/cursor"}},
		"cursor of the logs":           {"/v1/batches?cursor=" + mine, []string{"/cursor"}},
		"cursor of the batches":        {logs + "?cursor=" + batches, []string{"/cursor"}},
		"cursor of another batch":      {"/v1/batches/" + b.ID.String() + "/logs?cursor=" + mine, []string{"/cursor"}},
		"cursor of another state":      {logs + "?state=failed&cursor=" + queued, []string{"/cursor"}},
		"state":                        {logs + "?state=delivered", []string{"/state"}},
		"all at once":                  {logs + "?state=x&cursor=x&limit=x", []string{"/limit", "/cursor", "/state"}},
		"day":                          {"/v1/stats?from=yesterday", []string{"/from"}},
		"days":                         {"/v1/stats?from=2026-02-30&to=1", []string{"/to", "/from"}},
		"from after to":                {"/v1/stats?from=2026-02-02&to=2026-02-01", []string{"/from"}},
		"401 days":                     {"/v1/stats?from=2025-01-01&to=2026-02-05", []string{"/from"}},
		"from in the future, to today": {"/v1/stats?from=2999-01-01", []string{"/from"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := f.with(t).get(c.path)
			require.Equal(t, http.StatusBadRequest, r.Status, string(r.Body))
			p := r.problem(t)
			require.Equal(t, "invalid_query", p.Code)
			var got []string
			for _, e := range p.Errors {
				got = append(got, e.Pointer)
			}
			require.Equal(t, c.want, got)
		})
	}
	t.Run("every byte of a cursor counts", func(t *testing.T) {
		t.Parallel()
		f := f.with(t)
		for i := range raw {
			bad := slices.Clone(raw)
			bad[i] ^= 1
			r := f.get(logs + "?cursor=" + base64.RawURLEncoding.EncodeToString(bad))
			require.Equal(t, "invalid_query", r.problem(t).Code, "byte %d", i)
		}
	})
	t.Run("somebody else's cursor", func(t *testing.T) {
		t.Parallel()
		r := f.with(t).get("/v1/batches?cursor="+batches, "Authorization", "Bearer "+f.foreign)
		require.Equal(t, "invalid_query", r.problem(t).Code)
	})
}

// story writes what workers would: attempts, answers, events and an ending for
// the four recipients of a batch, and the summary.
func (f *fixture) story(b *models.Batch) time.Time {
	f.Helper()
	ctx, at := f.Context(), b.Created()
	first := models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         at.Add(time.Second),
		Recipients: models.SetTo(4),
		Provider:   "sg",
		Because:    "first in the round robin",
	}
	second := models.Entry{
		Number:     2,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         at.Add(3 * time.Second),
		Recipients: models.SetOf(1),
		Provider:   "mg",
		Retry:      1,
		Because:    "sg refused",
	}
	end := models.Entry{
		Number:     3,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         at.Add(6 * time.Second),
		Recipients: models.SetOf(3),
		Reason:     models.RetriesUsedUp,
	}
	for _, e := range []models.Entry{first, second, end} {
		require.NoError(f, f.store.Append(ctx, b.ID, e))
	}
	out := models.Fact{
		Key: models.OutcomeKey(1),
		Outcome: &models.Outcome{Attempt: 1, At: at.Add(2 * time.Second), Took: 1500 * time.Microsecond, Parts: []models.Part{
			{Class: models.Unavailable, Recipients: models.SetOf(1, 3), Status: 503, Text: "come back later"},
			{Class: models.Accepted, Recipients: models.SetOf(2, 4), Status: 202}}},
	}
	out2 := models.Fact{
		Key: models.OutcomeKey(2),
		Outcome: &models.Outcome{
			Attempt: 2,
			At:      at.Add(4 * time.Second),
			Parts:   []models.Part{{Class: models.Accepted, Recipients: models.SetOf(1), Status: 200}},
		},
	}
	events := models.Fact{Key: models.EventsKey(models.NewInboxID(at)), Events: []models.Event{
		{
			ID:        "1",
			Recipient: 1,
			Attempt:   2,
			Provider:  "mg",
			Kind:      models.Delivered,
			At:        at.Add(5 * time.Second),
			Status:    250,
			Text:      "OK",
		},
		{
			ID:          "2",
			Recipient:   2,
			Attempt:     1,
			Provider:    "sg",
			Kind:        models.Bounced,
			At:          at.Add(5 * time.Second),
			Reason:      models.MailboxInvalid,
			Status:      550,
			Enhanced:    "5.1.1",
			BounceClass: "Invalid Address",
			Text:        "no such user",
		}}}
	for _, fact := range []models.Fact{out, out2, events} {
		require.NoError(f, f.store.PutFacts(ctx, models.ChunkFact{Chunk: b.ID, Fact: fact}))
	}
	entries, facts, err := f.store.Record(ctx, b.ID)
	require.NoError(f, err)
	sum := models.Resolve(4, entries, facts).Summary()
	require.NoError(f, f.store.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: sum}))
	for _, l := range models.Levels {
		_, err := f.store.RollUp(ctx, models.SpanOf(b.User, l, at))
		require.NoError(f, err)
	}
	return at
}

// oneLog is the answer to GET /v1/logs/{id}.
type oneLog struct {
	service.LogView
	BatchID  models.ID       `json:"batch_id"`
	Subject  string          `json:"subject"`
	Timeline []models.Moment `json:"timeline"`
}

func (f *fixture) four() *models.Batch {
	f.Helper()
	_, b, _ := f.accepted(
		f.post(batchOf(f, `{"to": ["a@b.de", "Bea <b@b.de>", "c@b.de", "d@b.de"], "providers": ["sg", "mg"]}`)),
	)
	return &b
}

func TestLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	fresh := read[oneLog](f, "/v1/logs/"+b.ID.Log(1).String())
	require.Equal(t, models.Queued, fresh.State)
	require.Equal(t, "waiting to be handed to a provider", fresh.ReasonText)
	require.Equal(t, map[string]bool{}, fresh.Providers)
	require.Len(t, fresh.Timeline, 1)

	at := f.story(b)
	l := read[oneLog](f, "/v1/logs/"+b.ID.Log(1).String())
	require.Equal(t, models.Success, l.State)
	require.Equal(t, map[string]bool{"sg": false, "mg": true}, l.Providers)
	require.Equal(t, 2, l.Attempts)
	require.Equal(t, 1, l.Copies)
	require.Equal(t, b.ID, l.BatchID)
	require.Equal(t, "Hello", l.Subject)
	var story []string
	for _, m := range l.Timeline {
		story = append(
			story,
			fmt.Sprintf(
				"%ds %s %s %s%s %d %s",
				int(m.At.Sub(at).Seconds()),
				m.What,
				m.Provider,
				m.Class,
				m.Event,
				m.Status,
				m.Because,
			),
		)
	}
	require.Equal(
		t,
		[]string{
			"0s accepted   0 ",
			"1s attempt sg  0 first in the round robin",
			"2s answer sg unavailable 503 ",
			"3s attempt mg  0 sg refused",
			"4s answer mg accepted 200 ",
			"5s event mg delivered 250 ",
		},
		story,
	)
	require.InDelta(t, 1.5, l.Timeline[2].TookMS, 0.001)

	l = read[oneLog](f, "/v1/logs/"+b.ID.Log(2).String())
	require.Equal(t, models.Failed, l.State)
	require.Equal(t, "Bea", l.Name)
	require.Equal(t, models.MailboxInvalid, l.Reason)
	require.Equal(t, models.MailboxInvalid.Words(), l.ReasonText)
	require.Equal(t, "no such user", l.Detail)
	last := l.Timeline[len(l.Timeline)-1]
	require.Equal(
		t,
		[]any{models.Bounced, 550, "5.1.1", "Invalid Address"},
		[]any{last.Event, last.Status, last.Enhanced, last.Bounce},
	)

	l = read[oneLog](f, "/v1/logs/"+b.ID.Log(3).String())
	require.Equal(t, models.RetriesUsedUp, l.Reason)
	l = read[oneLog](f, "/v1/logs/"+b.ID.Log(4).String())
	require.Equal(t, models.Queued, l.State)
	require.Equal(t, "sg accepted it; no final event yet", l.ReasonText)

	for _, none := range []models.ID{b.ID.Log(5), b.ID.Chunk(1).Log(1)} {
		require.Equal(t, "not_found", f.get("/v1/logs/"+none.String()).problem(t).Code)
	}
}

func TestListLogs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b)
	path := "/v1/batches/" + b.ID.String() + "/logs"
	for state, want := range map[string][]string{"": {"a@b.de", "b@b.de", "c@b.de", "d@b.de"}, "success": {"a@b.de"}, "failed": {"b@b.de", "c@b.de"},
		"queued": {"d@b.de"}, "cancelled": nil} {
		for limit := 1; limit <= 4; limit++ {
			var got []string
			for cursor := ""; ; {
				page := read[logList](f, fmt.Sprintf("%s?state=%s&limit=%d&cursor=%s", path, state, limit, cursor))
				require.NotNil(t, page.Logs)
				for _, l := range page.Logs {
					got = append(got, l.Email)
				}
				if cursor = page.Next; cursor == "" {
					break
				}
				require.Len(t, page.Logs, limit)
			}
			require.Equal(t, want, got, "state %q limit %d", state, limit)
		}
	}
}

// TestListLogsOfManyChunks: pages go over the ends of chunks, and chunks without
// a log of the state cost no reading.
func TestListLogsOfManyChunks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const n = 60_500
	_, b, rs := f.accepted(f.post(batchOf(t, `{"to": [`+numbered(0, n)+`]}`)))
	path := "/v1/batches/" + b.ID.String() + "/logs?limit=500"
	got := 0
	for cursor := ""; ; {
		page := read[logList](f, path+"&cursor="+cursor)
		for _, l := range page.Logs {
			require.Equal(t, rs[got].Email, l.Email)
			got++
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	require.Equal(t, n, got)

	// One failed recipient in the last chunk; every other chunk says that it has none.
	last := b.ID.Chunk(b.Chunks - 1)
	require.NoError(
		t,
		f.store.Append(
			t.Context(),
			last,
			models.Entry{
				Number:     1,
				Token:      models.NewToken(),
				Kind:       models.Ending,
				At:         b.Created(),
				Recipients: models.SetOf(500),
				Reason:     models.Expired,
			},
		),
	)
	for k := range b.Chunks - 1 {
		sum := models.Summary{Version: 1, Accepted: 1000, Queued: 1000, Untried: 1000}
		require.NoError(
			t,
			f.store.PutSummaries(t.Context(), models.ChunkSummary{User: f.user, Chunk: b.ID.Chunk(k), Summary: sum}),
		)
	}
	reads := 0
	f.store.before("Recipients", func() { reads++ })
	page := read[logList](f, path+"&state=failed")
	require.Len(t, page.Logs, 1)
	require.Equal(t, last.Log(500), page.Logs[0].ID)
	require.Empty(t, page.Next)
	require.Equal(t, 1, reads)

	// Where nothing is known beforehand, one request reads so many chunks at most.
	reads = 0
	page = read[logList](f, path+"&state=cancelled")
	require.Empty(t, page.Logs)
	require.LessOrEqual(t, reads, 50)
}

func TestBatchCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	path := "/v1/batches/" + b.ID.String()
	v := read[service.BatchView](f, path)
	require.Equal(t, models.BatchQueued, v.State)
	require.Equal(
		t,
		[]int64{4, 4, 0, 0, 0},
		[]int64{v.Counts.Accepted, v.Counts.Queued, v.Counts.Success, v.Counts.Failed, v.Counts.Cancelled},
	)
	f.story(b)
	v = read[service.BatchView](f, path)
	require.Equal(t, models.BatchSending, v.State)
	require.Equal(
		t,
		[]int64{4, 1, 1, 2, 0},
		[]int64{v.Counts.Accepted, v.Counts.Queued, v.Counts.Success, v.Counts.Failed, v.Counts.Cancelled},
	)
	require.Equal(t, int64(1), v.Counts.Rerouted)
	require.Equal(t, map[models.Reason]int64{models.MailboxInvalid: 1, models.RetriesUsedUp: 1}, v.Counts.Reasons)
	require.Equal(
		t,
		map[string]service.ProviderCounts{
			"sg": {Tried: 4, Refused: 2, Failed: 1, Waiting: 1},
			"mg": {Tried: 1, Delivered: 1},
		},
		v.Counts.Providers,
	)
	require.Equal(t, []string{"sg", "mg"}, v.Providers)
	require.Equal(t, v, read[batchList](f, "/v1/batches").Batches[0], "the list says the same")
	require.WithinDuration(t, b.Created(), v.CreatedAt, 0)
	require.WithinDuration(t, b.Deadline, v.Deadline, 0)
}

func TestStats(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	at := f.story(b)
	type day struct {
		Date string
		service.Counts
	}
	type stats struct {
		From, To string
		Days     []day
		Totals   service.Counts
	}
	today := at.Format(time.DateOnly)
	yesterday := at.AddDate(0, 0, -1).Format(time.DateOnly)
	tomorrow := at.AddDate(0, 0, 1).Format(time.DateOnly)
	s := read[stats](f, "/v1/stats?from="+yesterday+"&to="+tomorrow)
	require.Equal(t, []string{yesterday, today, tomorrow}, []string{s.Days[0].Date, s.Days[1].Date, s.Days[2].Date})
	for _, empty := range []int{0, 2} {
		require.Equal(
			t,
			service.Counts{Reasons: map[models.Reason]int64{}, Providers: map[string]service.ProviderCounts{}},
			s.Days[empty].Counts,
		)
	}
	require.Equal(t, []int64{4, 1, 1, 2}, []int64{s.Totals.Accepted, s.Totals.Queued, s.Totals.Success, s.Totals.Failed})
	require.Equal(t, s.Totals, s.Days[1].Counts)

	s = read[stats](f, "/v1/stats?to="+today)
	require.Len(t, s.Days, 30)
	require.Equal(t, int64(4), s.Totals.Accepted)
	require.Len(t, read[stats](f, "/v1/stats?from=2025-01-01&to=2026-02-04").Days, 400)
	require.Len(t, read[stats](f, "/v1/stats?from="+today+"&to="+today).Days, 1)
	for _, far := range []string{"0001-01-01", "9999-12-31"} {
		require.Zero(t, read[stats](f, "/v1/stats?from="+far+"&to="+far).Totals.Accepted)
	}
	f.secret = f.foreign
	require.Zero(t, read[stats](f, "/v1/stats?to="+tomorrow).Totals.Accepted, "everybody's own")
}

func TestProviders(t *testing.T) {
	t.Parallel()
	type list struct{ Providers []service.Provider }
	f := newFixture(t)
	l := read[list](f, "/v1/providers")
	require.Len(t, l.Providers, 2)
	require.Equal(t, "suspended", l.Providers[0].Health.State)
	require.Equal(t, int64(7), l.Providers[0].Worker.Calls)
	require.Nil(t, l.Providers[1].Health, "nobody has reported it")

	f = newFixture(t, func(s *setup) { s.names = nil })
	require.JSONEq(t, `{"providers": []}`, string(f.get("/v1/providers").Body))
	f.store.failing("Reports", func(int) error { return models.ErrUnavailable })
	require.Equal(t, "store_unavailable", f.get("/v1/providers").problem(t).Code)
}

// TestDamaged: what cannot be read is told as that, and not as something that
// passes.
func TestDamaged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.store.failing("Batch", func(int) error { return models.ErrDamaged })
	r := f.get("/v1/batches/" + b.ID.String())
	require.Equal(t, http.StatusInternalServerError, r.Status)
	require.Equal(t, "stored_value_damaged", r.problem(t).Code)
	require.Empty(t, r.Header.Get("Retry-After"))
}

// awayBroker cannot be reached.
type awayBroker struct{ models.Broker }

func (awayBroker) Ping(context.Context) error                       { return models.ErrUnavailable }
func (awayBroker) Publish(context.Context, ...models.Message) error { return models.ErrUnavailable }

func TestHealth(t *testing.T) {
	t.Parallel()
	type ready struct {
		Status  string
		Missing []string
		Checks  map[string]string
	}
	f := newFixture(t)
	require.JSONEq(t, `{"status": "ok"}`, string(f.get("/healthz", "Authorization", "").Body))
	require.Equal(
		t,
		ready{"ready", []string{}, map[string]string{"store": "ok", "broker": "ok", "providers": "ok"}},
		read[ready](f, "/readyz"),
	)
	f.store.setDown(true)
	r := f.get("/readyz", "Authorization", "")
	require.Equal(t, http.StatusServiceUnavailable, r.Status)
	require.JSONEq(
		t,
		`{"status": "not ready", "missing": ["store"], "checks": {"store": "unavailable", "broker": "ok", "providers": "ok"}}`,
		string(r.Body),
	)

	f = newFixture(t, func(s *setup) { s.broker = func(b models.Broker) models.Broker { return awayBroker{b} } })
	got := read[ready](f, "/readyz")
	require.Equal(t, []string{"broker"}, got.Missing, "named, although batches are taken without it")
	f.accepted(f.post(batchOf(t, `{}`)))

	f = newFixture(t, func(s *setup) { s.names = nil })
	r = f.get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, r.Status)
	require.Contains(t, string(r.Body), `"missing":["providers"]`)
}
