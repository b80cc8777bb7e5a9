package dashboard

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
)

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

// TestRetryNamesWhoGaveIt: the story of a message that was sent again names who gave the command, if that is known.
func TestRetryNamesWhoGaveIt(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.mixed("local", 4).Log(4) // its outcome is unknown
	who := service.Caller{User: "local"}
	_, _, err := f.service.Commands.ReleaseLog(t.Context(), who, id.String(), "", service.Repeat{})
	require.NoError(t, err)
	commands, err := f.store.Commands(t.Context(), 0, 100)
	require.NoError(t, err)
	for n, command := range []int{commands[len(commands)-1].Number, 1 << 20} {
		require.NoError(t, f.store.Append(t.Context(), id.ChunkID(), models.Entry{
			Number:     6 + n,
			Token:      models.NewToken(),
			Kind:       models.Release,
			At:         time.Now(),
			Recipients: models.SetOf(4),
			Command:    command,
			MayDouble:  true,
		}))
	}
	text := textOf(b.get("/logs/" + id.String()).text)
	require.Contains(t, text, "Retried manually by local It is sent again. It may arrive twice")
	require.Contains(t, text, "Retried manually It is sent again. It may arrive twice")
}

// TestAnswerThatIsAPage: an answer of a provider that is HTML is shown as its status and its text, on the page of the
// recipient and in the notice about the outage.
func TestAnswerThatIsAPage(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "<html><head><title>503 Service Temporarily Unavailable</title></head>"+
			"<body><h1>503 Service Temporarily Unavailable</h1><hr>nginx</body></html>")
	}))
	defer proxy.Close()
	a, err := providers.New(providers.Settings{
		Name: "sg", Kind: "sendgrid", APIKey: "k", BaseURL: proxy.URL, Events: models.EventsNone, Timeout: time.Minute,
	})
	require.NoError(t, err)
	defer a.Close()
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
	stored, err := f.store.Batch(t.Context(), id)
	require.NoError(t, err)
	parts := a.Send(t.Context(), &models.Call{Batch: id, Attempt: 1, Content: &stored.Content, Recipients: []models.CallRecipient{
		{Log: id.Log(1), Recipient: models.Recipient{Email: "a@example.com"}},
		{Log: id.Log(2), Recipient: models.Recipient{Email: "b@example.com"}},
	}})
	require.Len(t, parts, 1)
	f.called(id, 1, time.Now().Add(-time.Minute), time.Second, "sg", parts[0])
	const words = "503 Service Temporarily Unavailable nginx"
	require.Contains(t, textOf(b.get("/batches/"+id.String()).text), "It answered: "+words+".")
	page := b.get("/logs/" + id.Log(1).String()).text
	require.Contains(t, textOf(page), words)
	require.NotContains(t, page, "&lt;html&gt;")
}

// TestOpenLogsShareAReader checks that 200 open logs of a chunk read it once for every
// change, not 200 times.
func TestOpenLogsShareAReader(t *testing.T) {
	t.Parallel()
	const open, changes = 200, 3
	f := newRig(t, nil)
	who := service.Caller{User: "local"}
	to := make([]service.Recipient, open)
	for i := range to {
		to[i].Email = fmt.Sprintf("user%d@example.com", i)
	}
	batch := f.batchOf(who.User, nil, to...)
	sources := make([]web.Source, open)
	for i := range sources {
		sources[i] = f.board.logSource(who, batch.Log(i+1))
	}
	lookAll := func() []*logView {
		out := make([]*logView, open)
		var wg sync.WaitGroup
		for i := range sources {
			wg.Go(func() {
				v, err := sources[i].Read(f.Context())
				if err == nil {
					out[i], _ = v.(*logView)
				}
			})
		}
		wg.Wait()
		return out
	}
	lookAll()
	before := f.store.records.Load()
	for n := range int64(changes) {
		// An attempt, and the counts after it.
		require.NoError(
			t,
			f.store.Append(
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
		require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: who.User, Chunk: batch, Summary: sum}))
		r := f.board.chunks.of(who, batch.Log(1))
		r.mu.Lock()
		r.asked = time.Time{} // a second later
		r.mu.Unlock()
		views := lookAll()
		require.Len(t, views[n].Story, 2, "accepted, attempt")
		require.Len(t, views[open-1].Story, 1)
	}
	require.Equal(t, int64(changes), f.store.records.Load()-before)
}

// TestPagesOfEnvelope: the page of each address of a mail with cc and bcc says its role, and hides those in bcc
// else. The list has the roles, too.
func TestPagesOfEnvelope(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	in := f.service.NewIntake(t.Context(), service.Caller{User: "local"})
	defer in.Close()
	in.Batch = intake.Batch{From: "shop@example.com", Subject: "s", Text: "t",
		CC: []string{"Bob <bob@example.com>"}, BCC: []string{"lou@example.com", "eve@example.com"}}
	require.NoError(t, in.Read(intake.Of(service.Recipient{Email: "ann@example.com"})))
	a, _, err := f.service.Accept(t.Context(), service.Caller{User: "local"}, in, service.Repeat{})
	require.NoError(t, err)
	id := a.ID
	for n, role := range map[int]string{1: "to", 2: "cc", 3: "bcc"} {
		page := b.get("/logs/" + id.Log(n).String()).text
		require.Contains(t, page, "<dt>To</dt><dd>ann@example.com</dd>")
		require.Contains(t, page, "<dt>Cc</dt><dd>Bob &lt;bob@example.com&gt;</dd>")
		require.Equal(t, n == 3, strings.Contains(page, "<dt>Bcc</dt><dd>lou@example.com, not shown to others</dd>"))
		if role != "to" {
			require.Contains(t, b.get("/batches/"+id.String()).text, `<span class="small muted">`+role+`</span>`)
		}
	}
}

// TestPageOfImpliedAndGuessed: the page of a recipient who opened the mail says that no delivery was reported, and the
// page of one whose bounce named only the address that it is a guess.
func TestPageOfImpliedAndGuessed(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
	both, at := models.SetTo(2), time.Now().UTC()
	require.NoError(t, f.store.Append(t.Context(), id, models.Entry{
		Number: 1, Token: models.NewToken(), Kind: models.Attempt, At: at, Recipients: both, Provider: "sg",
	}))
	for _, fact := range []models.Fact{
		{Key: models.OutcomeKey(1), Outcome: &models.Outcome{Attempt: 1, At: at, Parts: []models.Part{
			{Class: models.Accepted, Recipients: both},
		}}},
		{Key: models.EventsKey(models.NewInboxID(at)), Events: []models.Event{
			{ID: "1", Recipient: 1, Attempt: 1, Provider: "sg", Kind: models.Opened, At: at},
			{ID: "2", Recipient: 2, Attempt: 1, Provider: "sg", Kind: models.Bounced, Reason: models.MailboxInvalid, At: at,
				Guess: true},
		}},
	} {
		require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	}
	implied, guessed := b.get("/logs/"+id.Log(1).String()).text, b.get("/logs/"+id.Log(2).String()).text
	require.Contains(t, implied, models.Implied.Words())
	require.Contains(t, implied, "Opened")
	require.NotContains(t, implied, "This is a guess")
	require.Contains(t, guessed,
		"This is a guess: SendGrid (sg) named only the address, and this is the only recent mail to it.")
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
