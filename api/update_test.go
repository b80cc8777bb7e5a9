package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/updates"
)

// fed is a fixture with a batch whose updates are published.
type fed struct {
	*fixture
	*feed.Writer
	batch models.ID
}

// newFed returns a fixture with a batch of n recipients, which has tags and metadata.
func newFed(t *testing.T, n int, change ...func(*setup)) *fed {
	t.Helper()
	f := &fed{fixture: newFixture(t, change...)}
	f.Writer = feed.NewWriter(f.store)
	f.batch = f.accept(n)
	return f
}

// accept posts a batch of n recipients.
func (f *fed) accept(n int) models.ID {
	f.Helper()
	var to []string
	for i := range n {
		to = append(to, fmt.Sprintf(`{"email": "a%d@example.com", "metadata": {"n": "%d"}}`, i+1, i+1))
	}
	r := f.post(batchOf(f.TB, `{"tags": ["welcome"], "metadata": {"n": "batch", "run": "7"},
		"to": [`+strings.Join(to, ",")+`]}`))
	id, err := models.ParseBatchID(r.object(f.TB)["id"].(string))
	require.NoError(f, err)
	return id
}

// end ends recipients of a batch of n, and publishes it.
func (f *fed) end(batch models.ID, n int, who ...int) {
	f.Helper()
	ctx := f.Context()
	entries, facts, err := f.store.Record(ctx, batch)
	require.NoError(f, err)
	require.NoError(f, f.store.Append(ctx, batch, models.Entry{
		Number:     len(entries) + 1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         time.Now().UTC(),
		Reason:     models.Expired,
		Recipients: models.SetOf(who...),
	}))
	entries, _, err = f.store.Record(ctx, batch)
	require.NoError(f, err)
	view := models.Resolve(n, entries, facts).ForFeed()
	require.NoError(f, f.Publish(ctx, f.user, []feed.Chunk{{ID: batch, View: view, Of: 1}}))
}

// read reads a page.
func (f *fed) read(query string, args ...any) (p updates.Page) {
	f.Helper()
	r := f.get("/v1/updates?" + fmt.Sprintf(query, args...))
	require.Equal(f, http.StatusOK, r.Status, "%s", r.Body)
	require.NoError(f, json.Unmarshal(r.Body, &p))
	return p
}

// counts returns how many updates there are, which are few enough for one answer.
func (f *fed) counts(query string, args ...any) map[feed.Type]int64 {
	f.Helper()
	var v updates.Counts
	r := f.get("/v1/updates/counts?" + fmt.Sprintf(query, args...))
	require.Equal(f, http.StatusOK, r.Status, "%s", r.Body)
	require.NoError(f, json.Unmarshal(r.Body, &v))
	require.False(f, v.More)
	return v.Counts
}

// recipients returns the numbers of the recipients of updates.
func recipients(us []feed.Described) (out []int) {
	for i := range us {
		out = append(out, us[i].Log.Recipient())
	}
	return out
}

// TestUpdates reads updates in pages: each one once, with metadata and tags, and with a cursor at the end
// that goes on with what comes.
func TestUpdates(t *testing.T) {
	t.Parallel()
	f := newFed(t, 5)
	p := f.read("")
	require.Empty(t, p.Updates)
	require.True(t, p.Complete.IsZero())
	start := p.Next
	f.end(f.batch, 5, 2, 4, 5)
	p = f.read("limit=2&cursor=%s", start)
	require.Equal(t, []int{2, 4}, recipients(p.Updates))
	require.True(t, p.More)
	u := p.Updates[0]
	require.Equal(t, f.batch, u.Batch)
	require.Equal(t, 1, u.Number)
	require.Equal(t, models.Failed, u.State)
	require.Equal(t, models.Expired, u.Reason)
	require.Equal(t, map[string]string{"n": "2", "run": "7"}, u.Metadata)
	require.Equal(t, []string{"welcome"}, u.Tags)
	require.False(t, p.Complete.After(u.At))
	p = f.read("limit=2&cursor=%s", p.Next)
	require.Equal(t, []int{5}, recipients(p.Updates))
	require.False(t, p.More)
	require.True(t, p.Complete.After(u.At))
	end := p.Next
	require.Empty(t, f.read("cursor=%s", end).Updates)
	require.Equal(t, p.Position, f.read("cursor=%s", end).Position)
	f.end(f.batch, 5, 1)
	require.Equal(t, []int{1}, recipients(f.read("cursor=%s", end).Updates))

	other := f.get("/v1/updates?cursor="+end, "Authorization", "Bearer "+f.foreign)
	require.Equal(t, http.StatusBadRequest, other.Status, "a cursor is of one user")
	require.Equal(t, http.StatusOK, f.get("/v1/updates", "Authorization", "Bearer "+f.foreign).Status)
}

// TestUpdateEvents: events come only if they are asked for, once, and the numbers of changes do not depend on them.
func TestUpdateEvents(t *testing.T) {
	t.Parallel()
	f := newFed(t, 2)
	ctx := f.Context()
	all := models.SetTo(2)
	require.NoError(t, f.store.Append(ctx, f.batch, models.Entry{
		Number: 1, Token: models.NewToken(), Kind: models.Attempt, At: time.Now().UTC(), Provider: "sg", Recipients: all,
	}))
	happen := func(kind models.EventKind, reason models.Reason) {
		t.Helper()
		e := models.Event{
			ID: models.NewUserID(), Recipient: 1, Attempt: 1, Provider: "sg", Kind: kind, Reason: reason, At: time.Now().UTC(),
		}
		require.NoError(t, f.store.PutFacts(ctx, models.ChunkFact{Chunk: f.batch, Fact: models.Fact{
			Key: models.EventsKey(models.NewInboxID(time.Now())), Events: []models.Event{e},
		}}))
		entries, facts, err := f.store.Record(ctx, f.batch)
		require.NoError(t, err)
		view := models.Resolve(2, entries, facts).ForFeed()
		require.NoError(t, f.Publish(ctx, f.user, []feed.Chunk{{ID: f.batch, View: view, Of: 1}}))
	}
	happen(models.Deferred, models.MailboxFull)
	require.Empty(t, f.read("").Updates)
	happen(models.Opened, "")
	happen(models.Opened, "")
	happen(models.Clicked, "")
	f.end(f.batch, 2, 2)
	p := f.read("")
	require.Equal(t, []int{1, 2}, recipients(p.Updates))
	for _, u := range p.Updates {
		require.Equal(t, 1, u.Number)
		require.Empty(t, u.Event)
	}
	type published struct {
		models.State
		models.EventKind
		models.Reason
		number int
	}
	var got []published
	for cursor := ""; len(got) < 6; {
		p = f.read("events=all&limit=1%s", after(cursor))
		u := p.Updates[0]
		got, cursor = append(got, published{u.State, u.Event, u.Reason, u.Number}), p.Next
	}
	require.Equal(t, []published{
		{"", models.Deferred, models.MailboxFull, 1},
		{models.Success, "", models.Implied, 1},
		{"", models.Opened, "", 2},
		{"", models.Clicked, "", 3},
		{models.Failed, "", models.Expired, 1},
		{"", models.BatchEnded, "", 1},
	}, got)
	done := p.Updates[0]
	require.True(t, done.Log.IsZero())
	require.Equal(t, f.batch, done.Batch)
	require.Equal(t, map[string]string{"n": "batch", "run": "7"}, done.Metadata)
	require.Equal(t, []string{"welcome"}, done.Tags)
	require.Len(t, f.read("events=batch.done&tag=welcome&batch=%s", f.batch).Updates, 1)
	require.Empty(t, f.read("events=batch.done&tag=other").Updates)
	require.Len(t, f.read("events=log.clicked,log.failed").Updates, 2)
	require.Empty(t, f.read("events=log.clicked&state=failed").Updates)
	r := f.get("/v1/updates?events=log.opened,opened")
	require.Equal(t, http.StatusBadRequest, r.Status)
	require.Contains(t, string(r.Body), `"/events"`)
}

// TestSuppressionUpdates: what is added to a list by the API is reported to those who ask for it, and of everyone's
// list to operators, until the address is erased.
func TestSuppressionUpdates(t *testing.T) {
	t.Parallel()
	f := newFed(t, 1)
	lists := suppression.New(f.store, suppression.DefaultMemory)
	add := func(path, body string) {
		t.Helper()
		r := f.do("POST", path, "application/json", strings.NewReader(body))
		require.Less(t, r.Status, 300, "%s", r.Body)
		require.NoError(t, lists.Publish(t.Context(), time.Now()))
	}
	add("/v1/suppressions", `{"email": "Ada@x.example", "category": "news", "reason": "unsubscribe"}`)
	add("/v1/suppressions", `{"email": "ada@x.example", "category": "news", "reason": "unsubscribe"}`)
	r := f.do("POST", "/v1/suppressions/import", "text/csv", strings.NewReader("email\nada@x.example\nbob@x.example\n"))
	require.Equal(t, http.StatusOK, r.Status, "%s", r.Body)
	require.NoError(t, lists.Publish(t.Context(), time.Now()))
	require.Empty(t, f.read("").Updates)
	p := f.read("events=suppression.added")
	require.Len(t, p.Updates, 3)
	u := p.Updates[0]
	require.Equal(t, []any{models.AddressSuppressed, 1, true}, []any{u.Event, u.Number, u.Log.IsZero()})
	require.Equal(t, "ada@x.example", u.Suppression.Email)
	require.Equal(t, models.FromAPI, u.Suppression.Origin)
	require.Equal(t, models.Unsubscribe, u.Suppression.Reason)
	require.Equal(t, "news", u.Suppression.Category)
	require.Equal(t, models.FromImport, p.Updates[1].Suppression.Origin)
	require.Len(t, f.read("events=all&limit=2&cursor=%s", f.read("events=all&limit=1").Next).Updates, 2)
	for _, filter := range []string{"state=failed", "tag=welcome", "batch=" + f.batch.String()} {
		require.Empty(t, f.read("events=all&%s", filter).Updates)
	}
	require.Equal(t, map[feed.Type]int64{feed.SuppressionAdded: 3}, f.counts("events=all"))

	f.fixture = f.operator()
	add("/v1/suppressions?everyone=true", `{"email": "ada@x.example"}`)
	require.Empty(t, f.get("/v1/notices").object(t)["notices"])
	n := f.get("/v1/notices?events=suppression.added").object(t)["notices"].([]any)[0].(map[string]any)
	require.Equal(t, "suppression.added", n["type"])
	require.Equal(t, "ada@x.example", n["suppression"].(map[string]any)["email"])

	f.erase("ada@x.example")
	require.NoError(t, lists.Publish(t.Context(), time.Now()))
	require.NotContains(t, string(f.get("/v1/updates?events=all").Body), "ada@")
	require.NotContains(t, string(f.get("/v1/notices?events=all").Body), "ada@")
	require.Contains(t, string(f.get("/v1/updates?events=all").Body), "bob@")
}

// TestUpdateFilters selects updates by batch, tag and state.
func TestUpdateFilters(t *testing.T) {
	t.Parallel()
	f := newFed(t, 3)
	other := f.accept(2)
	f.end(f.batch, 3, 1, 2)
	f.end(other, 2, 2)
	require.Len(t, f.read("").Updates, 3)
	p := f.read("batch=%s", other)
	require.Len(t, p.Updates, 1)
	require.Equal(t, other.Log(2), p.Updates[0].Log)
	require.Len(t, f.read("tag=welcome&state=failed").Updates, 3)
	require.Empty(t, f.read("tag=other").Updates)
	require.Empty(t, f.read("state=delivered").Updates)
	require.Len(t, f.read("batch=%s&limit=1&cursor=%s", f.batch, f.read("batch=%s&limit=1", f.batch).Next).Updates, 1)
}

// TestUpdateRanges: ranges of time that touch have each update once, and nothing appears in a range that has
// passed.
func TestUpdateRanges(t *testing.T) {
	t.Parallel()
	f := newFed(t, 200)
	begin := time.Now()
	times := []time.Time{begin}
	for r := 1; r <= 200; r++ {
		f.end(f.batch, 200, r)
		if r%40 == 0 {
			at := time.Now()
			times = append(times, at)
			if r == 80 { // the range is closed: a writer with a slow clock writes behind it
				require.NoError(t, feed.Complete(t.Context(), f.store, f.user, at))
				require.False(t, f.read("to=%s", stamp(at)).Complete.Before(at))
			}
		}
	}
	var all []int
	for i := range times[1:] {
		p := f.read("from=%s&to=%s&limit=1000", stamp(times[i]), stamp(times[i+1]))
		require.False(t, p.Complete.Before(times[i+1].Truncate(time.Microsecond)))
		require.False(t, p.More)
		for _, u := range p.Updates {
			require.False(t, u.At.Before(times[i].Truncate(time.Microsecond)))
			require.True(t, u.At.Before(times[i+1]))
		}
		all = append(all, recipients(p.Updates)...)
	}
	require.Len(t, all, 200)
	require.IsIncreasing(t, all)
	counted := int64(0)
	for i := range times[1:] {
		counted += f.counts("from=%s&to=%s", stamp(times[i]), stamp(times[i+1]))[feed.Failed]
	}
	require.EqualValues(t, 200, counted, "ranges that touch count each update once")
	cursor := f.read("from=%s&limit=7", stamp(begin)).Next
	require.Equal(t, map[feed.Type]int64{feed.Failed: 193, feed.BatchDone: 1}, f.counts("cursor=%s&events=all", cursor))
	require.Empty(t, f.counts("state=delivered"))
	require.Empty(t, f.counts("events=log.opened"))
	p := f.read("from=%s", stamp(time.Now()))
	require.Empty(t, p.Updates)
	require.Empty(t, f.read("from=%s", stamp(time.Now().Add(time.Hour))).Updates)
}

func stamp(t time.Time) string { return url.QueryEscape(t.UTC().Format(time.RFC3339Nano)) }

// TestUpdatesWait: requests wait for updates, more of them than may be made at once, and one poll serves all.
func TestUpdatesWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFed(t, 3, inBubble, func(s *setup) { s.service.Quotas = models.Limits{models.RequestsAtOnce: 20} })
		f.end(f.batch, 3, 1)
		end := f.read("").Next
		began := time.Now()
		require.Empty(t, f.read("wait=100ms&cursor=%s", end).Updates)
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { // a client that leaves
			_, err := f.server.svc.Updates.Read(ctx, f.user, updates.Query{Cursor: end, Wait: updates.MaxWait})
			left <- err
		}()
		leave()
		require.Error(t, <-left)

		var group sync.WaitGroup
		for range 200 {
			group.Go(func() {
				var p updates.Page
				for len(p.Updates) == 0 { // a wait may end, and all come at the same time
					r := f.get("/v1/updates?wait=50s&cursor=" + end)
					if r.Status == http.StatusTooManyRequests {
						time.Sleep(time.Second)
						continue
					}
					if !assert.Equal(t, http.StatusOK, r.Status) || !assert.NoError(t, json.Unmarshal(r.Body, &p)) {
						return
					}
				}
				assert.Equal(t, []int{2}, recipients(p.Updates))
			})
		}
		synctest.Wait()
		f.end(f.batch, 3, 2)
		group.Wait()

		r := f.get("/v1/updates?wait=1h")
		require.Equal(t, http.StatusBadRequest, r.Status)
		done := make(chan updates.Page, 1)
		end = f.read("").Next
		go func() { done <- f.read("wait=50s&cursor=%s", end) }()
		synctest.Wait()
		f.server.svc.Updates.Close() // the server stops
		require.Empty(t, (<-done).Updates)
	})
}

// TestWaitingOfUsers: a user has at most a quarter of the requests that wait, with all keys and for all feeds.
func TestWaitingOfUsers(t *testing.T) {
	t.Parallel()
	f := newFed(t, 1)
	end := f.read("").Next
	ctx, leave := context.WithCancel(t.Context())
	var waiting, left sync.WaitGroup
	reader := f.server.svc.Updates
	for i := range 500 {
		waiting.Add(1)
		left.Go(func() {
			q := updates.Query{Cursor: end, Wait: updates.MaxWait, By: f.user}
			owner := f.user
			if i%2 == 1 {
				q.Cursor, owner = "", feed.Installation
			}
			q.Waits = func() func(context.Context) error {
				waiting.Done()
				return func(context.Context) error { return nil }
			}
			_, _ = reader.Read(ctx, owner, q)
		})
	}
	waiting.Wait()
	r := f.get("/v1/updates?wait=50s&cursor=" + end)
	require.Equal(t, http.StatusTooManyRequests, r.Status)
	require.Equal(t, "too_many_waiting", r.problem(t).Code)
	require.Equal(t, "5", r.Header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, f.get("/v1/updates?cursor="+end).Status)
	require.Equal(t, http.StatusOK, f.get("/v1/updates?wait=1ms", "Authorization", "Bearer "+f.foreign).Status)
	leave()
	left.Wait()
	require.Equal(t, http.StatusOK, f.get("/v1/updates?wait=1ms&cursor="+end).Status)
}

// TestUpdatesAfterWait: a request that has waited is one of those at once again while it is answered.
func TestUpdatesAfterWait(t *testing.T) {
	t.Parallel()
	f := newFed(t, 1, func(s *setup) { s.service.Quotas = models.Limits{models.RequestsAtOnce: 1} })
	end := f.read("").Next
	svc, who := f.server.svc, service.Caller{User: f.user}
	release, _, err := svc.Limits.Admit(t.Context(), who)
	require.NoError(t, err)
	again, err := svc.Updates.Read(t.Context(), f.user, updates.Query{Cursor: end, Wait: time.Millisecond,
		Waits: func() func(context.Context) error {
			release()
			return func(ctx context.Context) error {
				release, err = svc.Limits.Resume(ctx, who)
				return err
			}
		}})
	require.NoError(t, err)
	require.Empty(t, again.Updates)
	require.Equal(t, http.StatusTooManyRequests, f.get("/v1/usage").Status)
	resumed := make(chan error)
	go func() {
		end, err := svc.Limits.Resume(t.Context(), who) // waits for a place
		if err == nil {
			end()
		}
		resumed <- err
	}()
	release()
	require.NoError(t, <-resumed)
	require.Equal(t, http.StatusOK, f.get("/v1/usage").Status)
}

// TestUpdatesAsLines reads updates as NDJSON.
func TestUpdatesAsLines(t *testing.T) {
	t.Parallel()
	const n = 2500
	f := newFed(t, 3)
	ids := make([]feed.Chunk, n)
	for i := range ids {
		ended := []models.Entry{{Number: 1, Kind: models.Ending, Recipients: models.SetOf(1)}}
		ids[i] = feed.Chunk{ID: models.NewBatchID(time.Now()), View: models.Resolve(1, ended, nil).ForFeed()}
	}
	require.NoError(t, f.Publish(t.Context(), f.user, ids))
	for _, limit := range []int{n + 1, n - 1, 5} {
		r := f.get(fmt.Sprintf("/v1/updates?limit=%d", limit), "Accept", "text/html, application/x-ndjson")
		require.Equal(t, http.StatusOK, r.Status)
		require.Equal(t, "application/x-ndjson", r.Header.Get("Content-Type"))
		lines := bytes.Split(bytes.TrimSuffix(r.Body, []byte("\n")), []byte("\n"))
		require.Len(t, lines, min(n, limit)+1)
		seen := map[models.ID]bool{}
		for _, line := range lines[:len(lines)-1] {
			var u feed.Described
			require.NoError(t, json.Unmarshal(line, &u))
			require.False(t, seen[u.Log])
			seen[u.Log] = true
		}
		var end updates.Position
		require.NoError(t, json.Unmarshal(lines[len(lines)-1], &end))
		require.Equal(t, limit < n, end.More)
		require.Len(t, f.read("limit=1000&cursor=%s", end.Next).Updates, min(1000, max(0, n-limit)))
	}
}

// TestExpiredCursor: a cursor before updates that are removed is an error, and not a gap.
func TestExpiredCursor(t *testing.T) {
	t.Parallel()
	f := newFed(t, 5)
	f.end(f.batch, 5, 1)
	cursor := f.read("").Next
	for _, r := range []int{2, 3, 4} {
		f.end(f.batch, 5, r)
	}
	require.NoError(t, feed.Drop(t.Context(), f.store, f.user, time.Now()))
	r := f.get("/v1/updates?cursor=" + cursor)
	require.Equal(t, http.StatusGone, r.Status)
	require.Equal(t, "cursor_expired", r.problem(t).Code)
	require.Equal(t, []int{4}, recipients(f.read("").Updates), "the newest entry is always kept")
}
