package smtp2go

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// TestRequests compares requests with testdata/request: of one mail and of several.
func TestRequests(t *testing.T) {
	p := adapter(t, "")
	calls := map[string]*models.Call{"files": kindtest.Files(2, "{{name}}"), "file": kindtest.Files(1, "{{name}}"),
		"batch": providertest.SampleCall(2), "single": providertest.SampleCall(1), "together": kindtest.Together()}
	kindtest.Requests(t, p, calls)
	for name, c := range calls {
		r, _ := p.Compose(c)
		require.Equal(t, single(c), strings.HasSuffix(r.URL, "/v3/email/send"), name)
		require.Equal(t, !single(c), strings.HasSuffix(r.URL, "/v3/email/batch"), name)
	}
}

// TestWebhooks parses every documented event, and those that others received.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 34) }

// TestRepeats: a doubled post has the same event, and a later one another. So has a form that says the same.
func TestRepeats(t *testing.T) {
	p := adapter(t, "")
	const body = `{"event":"open","email_id":"m","rcpt":"A@b.test","time":"2026-11-21T12:00:00Z",` +
		`"X-Sd-Log":"01930000-0000-7000-8abc-def000000001","X-Sd-Attempt":"1"}`
	const form = "event=open&email_id=m&rcpt=A%40b.test&time=2026-11-21T12%3A00%3A00Z&" +
		"X-Sd-Log=01930000-0000-7000-8abc-def000000001&X-Sd-Attempt=1"
	first := p.Parse([]byte(body))
	require.Len(t, first.Events, 1)
	require.Equal(t, first, p.Parse([]byte(body)))
	require.Equal(t, first, p.Parse([]byte(form)))
	other := p.Parse([]byte(strings.Replace(body, "12:00:00Z", "12:00:01Z", 1)))
	require.NotEqual(t, first.Events[0].Event.ID, other.Events[0].Event.ID)
	require.Empty(t, p.Parse([]byte(body)[:len(body)-20]).Events, "a truncated post")
}

func TestCheck(t *testing.T) {
	require.Empty(t, Spec.Check(testSettings("")))
	for _, path := range []string{"", "/v3", "/v3/"} {
		r, _ := adapter(t, "https://eu-api.smtp2go.com"+path).Compose(providertest.SampleCall(1))
		require.Equal(t, "https://eu-api.smtp2go.com/v3/email/send", r.URL)
	}
	for _, key := range []string{"short", " user:password", "user:pass\nword"} {
		s := testSettings("")
		s.WebhookKey = key
		require.Len(t, Spec.Check(s), 1, key)
	}
}

const mailLog = "01930000-0000-7000-8abc-def000000001"

// serve returns an adapter whose queries are answered by answer, with what they ask.
func serve(t *testing.T, answer func(path string, in map[string]any) (status int, body string)) *Adapter {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in := map[string]any{}
		body, _ := io.ReadAll(r.Body)
		if len(body) > 0 && json.Unmarshal(body, &in) != nil || r.Method != http.MethodPost ||
			r.Header.Get("X-Smtp2go-Api-Key") != "api-key" {
			t.Errorf("%s %s: %s", r.Method, r.URL, body)
		}
		status, text := answer(r.URL.Path, in)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	p := adapter(t, server.URL)
	t.Cleanup(func() { p.Close(); server.Close() })
	return p
}

// event is one of the activity, with more members.
func event(name, log, more string) string {
	return `{"event":"` + name + `","date":"2026-11-21T12:00:00Z","recipient":"ann@rcpt.test","email_id":"m0",` +
		`"custom_headers":{"X-Sd-Log":"` + log + `","X-Sd-Attempt":"3"}` + more + `}`
}

// TestLookUp reads the events of two pages. Each has the ID of its webhook. Those of others are left out.
func TestLookUp(t *testing.T) {
	pages := map[any]string{
		nil: event("processed", mailLog, "") + "," + event("delivered", mailLog, `,"smtp_response":"250 OK"`) + "," +
			event("opened", mailLog, "") + "," + event("clicked", mailLog, "") + "," + event("resubscribed", mailLog, "") +
			"," + event("delivered", "", "") + `,{"custom_headers":null},7`,
		"2": event("hard-bounced", mailLog, `,"smtp_response":"550 5.1.1 unknown"`) + "," +
			event("rejected", mailLog, `,"reason":"has unsubscribed"`) + "," + event("spam", mailLog, "") + "," +
			event("unsubscribed", mailLog, "") + "," + event("soft-bounced", mailLog, `,"error":"i/o timeout"`),
	}
	begun := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	q := models.LookupQuery{From: begun, To: begun.Add(time.Hour), Recipient: "ann@rcpt.test"}
	var asked []map[string]any
	next := `"2"`
	p := serve(t, func(path string, in map[string]any) (int, string) {
		require.Equal(t, "/v3/activity/search", path)
		token := next
		if asked = append(asked, in); in["continue_token"] != nil && next == `"2"` {
			token = "null"
		}
		return 200, `{"data":{"events":[` + pages[in["continue_token"]] + `],"continue_token":` + token + `}}`
	})
	var got []string
	post := func(body []byte) error {
		parsed := p.Parse(body)
		require.Len(t, parsed.Events, 1, "%s: %v", body, parsed.Skipped)
		e := parsed.Events[0]
		require.Equal(t, mailLog, e.Log.String())
		require.Equal(t, 3, e.Event.Attempt)
		got = append(got, strings.TrimSpace(string(e.Event.Kind)+" "+string(e.Event.Reason)))
		return nil
	}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Equal(t, []string{"processed", "delivered", "opened", "clicked", "bounced mailbox_invalid",
		"dropped provider_suppressed_unsubscribe", "complained", "unsubscribed", "bounced dns_or_connect"}, got)
	require.Len(t, asked, 2)
	require.Equal(t, map[string]any{"start_date": "2026-11-21T12:00:00Z", "end_date": "2026-11-21T13:00:01Z",
		"limit": 1000., "search_recipient": "ann@rcpt.test", "custom_headers": []any{"X-Sd-Log", "X-Sd-Attempt"}}, asked[0])

	got, q.Chunks = nil, map[models.ID]bool{}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Empty(t, got)
	q.Chunks = nil
	enough := errors.New("enough")
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return enough }), enough)
	next = `"3"`
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return nil }), models.ErrInvalid)
}

// TestPermissions: a key that may not query gets 400, which says so.
func TestPermissions(t *testing.T) {
	for _, body := range []string{fail(denied, "You do not have permission to access this API endpoint"),
		fail("API_EXCEPTION", "An API User matching the passed 'api_key' was not found")} {
		p := serve(t, func(string, map[string]any) (int, string) { return 400, body })
		require.ErrorIs(t, p.LookUp(t.Context(), models.LookupQuery{}, nil), models.ErrNoLookup)
		_, err := p.ReadList(t.Context(), models.ListQuery{List: "spam", To: time.Now()})
		require.ErrorIs(t, err, models.ErrNoLists)
		require.ErrorIs(t, p.Unlist(t.Context(), "spam", "ann@rcpt.test"), models.ErrNoLists)
		a, err := p.Inspect(t.Context(), "")
		kindtest.Found(t, a, err, body, "wrong SMTP2GO refuses the key (403)")
	}
	p := serve(t, func(string, map[string]any) (int, string) { return 400, fail(invalid, "A wrong token") })
	_, err := p.ReadList(t.Context(), models.ListQuery{List: "spam", To: time.Now(), Cursor: "x"})
	require.ErrorIs(t, err, models.ErrInvalid)
	require.NotErrorIs(t, err, models.ErrNoLists)
}

// TestListPages reads a page from a time on. A page that follows itself is the last one.
func TestListPages(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	p := serve(t, func(path string, in map[string]any) (int, string) {
		require.Equal(t, "/v3/suppression/view", path)
		require.Equal(t, map[string]any{"suppression_type": "spam", "continue_token": "a",
			"start_date": "2026-11-21T12:00:00Z", "end_date": "2026-11-21T13:00:01Z"}, in)
		return 200, `{"data":{"continue_token":"a","results":[{"email_address":"a@b.test",` +
			`"timestamp":"2026-11-21 12:00:00"}]}}`
	})
	page, err := p.ReadList(t.Context(), models.ListQuery{List: "spam", From: at, To: at.Add(time.Hour), Cursor: "a"})
	require.NoError(t, err)
	require.Len(t, page.Entries, 1)
	require.Empty(t, page.Next)
}

// TestInspect asks a server that answers as SMTP2GO does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/s2g"
	const all = `"events":["processed","delivered","bounce","reject","spam","unsubscribe","open","click"]`
	const headers = `"headers":["x-sd-log","X-Sd-Attempt"]`
	const may = `["/email/send","/email/batch","/activity/search","/domain/view","/webhook/view"]`
	ok, events := "ok may send mail", "ok go to "+hook
	for name, c := range map[string]struct {
		may, hooks string
		want       []string
	}{
		"all is well": {may, `[{"url":"` + hook + `","auth_header_type":"basic",` + all + `,` + headers + `},{"url":"x"}]`,
			[]string{ok, "ok example.test is verified", "wrong b.test is not verified", events, "ok have a secret",
				"ok have our header fields"}},
		"in the URL": {may, `[{"url":"https://u:p@mail.example.com/webhooks/s2g","auth_header_type":"",` + all +
			`,"headers":"X-Sd-Log,X-Sd-Attempt"}]`,
			[]string{ok, "ok example.test", "wrong b.test", events, "ok have a secret", "ok have our header fields"}},
		"no secret, no fields": {may, `[{"url":"` + hook + `","auth_header_type":"","events":["open"],"headers":[]}]`,
			[]string{ok, "ok example.test", "wrong b.test", "wrong do not go to " + hook + " for: processed, delivered, bounce",
				"wrong have no secret", "wrong lack the header fields X-Sd-Log and X-Sd-Attempt"}},
		"no word about a secret": {may, `[{"url":"` + hook + `",` + all + `,` + headers + `}]`,
			[]string{ok, "ok example.test", "wrong b.test", events, "ok have a secret", "ok have our header fields"}},
		"nothing allowed": {`["/email/send"]`, "", []string{"wrong may not send mails and batches",
			"warning may not use /activity/search", "warning may not use /domain/view", "warning may not use /webhook/view"}},
	} {
		p := serve(t, func(path string, _ map[string]any) (int, string) {
			data := map[string]string{"/v3/api_keys/permissions": c.may, "/v3/webhook/view": c.hooks,
				"/v3/domain/view": `{"domains":[` +
					`{"domain":{"fulldomain":"example.test","dkim_verified":true,"rpath_verified":true}},` +
					`{"domain":{"fulldomain":"b.test","dkim_verified":true,"rpath_verified":false}}]}`}[path]
			return 200, fmt.Sprintf(`{"request_id":"r","data":%s}`, data)
		})
		account, err := p.Inspect(t.Context(), hook)
		kindtest.Found(t, account, err, name, c.want...)
	}
	p := serve(t, func(string, map[string]any) (int, string) { return 500, "" })
	_, err := p.Inspect(t.Context(), hook)
	require.Error(t, err)
}

func FuzzParse(f *testing.F) {
	kindtest.FuzzParse(f, adapter(f, ""), []byte("event=bounce&rcpt=%zz&&=&X-Sd-Log="+mailLog+"&x-sd-attempt=1"))
}

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	f.Add("Basic aG9vazphIGxvbmcgcGFzc3dvcmQ=")
	f.Add("Bearer old-bearer-token")
	f.Fuzz(func(t *testing.T, value string) {
		_, err := providertest.Verify(p, http.Header{"Authorization": {value}}, []byte("{}"), time.Now())
		scheme, token, _ := strings.Cut(value, " ")
		ours := strings.EqualFold(scheme, "bearer") && token == "old-bearer-token" ||
			strings.EqualFold(scheme, "basic") && token == "aG9vazphIGxvbmcgcGFzc3dvcmQ="
		if (err == nil) != ours {
			t.Errorf("%q: %v", value, err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, []byte(a.Body))
		if a.Each != nil {
			f.Add(a.Status, []byte(a.Each(1)))
			f.Add(a.Status, []byte(a.Each(3)))
		}
	}
	p := adapter(f, "")
	one, three, together := providertest.SampleCall(1), providertest.SampleCall(3), kindtest.Together()
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		for _, c := range []*models.Call{one, three, together} {
			providertest.Check(t, c, p.classify(c, transport.Answer{Status: status, Body: body}, time.Now()))
		}
	})
}

func BenchmarkSend1000(b *testing.B) { kindtest.Compose(b, adapter(b, ""), 100, 10) }
