package api

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/stats"
)

// TestListBatches: while new batches arrive, the pages list each batch that existed at the start
// exactly once.
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
		page := read[batchList](f, "/v1/batches?limit=3"+after(cursor))
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
	require.Empty(t, read[batchList](f, "/v1/batches?limit=14").Next, "a full last page has no next page")
}

// TestBadQueries: invalid parameters and cursors of other lists are refused.
func TestBadQueries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _, _ := f.accepted(f.post(batchOf(t, `{"to": ["a@b.de", "c@d.de"]}`)))
	b, _, _ := f.accepted(f.post(batchOf(t, `{"to": ["a@b.de", "c@d.de"]}`)))
	logs := batchPath(a.ID) + "/logs"
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
		"cursor of another batch":      {batchPath(b.ID) + "/logs?cursor=" + mine, []string{"/cursor"}},
		"cursor of another state":      {logs + "?state=failed&cursor=" + queued, []string{"/cursor"}},
		"state":                        {logs + "?state=success", []string{"/state"}},
		"all at once":                  {logs + "?state=x&cursor=x&limit=x", []string{"/state", "/limit", "/cursor"}},
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
	t.Run("cursor of another user", func(t *testing.T) {
		t.Parallel()
		r := f.with(t).get("/v1/batches?cursor="+batches, "Authorization", "Bearer "+f.foreign)
		require.Equal(t, "invalid_query", r.problem(t).Code)
	})
}

// TestBatchCounts: a batch and the list of batches have the same counts.
func TestBatchCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	path := batchPath(b.ID)
	v := read[mail.BatchView](f, path)
	require.Equal(t, models.BatchQueued, v.State)
	require.Equal(
		t,
		[]int64{4, 4, 0, 0, 0},
		[]int64{v.Counts.Accepted, v.Counts.Queued, v.Counts.Delivered, v.Counts.Failed, v.Counts.Cancelled},
	)
	f.story(b)
	v = read[mail.BatchView](f, path)
	require.Equal(t, models.BatchSent, v.State)
	require.Equal(
		t,
		[]int64{4, 1, 1, 2, 0},
		[]int64{v.Counts.Accepted, v.Counts.Sent, v.Counts.Delivered, v.Counts.Failed, v.Counts.Cancelled},
	)
	require.Equal(t, int64(1), v.Counts.Rerouted)
	require.Equal(t, map[string]int64{"mailbox_invalid": 1, "provider_unavailable": 1}, v.Counts.FailedReasons)
	require.Equal(
		t,
		map[string]client.ProviderCounts{
			"sg": {Tried: 4, Refused: 2, Failed: 1, Waiting: 1},
			"mg": {Tried: 1, Delivered: 1},
		},
		v.Counts.Providers,
	)
	require.Equal(t, []string{"sg", "mg"}, v.Providers)
	require.Equal(t, models.WaitFinalEvent, v.Waits.Code)
	listed := v
	listed.Waits = nil // a list names commands only
	require.Equal(t, listed, read[batchList](f, "/v1/batches").Batches[0], "the list has the same counts")
	require.WithinDuration(t, b.Created(), v.CreatedAt, 0)
	require.WithinDuration(t, b.ExpiresAt, v.ExpiresAt, 0)
}

// TestCausesOfFailures: the counts of a batch and of its user have the last cause of mail for which no provider was
// left. So a block of the sender differs from a receiver without a server.
func TestCausesOfFailures(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	at, all := b.Created(), models.SetTo(4)
	causes := []models.Reason{
		models.PolicyReputation, models.DNSOrConnect, models.PolicyReputation, models.ProviderAccount,
	}
	events := models.Fact{Key: models.EventsKey(models.NewInboxID(at))}
	for i, cause := range causes {
		events.Events = append(events.Events, models.Event{
			ID: string(cause), Recipient: i + 1, Attempt: 1, Provider: "sg", Kind: models.Blocked, Reason: cause, At: at,
		})
	}
	for n, e := range []models.Entry{
		{Kind: models.Attempt, Provider: "sg"}, {Kind: models.Ending, Reason: models.NoProviderLeft},
	} {
		e.Number, e.Token, e.At, e.Recipients = n+1, models.NewToken(), at, all
		require.NoError(t, f.store.Append(t.Context(), b.ID, e))
	}
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: events}))
	f.sum(b)
	want := map[string]int64{"policy_reputation": 2, "dns_or_connect": 1, "provider_account": 1}
	require.Equal(t, want, read[mail.BatchView](f, batchPath(b.ID)).Counts.FailedReasons)
	require.Equal(t, want, read[struct{ Totals client.Counts }](f, "/v1/stats").Totals.FailedReasons)
	l := read[oneLog](f, "/v1/logs/"+b.ID.Log(2).String())
	require.Equal(t, []models.Reason{models.DNSOrConnect, models.NoProviderLeft}, []models.Reason{l.Reason, l.EndedBy})
}

// TestStats: the counts of a range are listed by day, days without mail included.
func TestStats(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	at := f.story(b)
	type day struct {
		Date string
		client.Counts
	}
	type answer struct {
		From, To string
		Days     []day
		Totals   client.Counts
	}
	today := at.Format(time.DateOnly)
	yesterday := at.AddDate(0, 0, -1).Format(time.DateOnly)
	tomorrow := at.AddDate(0, 0, 1).Format(time.DateOnly)
	s := read[answer](f, "/v1/stats?from="+yesterday+"&to="+tomorrow)
	require.Equal(t, []string{yesterday, today, tomorrow}, []string{s.Days[0].Date, s.Days[1].Date, s.Days[2].Date})
	for _, empty := range []int{0, 2} {
		require.Equal(
			t,
			stats.CountsOf(&models.Summary{}),
			s.Days[empty].Counts,
		)
	}
	require.Equal(t, []int64{4, 1, 1, 2}, []int64{s.Totals.Accepted, s.Totals.Sent, s.Totals.Delivered, s.Totals.Failed})
	require.Equal(t, s.Totals, s.Days[1].Counts)
	var byProvider []string
	for _, g := range read[struct{ Groups []client.GroupCounts }](f, "/v1/stats?by=provider&to="+tomorrow).Groups {
		byProvider = append(byProvider, fmt.Sprintf("%s accepted %d delivered %d rerouted %d tried %d", g.Name, g.Accepted,
			g.Delivered, g.Rerouted, g.Providers[g.Name].Tried))
	}
	require.Equal(t, []string{"sg accepted 3 delivered 0 rerouted 1 tried 4",
		"mg accepted 1 delivered 1 rerouted 0 tried 1"}, byProvider)

	s = read[answer](f, "/v1/stats?to="+today)
	require.Len(t, s.Days, 30)
	require.Equal(t, int64(4), s.Totals.Accepted)
	require.Len(t, read[answer](f, "/v1/stats?from=2025-01-01&to=2026-02-04").Days, 400)
	require.Len(t, read[answer](f, "/v1/stats?from="+today+"&to="+today).Days, 1)
	for _, far := range []string{"0001-01-01", "9999-12-31"} {
		require.Zero(t, read[answer](f, "/v1/stats?from="+far+"&to="+far).Totals.Accepted)
	}
	f.secret = f.foreign
	require.Zero(t, read[answer](f, "/v1/stats?to="+tomorrow).Totals.Accepted, "the counts of another user")
}
