package api

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mail"
)

// story stores attempts, answers, events and an ending for the four recipients of a batch, and
// its summary, as workers do. It returns the time of acceptance.
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
	f.sum(b)
	return at
}

// sum stores the sums of a batch of one chunk, as a worker does.
func (f *fixture) sum(b *models.Batch) {
	f.Helper()
	ctx := f.Context()
	entries, facts, err := f.store.Record(ctx, b.ID)
	require.NoError(f, err)
	sum := models.Resolve(b.Recipients, entries, facts).SummaryOf(b.ID, nil)
	require.NoError(f, f.store.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: sum}))
	for _, l := range models.Levels {
		err := f.store.RollUp(ctx, models.SpanOf(b.User, l, b.Created()))
		require.NoError(f, err)
	}
}

// oneLog is the answer to GET /v1/logs/{id}.
type oneLog struct {
	mail.LogView
	BatchID  models.ID       `json:"batch_id"`
	Subject  string          `json:"subject"`
	Timeline []models.Moment `json:"timeline"`
}

// four accepts a batch with four recipients.
func (f *fixture) four() *models.Batch {
	f.Helper()
	_, b, _ := f.accepted(
		f.post(batchOf(f, `{"to": ["a@b.de", "Bea <b@b.de>", "c@b.de", "d@b.de"], "providers": ["sg", "mg"]}`)),
	)
	return &b
}

// TestLog: a log has its state, its reason and its timeline.
func TestLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	queued := read[oneLog](f, "/v1/logs/"+b.ID.Log(1).String())
	require.Equal(t, models.Queued, queued.State)
	require.Equal(t, "waiting to be handed to a provider", queued.ReasonText)
	require.Equal(t, map[string]bool{}, queued.Providers)
	require.Len(t, queued.Timeline, 1)

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
		story = append(story, fmt.Sprintf("%ds %s %s %s%s %d %s",
			int(m.At.Sub(at).Seconds()), m.What, m.Provider, m.Class, m.Event, m.Status, m.Because))
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
	require.Equal(t, models.ProviderUnavailable, l.Reason)
	require.Equal(t, models.RetriesUsedUp, l.EndedBy)
	require.Equal(t, "the provider was not available; all retries have failed", l.ReasonText)
	l = read[oneLog](f, "/v1/logs/"+b.ID.Log(4).String())
	require.Equal(t, models.Sent, l.State)
	require.Equal(t, "accepted by sg; no final event yet", l.ReasonText)

	for _, none := range []models.ID{b.ID.Log(5), b.ID.Chunk(1).Log(1)} {
		require.Equal(t, "not_found", f.get("/v1/logs/"+none.String()).problem(t).Code)
	}
}

// TestImpliedAndGuessed: the log and the timeline of a recipient who opened the mail say that no delivery was reported.
// If a bounce named only the address, they say that it is a guess.
func TestImpliedAndGuessed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	at := f.story(b)
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: models.Fact{
		Key: models.EventsKey(models.NewInboxID(at.Add(time.Second))),
		Events: []models.Event{
			{ID: "3", Recipient: 4, Attempt: 1, Provider: "sg", Kind: models.Opened, At: at.Add(7 * time.Second)},
			{ID: "4", Recipient: 1, Attempt: 2, Provider: "mg", Kind: models.Bounced, Reason: models.MailboxFull,
				At: at.Add(8 * time.Second), Guess: true},
		},
	}}))
	l := read[oneLog](f, "/v1/logs/"+b.ID.Log(4).String())
	require.Equal(t, []any{models.Success, models.Implied}, []any{l.State, l.Reason})
	require.Equal(t, models.Implied.Words(), l.ReasonText)
	require.Equal(t, models.Opened, l.Timeline[len(l.Timeline)-1].Event)
	for _, m := range l.Timeline {
		require.NotEqual(t, models.Delivered, m.Event)
	}
	l = read[oneLog](f, "/v1/logs/"+b.ID.Log(1).String())
	for _, m := range l.Timeline {
		require.Equal(t, m.Event == models.Bounced, m.Guess, m.Event)
	}
	require.Equal(t, models.Bounced, l.Timeline[len(l.Timeline)-1].Event)
}

// TestListLogs: pages list the logs in a state in order.
func TestListLogs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b)
	path := batchPath(b.ID) + "/logs"
	for state, want := range map[string][]string{
		"":          {"a@b.de", "b@b.de", "c@b.de", "d@b.de"},
		"delivered": {"a@b.de"},
		"failed":    {"b@b.de", "c@b.de"},
		"queued":    nil,
		"sent":      {"d@b.de"},
		"cancelled": nil,
	} {
		for limit := 1; limit <= 4; limit++ {
			var got []string
			selected := ""
			if state != "" {
				selected = "&state=" + state
			}
			for cursor := ""; ; {
				page := read[logList](f, fmt.Sprintf("%s?limit=%d%s%s", path, limit, selected, after(cursor)))
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

// TestListLogsOfManyChunks: pages span chunks, and chunks without a log in the state are not
// read.
func TestListLogsOfManyChunks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := testkit.Mails(12_500, 60_500)
	_, b, rs := f.accepted(f.post(batchOf(t, `{"to": [`+numbered(0, n)+`]}`)))
	path := batchPath(b.ID) + "/logs?limit=500"
	got := 0
	for cursor := ""; ; {
		page := read[logList](f, path+after(cursor))
		for _, l := range page.Logs {
			require.Equal(t, rs[got].Email, l.Email)
			got++
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	require.Equal(t, n, got)

	// The last chunk has one failed log. The summaries of the others have none.
	last := b.ID.Chunk(b.Chunks - 1)
	require.NoError(t, f.store.Append(t.Context(), last, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         b.Created(),
		Recipients: models.SetOf(500),
		Reason:     models.Expired,
	}))
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

	// Without summaries one request reads a limited number of chunks.
	reads = 0
	page = read[logList](f, path+"&state=cancelled")
	require.Empty(t, page.Logs)
	require.LessOrEqual(t, reads, 50, "of %d chunks", b.Chunks)
}
