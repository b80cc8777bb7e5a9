package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	mailgungo "github.com/mailgun/mailgun-go/v4"
	"github.com/mailgun/mailgun-go/v4/events"
	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/mailgun"
	"github.com/safedelivr/safedelivr/api/postmark"
	"github.com/safedelivr/safedelivr/api/resend"
	"github.com/safedelivr/safedelivr/api/sendgrid"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// shapes are the shapes of other services.
var shapes = []string{client.ShapeMailgun, client.ShapeSendGrid, client.ShapePostmark, client.ShapeResend}

// shapeFixture is a fixture whose server speaks all dialects, and may post to this machine.
func shapeFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, func(s *setup) {
		s.cfg.Dialects = []*dialect.Dialect{mailgun.New(), sendgrid.New(), postmark.New(), resend.New()}
		s.service.EndpointClient = outbound.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	})
	f.deps.Providers[0].Carries = models.Capabilities{Copies: true, Headers: true, Variables: true}
	f.serve(f.server.cfg)
	return f
}

// verifyShape verifies a post with the code of applications, and with what the answers about the endpoint have.
func verifyShape(v *client.Endpoint, h http.Header, body []byte) error {
	switch v.Shape {
	case client.ShapeMailgun:
		mg := mailgungo.NewMailgun("", "")
		mg.SetWebhookSigningKey(v.Secret)
		var post mailgungo.WebhookPayload
		if err := json.Unmarshal(body, &post); err != nil {
			return err
		}
		if len(post.Signature.Token) != 50 {
			return fmt.Errorf("token %q", post.Signature.Token)
		}
		ok, err := mg.VerifyWebhookSignature(post.Signature)
		return wrongUnless(ok, err)
	case client.ShapeSendGrid:
		key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(v.PublicKey)
		if err != nil {
			return err
		}
		ok, err := eventwebhook.VerifySignature(key, body, h.Get(eventwebhook.VerificationHTTPHeader),
			h.Get(eventwebhook.TimestampHTTPHeader))
		return wrongUnless(ok, err)
	case client.ShapePostmark:
		return wrongUnless(h.Get("Authorization") == "Basic YTpi", nil)
	}
	as := http.Header{}
	for name := range h {
		as.Set(strings.Replace(name, "Svix-", "Webhook-", 1), h.Get(name))
	}
	hook, err := standardwebhooks.NewWebhook(v.Secret)
	if err != nil {
		return err
	}
	return hook.Verify(body, as)
}

func wrongUnless(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("wrong signature")
	}
	return err
}

// eventOf returns the only event of a post.
func eventOf(t *testing.T, shape string, body []byte) (e map[string]any) {
	t.Helper()
	if shape == client.ShapeSendGrid {
		var list []map[string]any
		require.NoError(t, json.Unmarshal(body, &list))
		require.Len(t, list, 1)
		return list[0]
	}
	require.NoError(t, json.Unmarshal(body, &e))
	if shape == client.ShapeMailgun {
		return e["event-data"].(map[string]any)
	}
	return e
}

// TestTestPostsOfShapes: the code of applications accepts a test post in the shape of each service, and no other one.
func TestTestPostsOfShapes(t *testing.T) {
	t.Parallel()
	f := shapeFixture(t)
	type post struct {
		header http.Header
		body   []byte
	}
	posts := make(chan post, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing is found below
		posts <- post{r.Header, body}
	}))
	t.Cleanup(receiver.Close)
	for _, shape := range shapes {
		hook := `{"url": "` + receiver.URL + `", "shape": "` + shape + `", "headers": {"Authorization": "Basic YTpi"}}`
		v, other := f.endpoint(hook), f.endpoint(hook)
		require.Equal(t, shape, v.Shape)
		test := func() post {
			t.Helper()
			got := f.do(http.MethodPost, "/v1/endpoints/"+v.ID+"/test", "", nil).object(t)
			require.EqualValues(t, http.StatusOK, got["http_status"], "%v", got)
			return <-posts
		}
		first, second := test(), test()
		require.NoError(t, verifyShape(&v, first.header, first.body), shape)
		require.NoError(t, verifyShape(&v, second.header, second.body), shape)
		require.Equal(t, "application/json", first.header.Get("Content-Type"))
		require.Empty(t, first.header.Get("Webhook-Id"))
		require.Contains(t, string(first.body), "test@example.com")
		eventOf(t, shape, first.body)
		if shape == client.ShapePostmark {
			require.Empty(t, v.Secret+v.PublicKey+v.Signature)
			continue
		}
		require.Error(t, verifyShape(&other, first.header, first.body), shape)
		require.Equal(t, shape == client.ShapeSendGrid, v.Secret == "", "either a secret or a public key is shown")
		require.Equal(t, shape == client.ShapeSendGrid, v.PublicKey != "")
		if shape != client.ShapeMailgun { // its signature is not about the body
			require.Error(t, verifyShape(&v, first.header, append(first.body, ' ')), shape)
		}
		shown := f.get("/v1/endpoints/" + v.ID).object(t)
		require.Equal(t, shape, shown["shape"])
		require.NotContains(t, shown, "secret")

		rotated := v
		raw := f.do(http.MethodPost, "/v1/endpoints/"+v.ID+"/rotate", "", nil)
		require.NoError(t, json.Unmarshal(raw.Body, &rotated))
		third := test()
		require.NoError(t, verifyShape(&rotated, third.header, third.body), shape)
		if err := verifyShape(&v, third.header, third.body); shape == client.ShapeResend {
			require.NoError(t, err, "only this shape has room for two signatures")
		} else {
			require.Error(t, err, shape)
		}
	}
}

// TestShapeIsChanged: an endpoint that is changed to a shape which is signed with a secret gets one, in place of a key
// pair. Its settings can be sent as they were read.
func TestShapeIsChanged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	v := f.endpoint(`{"url": "https://example.com/x", "signature": "v1a"}`)
	change := func(body string) (out client.Endpoint) {
		t.Helper()
		r := f.do(http.MethodPut, "/v1/endpoints/"+v.ID, "application/json", strings.NewReader(body))
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
		require.NoError(t, json.Unmarshal(r.Body, &out))
		return out
	}
	sg := change(`{"url": "https://example.com/x", "shape": "sendgrid", "batch": true}`)
	require.Empty(t, sg.Secret)
	require.Regexp(t, "^MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE", sg.PublicKey, "P-256 in PKIX")
	for _, shape := range shapes {
		now := change(`{"url": "https://example.com/x", "shape": "` + shape + `"}`)
		raw, err := json.Marshal(now.EndpointSettings)
		require.NoError(t, err)
		again := change(string(raw))
		require.Equal(t, []string{now.Shape, now.Signature, now.PublicKey},
			[]string{again.Shape, again.Signature, again.PublicKey})
		require.Empty(t, again.Secret, "it is not new")
		require.Equal(t, shape == client.ShapeMailgun, strings.HasPrefix(now.Secret, "whsec_"), shape)
	}
	require.Equal(t, client.ShapeStandard, change(`{"url": "https://example.com/x", "shape": "standard"}`).Shape)
}

// TestShapesOfForeignMail: an application gets back, in the shape of the service whose API it sends by, the ids that the
// API answered, and its own addresses, tags and metadata. The public code of each service reads it.
func TestShapesOfForeignMail(t *testing.T) {
	t.Parallel()
	f := shapeFixture(t)
	require.Equal(t, http.StatusOK, f.multiform("/v3/"+domain+"/messages", "from", "shop@mail.example.com", "to",
		"ann@example.com", "subject", "s", "text", "t", "o:tag", "größe 2", "v:order", "7", "h:Message-Id", "<m1@app.test>").Status)
	sg := f.emails("/v3/mail/send", `{"from": {"email": "shop@mail.example.com"}, "subject": "s", "personalizations": [
		{"to": [{"email": "ann@example.com"}], "subject": "1", "custom_args": {"order": "7"}},
		{"to": [{"email": "bob@example.com"}], "subject": "2", "custom_args": {"order": "8"}}],
		"content": [{"type": "text/plain", "value": "t"}], "categories": ["größe 2"], "headers": {"Message-ID": "<m2@app.test>"}}`)
	require.Equal(t, http.StatusAccepted, sg.Status, string(sg.Body))
	pm := f.emails("/email", `{"From": "shop@mail.example.com", "To": "ann@example.com", "Subject": "s", "TextBody": "t",
		"Tag": "größe 2", "Metadata": {"order": "7"}}`, f.token()...).object(t)
	re := f.emails("/emails", `{"from": "shop@mail.example.com", "to": "ann@example.com", "subject": "s", "text": "t",
		"tags": [{"name": "order", "value": "7"}], "headers": {"X-Order": "№ 7"}}`).object(t)
	bs, _ := f.batches()
	require.Len(t, bs, 5)

	came := map[string][]map[string]any{} // events in the shape of the API that the mail came by
	for _, shape := range shapes {
		v := f.endpoint(`{"url": "https://example.com/x", "shape": "` + shape + `", "headers": {"Authorization": "Basic YTpi"}}`)
		e, err := endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
		require.NoError(t, err)
		for i := range bs {
			u := feed.Update{Log: bs[i].ID.Log(1), Number: 1, State: models.Success, At: time.Now()}
			posts, err := endpoint.NewComposer(f.store).Compose(t.Context(), &e, endpoint.Part{}, []feed.Update{u})
			require.NoError(t, err)
			header, body := e.Request(posts[0].ID(&e), time.Now(), posts[0].Body)
			require.NoError(t, verifyShape(&v, header, body), shape)
			if e := eventOf(t, shape, body); bs[i].Via == shape {
				came[shape] = append(came[shape], e)
			}
		}
	}
	mg := came[client.ShapeMailgun][0]
	raw, err := json.Marshal(mg)
	require.NoError(t, err)
	parsed, err := mailgungo.ParseEvent(raw)
	require.NoError(t, err)
	require.Equal(t, "m1@app.test", parsed.(*events.Delivered).Message.Headers.MessageID)
	require.Equal(t, []any{"größe 2", map[string]any{"order": "7"}, "ann@example.com"},
		[]any{mg["tags"].([]any)[0], mg["user-variables"], mg["recipient"]})
	orders := map[any]bool{}
	for _, e := range came[client.ShapeSendGrid] {
		require.Equal(t, sg.Header.Get("X-Message-Id"), strings.Split(e["sg_message_id"].(string), ".")[0])
		require.Equal(t, []any{"<m2@app.test>", []any{"größe 2"}}, []any{e["smtp-id"], e["category"]})
		orders[e["order"]] = true
	}
	require.Equal(t, map[any]bool{"7": true, "8": true}, orders, "both batches have the id of the answer")
	delivery := came[client.ShapePostmark][0]
	require.Equal(t, []any{pm["MessageID"], "größe 2", map[string]any{"order": "7"}, "Delivery"},
		[]any{delivery["MessageID"], delivery["Tag"], delivery["Metadata"], delivery["RecordType"]})
	data := came[client.ShapeResend][0]["data"].(map[string]any)
	require.Equal(t, []any{re["id"], map[string]any{"order": "7"}, []any{"ann@example.com"},
		[]any{map[string]any{"name": "X-Order", "value": "№ 7"}}},
		[]any{data["email_id"], data["tags"], data["to"], data["headers"]})
}

// TestEventsOfMailgunAreTheSame: a post has the event that a reader of events gets, also of mail that a suppression list
// has stopped.
func TestEventsOfMailgunAreTheSame(t *testing.T) {
	t.Parallel()
	f := shapeFixture(t)
	require.Equal(t, http.StatusOK, f.multiform("/v3/"+domain+"/messages", "from", "shop@mail.example.com", "to",
		"ann@example.com", "subject", "s", "text", "t").Status)
	require.NoError(t, f.store.PutSuppressions(t.Context(), f.user,
		models.NewSuppression("ann@example.com", models.Complaint, models.FromEvent, time.Now())))
	bs, _ := f.batches()
	changes := []models.FeedChange{
		{State: models.Success}, {State: models.Failed, Reason: models.Suppressed}, {Event: models.Opened},
		{State: models.Queued}, {Event: models.Bounced, Reason: models.MailboxFull},
	}
	for i := range changes {
		changes[i].Number, changes[i].Recipients = i+1, models.SetOf(1)
	}
	require.NoError(t, f.store.AppendFeed(t.Context(), f.user, models.FeedEntry{
		Number: 1, Token: models.NewToken(), At: time.Now().UTC(),
		Chunks: []models.FeedChunk{{Chunk: bs[0].ID, Version: 1, Changes: changes}},
	}))
	v := f.endpoint(`{"url": "https://example.com/x", "shape": "mailgun", "events": ["all"]}`)
	e, err := endpoint.In(f.store).Get(t.Context(), f.user, v.ID)
	require.NoError(t, err)
	composer := endpoint.NewComposer(f.store)
	page, err := composer.Read(t.Context(), &e, f.user, feed.Begin, 100)
	require.NoError(t, err)
	posts, err := composer.Compose(t.Context(), &e, endpoint.Part{}, page.Updates)
	require.NoError(t, err)
	var posted []any
	for i := range posts {
		_, body := e.Request(posts[i].ID(&e), time.Now(), posts[i].Body)
		posted = append(posted, eventOf(t, client.ShapeMailgun, body))
	}
	require.Len(t, posted, 4, "all but that it is sent again")
	require.Equal(t, posted, f.get("/v3/" + domain + "/events").object(t)["items"])
	require.Contains(t, fmt.Sprint(posted), "code:607")
}
