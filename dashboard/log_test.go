package dashboard

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

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
	parts := a.Send(t.Context(), &models.Call{Batch: id, Attempt: 1, Content: &stored.Content,
		Recipients: []models.CallRecipient{
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
