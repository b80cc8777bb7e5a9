package mailjet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
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
	files.Content.HTML, files.Content.TrackOpens = "<p>{{name}}</p>", true
	kindtest.Requests(t, p, map[string]*models.Call{
		"files": files, "batch": providertest.SampleCall(2), "together": kindtest.Together(),
	})
}

// TestUnfit: a mail that Mailjet would refuse or change is not sent, and the mails to others are.
func TestUnfit(t *testing.T) {
	p := adapter(t, "")
	for name, change := range map[string]func(c *models.Call){
		"code in a value": func(c *models.Call) { c.Recipients[1].Vars["order"] = "[[data:firstname]]" },
		"code out of two": func(c *models.Call) {
			c.Content.Text = "[{{order}}]]"
			c.Recipients[1].Vars["order"] = "[ var:x"
		},
		"a long subject": func(c *models.Call) { c.Recipients[1].Vars["order"] = strings.Repeat("ü", 256) },
		"a forbidden header": func(c *models.Call) {
			c.Recipients[1].Headers = []models.Header{{Name: "X-MJ-CustomID", Value: "x"}}
		},
	} {
		c := providertest.SampleCall(3)
		change(c)
		_, refused := p.Compose(c)
		require.Len(t, refused, 2, name)
		require.Equal(t, models.RejectedHereClass, refused[0].Class, name)
		require.Equal(t, models.SetOf(2), refused[0].Recipients, name)
		require.Equal(t, models.Split, refused[1].Class, name)
	}
	c := providertest.SampleCall(1)
	c.Content.HTML = "<p>[[var]] [data:x] [[ var x]]</p>"
	_, refused := p.Compose(c)
	require.Empty(t, refused, "no code of Mailjet")
}

// TestMessageID: an ID above 2^53 stays as it is.
func TestMessageID(t *testing.T) {
	p, c := adapter(t, ""), providertest.SampleCall(1)
	parts := p.classify(c, transport.Answer{Status: 200, Body: []byte(acceptance(1))}, time.Now())
	require.Equal(t, "70650219165027411", parts[0].MessageID)
}

// TestBrokenOff: an answer that broke off may have had acceptances, and that of a proxy has none.
func TestBrokenOff(t *testing.T) {
	p, c := adapter(t, ""), providertest.SampleCall(2)
	for body, want := range map[string]models.Class{
		"":                                models.Unknown,
		"{":                               models.Unknown,
		`{"Mess`:                          models.Unknown,
		`{"Messages":[{"Status":"succe`:   models.Unknown,
		`{ "Messages": [{"Status":"succe`: models.Unknown,
	} {
		for _, status := range []int{200, 400, 401, 403, 429} {
			parts := p.classify(c, transport.Answer{Status: status, Body: []byte(body), Cut: true}, time.Now())
			require.Len(t, parts, 1)
			require.Equal(t, want, parts[0].Class, "%d %s", status, body)
		}
	}
	parts := p.classify(c, transport.Answer{Status: 400, Body: []byte("<html>"), Cut: true}, time.Now())
	require.Equal(t, models.RejectedHereClass, parts[0].Class)
}

// TestListed: the results of mails count with every status 2xx and 4xx. Those that cannot be read, or that come with a
// failure of the server, may have been acceptances.
func TestListed(t *testing.T) {
	p, c := adapter(t, ""), providertest.SampleCall(2)
	parts := p.classify(c, transport.Answer{Status: 503, Body: []byte(acceptance(2))}, time.Now())
	require.Equal(t, models.Unknown, parts[0].Class)
	for _, status := range []int{200, 400, 401, 403, 429} {
		body := `{"Messages":[` + success(0) + `,{"Status":"error","Errors":[{"ErrorCode":"mj-0001"}]}]}`
		parts := p.classify(c, transport.Answer{Status: status, Body: []byte(body)}, time.Now())
		require.Len(t, parts, 2, status)
		require.Equal(t, models.Accepted, parts[0].Class, status)
		require.Equal(t, models.AccountClass, parts[1].Class, status)
		parts = p.classify(c, transport.Answer{Status: status, Body: []byte(`{ "Messages": [{]}`)}, time.Now())
		require.Equal(t, models.Unknown, parts[0].Class, status)
	}
}

// TestTogether: of one mail to several, a bad address is not looked for.
func TestTogether(t *testing.T) {
	p, c := adapter(t, ""), providertest.SampleCall(3)
	for i, role := range []models.Role{models.To, models.CC, models.BCC} {
		c.Recipients[i].Role = role
	}
	body := `{"Messages":[{"Status":"error","Errors":[{"ErrorCode":"mj-0013","ErrorRelatedTo":["Cc[0].Email"]}]}]}`
	parts := p.classify(c, transport.Answer{Status: 400, Body: []byte(body)}, time.Now())
	require.Len(t, parts, 1)
	require.Equal(t, models.RejectedHereClass, parts[0].Class)
	require.Equal(t, c.Numbers(), parts[0].Recipients)
}

// TestWebhooks parses every documented event.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 32) }

// TestSecrets: only the secret proves who sent a post. A doubled post has the same events, in any order.
func TestSecrets(t *testing.T) {
	p := adapter(t, "")
	body, err := os.ReadFile("testdata/webhook/grouped.json")
	require.NoError(t, err)
	for value, ok := range map[string]bool{
		kindtest.Basic(hookKey): true, kindtest.Basic(oldKey): true,
		"": false, "Basic": false, kindtest.Basic(hookKey + " "): false,
		"Bearer " + hookKey: false, kindtest.Basic("public:private"): false,
	} {
		_, err := providertest.Verify(p, http.Header{"Authorization": {value}}, body, time.Now())
		require.Equal(t, ok, err == nil, "%q: %v", value, err)
	}
	first, again := p.Parse(body), p.Parse(body)
	require.Equal(t, first, again, "a doubled post has the same events")
	var list []json.RawMessage
	require.NoError(t, json.Unmarshal(body, &list))
	list[0], list[1] = list[1], list[0]
	turned, _ := json.Marshal(list)
	require.ElementsMatch(t, p.Parse(body).Events, p.Parse(turned).Events, "another order has the same events")
	require.Empty(t, p.Parse(body[:len(body)-20]).Events, "a truncated post")
}

func TestCheck(t *testing.T) {
	require.Empty(t, Spec.Check(testSettings("")))
	for _, key := range []string{"", "two words"} {
		s := testSettings("")
		s.SecretKey = key
		require.Len(t, Spec.Check(s), 1, key)
	}
}

const mailLog = "01930000-0000-7000-8abc-def000000001"

// A fake is a server that has messages and their histories.
type fake struct {
	t     *testing.T
	total int // messages; the first is ours
	asked []string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked = append(f.asked, r.URL.RequestURI())
	if r.Header.Get("Authorization") != kindtest.Basic("public:private") {
		f.t.Error("a request without the keys")
	}
	switch r.URL.Path {
	case "/v3/REST/message":
		var list []string
		offset := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("Offset"), &offset)
		for i := offset; i < min(offset+1000, f.total); i++ {
			custom := mailLog + ".3"
			if i > 0 {
				custom = "other"
			}
			list = append(list, fmt.Sprintf(`{"ID":%d,"CustomID":%q,"ContactAlt":"Ann@rcpt.test","StatePermanent":true}`,
				70650219165027411+i, custom))
		}
		_, _ = fmt.Fprintf(w, `{"Count":1,"Data":[%s],"Total":%d}`, strings.Join(list, ","), f.total)
	case "/v3/REST/messagehistory/70650219165027411":
		_, _ = w.Write([]byte(`{"Count":5,"Total":5,"Data":[{"EventType":"sent","EventAt":1795262400,"Comment":"250 OK"},
			{"EventType":"opened","EventAt":1795262401,"Comment":""},{"EventType":"click","EventAt":1795262402},
			{"EventType":"hardbounced","EventAt":1795262403,"Comment":"550 5.1.1 unknown","State":"user unknown"},
			{"EventType":"queued","EventAt":1795262399}]}`))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// TestLookUp reads the events of a wanted message, as webhooks have them. Messages of others are left out.
func TestLookUp(t *testing.T) {
	f := &fake{t: t, total: 1600}
	server := httptest.NewServer(f)
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	begun := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	q := models.LookupQuery{From: begun, To: begun.Add(24 * time.Hour), SentBy: begun.Add(time.Hour),
		Recipient: "ann@rcpt.test"}
	var got []string
	post := func(body []byte) error {
		parsed := p.Parse(body)
		require.Empty(t, parsed.Skipped)
		for _, e := range parsed.Events {
			require.Equal(t, mailLog, e.Log.String())
			require.Equal(t, 3, e.Event.Attempt)
			got = append(got, string(e.Event.Kind)+" "+string(e.Event.Reason))
		}
		return nil
	}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Equal(t, []string{"processed ", "delivered ", "opened ", "clicked ", "bounced mailbox_invalid"}, got)
	require.Equal(t, []string{
		"/v3/REST/message?FromTS=1795262399&Limit=1000&Offset=0&ShowContactAlt=true&ShowCustomID=true&ToTS=1795266001",
		"/v3/REST/messagehistory/70650219165027411",
		"/v3/REST/message?FromTS=1795262399&Limit=1000&Offset=1000&ShowContactAlt=true&ShowCustomID=true&ToTS=1795266001",
	}, f.asked)

	got, q.Chunks = nil, map[models.ID]bool{}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	q.Chunks, q.Recipient = nil, "bob@rcpt.test"
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Empty(t, got)

	enough := errors.New("enough")
	q.Recipient = ""
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return enough }), enough)
	f.total = 200_000
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return nil }), models.ErrPartialLogs)
}

// TestNoHistory: a message in the log was accepted, also if nothing happened to it yet.
func TestNoHistory(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	m := sent{ID: "7", CustomID: mailLog + ".3", ContactAlt: "ann@rcpt.test", At: "2026-11-21T12:00:00Z"}
	var got []models.ParsedEvent
	require.NoError(t, p.readMessage(t.Context(), &m, func(body []byte) error {
		got = p.Parse(body).Events
		return nil
	}))
	require.Len(t, got, 1)
	require.Equal(t, models.Processed, got[0].Event.Kind)
	require.Equal(t, int64(1795262400), got[0].Event.At.Unix())
}

// TestSoftBounce: a soft bounce in the history says nothing of the mailbox, also if the message had a hard one later.
func TestSoftBounce(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"Data":[{"EventType":"softbounced","EventAt":1795262403,"State":"mailbox inactive"}]}`))
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	m := sent{ID: "7", CustomID: mailLog + ".3", ContactAlt: "ann@rcpt.test", Permanent: "true"}
	require.NoError(t, p.readMessage(t.Context(), &m, func(body []byte) error {
		require.Equal(t, models.BounceUnknown, p.Parse(body).Events[1].Event.Reason)
		return nil
	}))
}

// TestInspect asks a server that answers as Mailjet does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/mj"
	all := func(url string) string {
		var list []string
		for _, name := range []string{"sent", "open", "click", "bounce", "blocked", "spam", "unsub"} {
			list = append(list, `{"EventType":"`+name+`","Status":"alive","Url":"`+url+`","Version":2}`)
		}
		return `{"Data":[` + strings.Join(list, ",") + `]}`
	}
	verified := `{"Data":[{"Email":"*@example.com","Status":"Active"}]}`
	for name, c := range map[string]struct {
		senders, hooks string
		status         int
		want           []string
	}{
		"all is well": {verified, all("https://u:p@mail.example.com/webhooks/mj"), 200,
			[]string{"ok may send mail", "ok *@example.com is verified", "ok go to " + hook, "ok have a secret"}},
		"no secret": {verified, all(hook), 200,
			[]string{"ok may send mail", "ok *@example.com is verified", "ok go to " + hook, "wrong have no secret"}},
		"elsewhere, suspended": {`{"Data":[{"Email":"a@b.test","Status":"Inactive"}]}`,
			`{"Data":[{"EventType":"sent","Status":"dead","Url":"https://u:p@mail.example.com/webhooks/mj"}]}`, 200,
			[]string{"ok may send mail", "wrong a@b.test is not verified", "wrong do not go to " + hook + " for: sent, bounce"}},
		"no sender": {`{"Data":[]}`, all("https://u:p@x.test"), 200,
			[]string{"ok may send mail", "wrong no sender is verified", "wrong do not go to"}},
		"wrong key": {`{}`, "", 401, []string{"wrong Mailjet refuses the key (401)"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.status)
			pages := map[string]string{"/v3/REST/sender": c.senders, "/v3/REST/eventcallbackurl": c.hooks}
			_, _ = w.Write([]byte(pages[r.URL.Path]))
		}))
		p := adapter(t, server.URL)
		account, err := p.Inspect(t.Context(), hook)
		kindtest.Found(t, account, err, name, c.want...)
		p.Close()
		server.Close()
	}
}

func FuzzParse(f *testing.F) { kindtest.FuzzParse(f, adapter(f, "")) }

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	f.Add(kindtest.Basic("hook:a long passwor"))
	f.Add("Bearer x")
	f.Fuzz(func(t *testing.T, value string) {
		_, err := providertest.Verify(p, http.Header{"Authorization": {value}}, []byte("{}"), time.Now())
		scheme, text, _ := strings.Cut(value, " ")
		ours := strings.EqualFold(scheme, "basic") &&
			("Basic "+text == kindtest.Basic(hookKey) || "Basic "+text == kindtest.Basic(oldKey))
		if (err == nil) != ours {
			t.Errorf("%q: %v", value, err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, []byte(a.Body), false)
		if a.Each != nil {
			f.Add(a.Status, []byte(a.Each(3)), true)
		}
	}
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, body []byte, cut bool) {
		providertest.Check(t, c, p.classify(c, transport.Answer{Status: status, Body: body, Cut: cut}, time.Now()))
	})
}

func BenchmarkSend1000(b *testing.B) { kindtest.Compose(b, adapter(b, ""), 50, 20) }
