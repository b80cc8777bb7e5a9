package postmark

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// TestRequests compares requests with testdata/request.
func TestRequests(t *testing.T) {
	p := adapter(t, "")
	files := kindtest.Files(2, "{{name}}")
	files.Content.HTML, files.Content.TrackOpens, files.Content.TrackClicks = "<p>{{name}}</p>", true, true
	kindtest.Requests(t, p, map[string]*models.Call{
		"files": files, "batch": providertest.SampleCall(2), "together": kindtest.Together(),
	})
	large := providertest.SampleCall(2)
	large.Content.Text = strings.Repeat("x", 5_000_001)
	_, refused := p.Compose(large)
	require.Equal(t, models.TooLarge, refused[0].Reason)
	require.Zero(t, refused[0].Fewer)
}

// TestWebhooks parses every documented event.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 30) }

// TestSecrets: only the secret proves who sent a post, in the form that it has. A doubled post has the same event.
func TestSecrets(t *testing.T) {
	p := adapter(t, "")
	body := []byte(`{"RecordType":"Open","MessageID":"m","Recipient":"a@b.test","ReceivedAt":"2026-11-21T12:00:00Z",` +
		`"Metadata":{"sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":"1"}}`)
	for value, ok := range map[string]bool{
		kindtest.Basic("hook:a long password"):                                          true,
		"basic " + strings.TrimPrefix(kindtest.Basic("hook:a long password"), "Basic "): true,
		"Bearer old-bearer-token":                                                       true,
		"":                                                                              false,
		"Basic":                                                                         false,
		kindtest.Basic("hook:a long passwor"):                                           false,
		kindtest.Basic("hook:a long password "):                                         false,
		kindtest.Basic("old-bearer-token"):                                              false,
		"Basic old-bearer-token":                                                        false,
		"Bearer hook:a long password":                                                   false,
		"Bearer " + strings.TrimPrefix(kindtest.Basic("hook:a long password"), "Basic "): false,
		"Bearer old-bearer-token x": false,
	} {
		h := http.Header{}
		h.Set("Authorization", value)
		_, err := providertest.Verify(p, h, body, time.Now())
		require.Equal(t, ok, err == nil, "%q: %v", value, err)
		early := p.VerifyHeader(&models.Webhook{Header: h})
		require.Equal(t, err, early, "the header says it all")
	}
	first, again := p.Parse(body), p.Parse(body)
	require.Equal(t, first, again, "a doubled post has the same event")
	other := bytes.Replace(body, []byte("12:00:00Z"), []byte("12:00:01Z"), 1)
	require.NotEqual(t, p.Parse(body).Events[0].Event.ID, p.Parse(other).Events[0].Event.ID)
	require.Empty(t, p.Parse(body[:len(body)-20]).Events, "a truncated post")
}

func TestCheck(t *testing.T) {
	require.Empty(t, Spec.Check(testSettings("")))
	for _, key := range []string{"short", " user:password", "user:pass\nword"} {
		s := testSettings("")
		s.WebhookKey = key
		require.Len(t, Spec.Check(s), 1, key)
	}
	s := testSettings("")
	s.WebhookKey, s.WebhookKeyOld, s.Events = "", "", models.EventsNone
	p, err := New(s)
	require.NoError(t, err)
	_, err = providertest.Verify(p, http.Header{"Authorization": {"Bearer "}}, []byte("{}"), time.Now())
	var refusal *models.WebhookError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "not_configured", refusal.Code)
}

const mailLog = "01930000-0000-7000-8abc-def000000001"

// A fake is a server that has messages and their events.
type fake struct {
	t     *testing.T
	total int // messages of ours; the first has events
	gone  int // status for a bounce that does not exist any more
	asked []string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked = append(f.asked, r.URL.RequestURI())
	if r.Header.Get("X-Postmark-Server-Token") != "server-token" {
		f.t.Error("a request without the token")
	}
	switch {
	case r.URL.Path == "/messages/outbound":
		var list []string
		offset := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &offset)
		for i := offset; i < min(offset+500, f.total); i++ {
			metadata := `{"sd_log":"` + mailLog + `","sd_attempt":"3"}`
			if i > 0 {
				metadata = `{"other":"x"}`
			}
			list = append(list, fmt.Sprintf(`{"MessageID":"m%d","Metadata":%s,"Status":"Sent","Recipients":["ann@rcpt.test"],`+
				`"ReceivedAt":"2026-11-21T10:59:00Z"}`, i, metadata))
		}
		_, _ = fmt.Fprintf(w, `{"TotalCount":"%d","Messages":[%s]}`, f.total, strings.Join(list, ","))
	case r.URL.Path == "/messages/outbound/m0/details":
		_, _ = w.Write([]byte(`{"MessageEvents":[
			{"Recipient":"ann@rcpt.test","Type":"Transient","ReceivedAt":"2026-11-21T11:00:00Z",
				"Details":{"DeliveryMessage":"smtp;421 4.7.0 later"}},
			{"Recipient":"ann@rcpt.test","Type":"Delivered","ReceivedAt":"2026-11-21T12:00:00Z",
				"Details":{"DeliveryMessage":"smtp;250 OK"}},
			{"Recipient":"ann@rcpt.test","Type":"Opened","ReceivedAt":"2026-11-21T12:01:00Z","Details":{}},
			{"Recipient":"ann@rcpt.test","Type":"LinkClicked","ReceivedAt":"2026-11-21T12:02:00Z",
				"Details":{"Link":"https://x.test"}},
			{"Recipient":"ann@rcpt.test","Type":"SubscriptionChanged","ReceivedAt":"2026-11-21T12:02:00Z"},
			{"Recipient":"ann@rcpt.test","Type":"Bounced","ReceivedAt":"2026-11-21T12:02:30Z","Details":{"BounceID":"1"}},
			{"Recipient":"ann@rcpt.test","Type":"Bounced","ReceivedAt":"2026-11-21T12:03:00Z",
				"Details":{"BounceID":"901542550"}}]}`))
	case r.URL.Path == "/bounces/1":
		w.WriteHeader(f.gone)
	case r.URL.Path == "/bounces/901542550":
		_, _ = w.Write(
			[]byte(`{"ID":901542550,"Type":"HardBounce","Email":"ann@rcpt.test","BouncedAt":"2026-11-21T12:03:00.5Z",` +
				`"Details":"smtp;550 5.1.1 unknown","MessageID":"m0"}`),
		)
	default:
		w.WriteHeader(http.StatusUnprocessableEntity)
	}
}

// TestLookUp reads the events of a wanted message, by the ids of webhooks. Messages of others are left out, and so is a
// bounce that Postmark no longer has.
func TestLookUp(t *testing.T) {
	for _, gone := range []int{http.StatusUnprocessableEntity, http.StatusNotFound} {
		testLookUp(t, &fake{t: t, total: 600, gone: gone})
	}
}

func testLookUp(t *testing.T, f *fake) {
	server := httptest.NewServer(f)
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	begun := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	q := models.LookupQuery{
		From:      begun,
		To:        begun.Add(24 * time.Hour),
		SentBy:    begun.Add(time.Hour),
		Recipient: "ann@rcpt.test",
	}
	var got []string
	post := func(body []byte) error {
		parsed := p.Parse(body)
		require.Len(t, parsed.Events, 1, "%s: %v", body, parsed.Skipped)
		e := parsed.Events[0]
		require.Equal(t, mailLog, e.Log.String())
		require.Equal(t, 3, e.Event.Attempt)
		require.Equal(t, "ann@rcpt.test", e.Address)
		got = append(got, string(e.Event.Kind))
		if e.Event.Kind == models.Bounced {
			require.Equal(t, "901542550", e.Event.ID)
			require.Equal(t, models.MailboxInvalid, e.Event.Reason)
		}
		return nil
	}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Equal(t, []string{"deferred", "delivered", "opened", "clicked", "bounced", "processed"}, got)
	require.Len(t, f.asked, 5)
	require.Equal(t, "/messages/outbound?count=500&fromdate=2026-11-21T07%3A00%3A00&offset=0&recipient=ann%40rcpt.test"+
		"&todate=2026-11-21T09%3A00%3A01", f.asked[0], "the times of the East Coast, in winter and in summer")

	got, q.Chunks = nil, map[models.ID]bool{}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Empty(t, got)

	enough := errors.New("enough")
	q.Chunks = nil
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return enough }), enough)

	f.total = 20_000
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return nil }), models.ErrPartialLogs)
}

// TestInspect asks a server that answers as Postmark does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/pm"
	all := `"Triggers":{"Open":{"Enabled":true},"Click":{"Enabled":true},"Delivery":{"Enabled":true},` +
		`"Bounce":{"Enabled":true},` +
		`"SpamComplaint":{"Enabled":true},"SubscriptionChange":{"Enabled":true}}`
	ok, events := "ok may send mail as the server Shop", "ok go to "+hook
	for name, c := range map[string]struct {
		server, webhooks string
		status           int
		want             []string
	}{
		"all is well": {`{"Name":"Shop","DeliveryType":"Live"}`,
			`{"Webhooks":[{"Url":"` + hook + `","HttpAuth":{"Username":"u","Password":"p"},` + all + `}]}`, 200,
			[]string{ok, events, "ok have a secret"}},
		"in the URL": {`{"Name":"Shop","DeliveryType":"Live"}`,
			`{"Webhooks":[{"Url":"https://u:p@mail.example.com/webhooks/pm",` + all + `}]}`, 200,
			[]string{ok, events, "ok have a secret"}},
		"no secret": {`{"Name":"Shop","DeliveryType":"Live"}`, `{"Webhooks":[{"Url":"` + hook + `",` + all + `}]}`, 200,
			[]string{ok, events, "wrong have no secret"}},
		"elsewhere": {`{"Name":"Shop","DeliveryType":"Sandbox"}`,
			`{"Webhooks":[{"Url":"https://u:p@x.test",` + all + `}]}`, 200,
			[]string{"wrong is of a sandbox server", "wrong do not go to " + hook +
				" for: Delivery, Bounce, SpamComplaint, Open, "}},
		"wrong key": {`{"ErrorCode":10}`, "", 401, []string{"wrong Postmark refuses the key (401)"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(map[string]string{"/server": c.server, "/webhooks": c.webhooks}[r.URL.Path]))
		}))
		p := adapter(t, server.URL)
		account, err := p.Inspect(t.Context(), hook)
		kindtest.Found(t, account, err, name, c.want...)
		p.Close()
		server.Close()
	}
}

// TestUnlistRefused: Postmark keeps complaints.
func TestUnlistRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"Suppressions":[{"EmailAddress":"ann@rcpt.test","Status":"Failed","Message":"no"}]}`))
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	err := p.Unlist(t.Context(), "SpamComplaint", "ann@rcpt.test")
	require.ErrorContains(t, err, "does not remove")
	require.NotContains(t, err.Error(), "ann")
}

func FuzzParse(f *testing.F) { kindtest.FuzzParse(f, adapter(f, "")) }

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	f.Add("Basic aG9vazphIGxvbmcgcGFzc3dvcmQ")
	f.Add("Bearer x")
	f.Fuzz(func(t *testing.T, value string) {
		h := http.Header{"Authorization": {value}}
		_, err := providertest.Verify(p, h, []byte("{}"), time.Now())
		scheme, token, _ := strings.Cut(value, " ")
		ours := strings.EqualFold(scheme, "bearer") && token == "old-bearer-token" || strings.EqualFold(scheme, "basic") &&
			"Basic "+token == kindtest.Basic("hook:a long password")
		if (err == nil) != ours {
			t.Errorf("%q: %v", value, err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, []byte(a.Body))
		if a.Each != nil {
			f.Add(a.Status, []byte(a.Each(3)))
		}
	}
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		providertest.Check(t, c, p.classify(c, transport.Answer{Status: status, Body: body}, time.Now()))
	})
}

func BenchmarkCompose500(b *testing.B) { kindtest.Compose(b, adapter(b, ""), 500, 1) }
