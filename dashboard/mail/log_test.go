package mail

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// TestTimesInWholeSeconds: a time that a provider gives in whole seconds is shown as such. What
// comes later never looks as if it took less time.
func TestTimesInWholeSeconds(t *testing.T) {
	t.Parallel()
	known := web.NewProviders(nil)
	second := time.Date(2026, 1, 31, 12, 0, 10, 0, time.UTC)
	at := func(ms int) time.Time { return second.Add(time.Duration(ms) * time.Millisecond) }
	v := viewOf(known, &mail.LogStory{CreatedAt: at(300), Timeline: []models.Moment{
		{What: "accepted", At: at(300)},
		{What: "attempt", Attempt: 1, At: at(310)},
		{What: "answer", Attempt: 1, At: at(547)},
		{What: "event", Event: models.Processed, Attempt: 1, At: second},
		{What: "event", Event: models.Deferred, Attempt: 1, At: at(3000)},
		{What: "event", Event: models.Opened, Attempt: 1, At: at(14_900)},
		{What: "event", Event: models.Clicked, Attempt: 1, At: at(15_000)},
		{What: "event", Event: models.Opened, Attempt: 1, At: at(15_950)},
		{What: "event", Event: models.Clicked, Attempt: 1, At: at(15_000)},
	}})
	var after []string
	for _, m := range v.Story {
		after = append(after, m.After)
	}
	require.Equal(t, []string{"", "10 ms", "247 ms", "less than 1 s", "about 3 s", "14 s", "about 15 s", "15 s",
		"about 16 s"}, after)
	require.Equal(t, "about 16 s", v.Took)

	accepted := viewOf(known, &mail.LogStory{CreatedAt: at(300), Timeline: v.Timeline[:1]})
	require.Equal(t, "–", accepted.Took, "nothing has happened to it")
}

// TestReleasedMessageInWords: the story of a message that was sent again says that it may arrive
// twice only if a provider may have accepted it.
func TestReleasedMessageInWords(t *testing.T) {
	t.Parallel()
	known := web.NewProviders(nil)
	for name, c := range map[string]struct {
		answer models.Class
		event  models.EventKind
		twice  bool
	}{
		"refused":  {answer: models.RejectedHereClass},
		"bounced":  {answer: models.Accepted, event: models.Bounced},
		"accepted": {answer: models.Accepted, twice: true},
		"unknown":  {answer: models.Unknown, twice: true},
	} {
		before := []models.Moment{{What: "attempt", Attempt: 1}, {What: "answer", Attempt: 1, Class: c.answer}}
		if c.event != "" {
			before = append(before, models.Moment{What: "event", Attempt: 1, Event: c.event})
		}
		m := momentOf(known, &models.Moment{What: "release"}, before)
		require.Equal(t, c.twice, strings.Contains(m.Text, "may arrive twice"), name)
	}
	m := momentOf(known, &models.Moment{What: "attempt", Provider: "mg", Because: models.ReleasedManually}, nil)
	require.Equal(t, "Sent to mg", m.Title)
	require.NotContains(t, m.Text, "Reason")
}

// TestOpenLogsShareAReader checks that 200 open logs of a chunk read it once for every
// change, not 200 times.
func TestOpenLogsShareAReader(t *testing.T) {
	t.Parallel()
	const open, changes = 200, 3
	store := &countedRecords{Store: memory.Open(t)}
	broker, err := inproc.New([]string{"sg"}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Close()) }()
	svc := service.New(service.Deps{Store: store, Broker: broker, Providers: []models.Provider{{Name: "sg",
		Kind: "sendgrid", Weight: 1}}, Config: service.Config{SpoolDir: t.TempDir(), Sole: true}})
	defer svc.Close()
	frame, err := web.New(web.Config{Store: store, Providers: web.NewProviders(nil), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer frame.Close()
	pages := newPages(frame, svc)
	who := service.Caller{User: "local"}
	to := make([]service.Recipient, open)
	for i := range to {
		to[i].Email = fmt.Sprintf("user%d@example.com", i)
	}
	in := svc.NewIntake(t.Context(), who)
	defer in.Close()
	in.Batch = intake.Batch{From: "shop@example.com", Subject: "s", Text: "t"}
	require.NoError(t, in.Read(intake.Of(to...)))
	accepted, _, err := svc.Accept(t.Context(), who, in, service.Repeat{})
	require.NoError(t, err)
	batch := accepted.ID
	sources := make([]web.Source, open)
	for i := range sources {
		sources[i] = pages.logSource(who, batch.Log(i+1))
	}
	lookAll := func() []*logView {
		out := make([]*logView, open)
		var wg sync.WaitGroup
		for i := range sources {
			wg.Go(func() {
				v, err := sources[i].Read(t.Context())
				if err == nil {
					out[i], _ = v.(*logView)
				}
			})
		}
		wg.Wait()
		return out
	}
	lookAll()
	before := store.records.Load()
	for n := range int64(changes) {
		// An attempt, and the counts after it.
		require.NoError(
			t,
			store.Append(
				t.Context(),
				batch,
				models.Entry{Number: int(n) + 1, Token: models.NewToken(), Kind: models.Attempt, At: time.Now(),
					Recipients: models.SetOf(int(n) + 1), Provider: "sg"},
			),
		)
		sum := models.Summary{
			Version:   n + 1,
			Accepted:  open,
			Queued:    open,
			Untried:   open - n - 1,
			Providers: map[string]models.ProviderCounts{"sg": {Tried: n + 1}},
		}
		require.NoError(t, store.PutSummaries(t.Context(), models.ChunkSummary{User: who.User, Chunk: batch, Summary: sum}))
		r := pages.chunks.of(who, batch.Log(1))
		r.mu.Lock()
		r.asked = time.Time{} // a second later
		r.mu.Unlock()
		views := lookAll()
		require.Len(t, views[n].Story, 2, "accepted, attempt")
		require.Len(t, views[open-1].Story, 1)
	}
	require.Equal(t, int64(changes), store.records.Load()-before)
}

// countedRecords counts the chunks that are read.
type countedRecords struct {
	models.Store
	records atomic.Int64
}

func (s *countedRecords) Record(ctx context.Context, id models.ID) ([]models.Entry, []models.Fact, error) {
	s.records.Add(1)
	return s.Store.Record(ctx, id)
}

// TestDeliveredByTheLastTry: a message that was tried at a provider twice was delivered by the last try there, and the
// story says that it was sent there again, not that it was rerouted.
func TestDeliveredByTheLastTry(t *testing.T) {
	t.Parallel()
	v := logView{}
	v.Route, v.Providers = []string{"sg", "mg", "sg"}, map[string]bool{"sg": true, "mg": false}
	require.Equal(t, []via{{"sg", false}, {"mg", false}, {"sg", true}}, v.Via())
	known := web.NewProviders([]web.Provider{{Name: "mg", Title: "Mailgun"}, {Name: "sg", Title: "SendGrid"}})
	before := []models.Moment{{What: "attempt", Provider: "sg"}, {What: "answer"}}
	again := models.Moment{What: "attempt", Provider: "sg", Because: "it was busy"}
	require.Equal(t, "Sent to SendGrid (sg) again", momentOf(known, &again, before).Title)
	again.Provider = "mg"
	require.Equal(t, "Routed to Mailgun (mg)", momentOf(known, &again, before).Title)
}
