package brevo_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type object = map[string]any

const keyed = "01234567-89ab-4cde-8fab-0123456789ab"

// A client calls the account br.
type client struct {
	*simtest.Rig
	t *testing.T
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent = true
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	require.NoError(t, r.AddAccount(simulator.Account{Name: "br", Kind: simulator.Brevo, Key: "xkeysib-k",
		SigningKey: "a-token", Domain: "example.com", WebhookURL: hooks + "br"}))
	return &client{r, t}
}

// call makes a request and returns the answer. The status is 0 if there is no whole answer.
func (c *client) call(method, path string, body any, header ...string) (int, object) {
	c.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(c.t, err)
	if raw, ok := body.(string); ok {
		text = []byte(raw)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.URL+"/br"+path, bytes.NewReader(text))
	require.NoError(c.t, err)
	r.Header = http.Header{"Content-Type": {"application/json"}, "Api-Key": {"xkeysib-k"}}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	var read bytes.Buffer
	if _, err := read.ReadFrom(resp.Body); err != nil {
		return 0, nil
	}
	out := object{}
	if json.Unmarshal(read.Bytes(), &out) != nil {
		out["text"] = read.String()
	}
	out["reset"] = resp.Header.Get("x-sib-ratelimit-reset")
	return resp.StatusCode, out
}

func to(address string) []object { return []object{{"email": address, "name": "N"}} }

// custom returns the header fields of a version, which name its recipient.
func custom(address string) object {
	text, _ := json.Marshal(object{simtest.RecipientKey: strings.Split(address, "@")[0]})
	return object{"X-Mailin-custom": string(text)}
}

// mail returns a call with changes; nil removes a field.
func mail(changes object) object {
	m := object{"sender": object{"email": "shop@example.com", "name": "Shop, Inc."}, "subject": "S", "textContent": "T",
		"to": to("a@example.com"), "tags": []string{"t/1", "news"}}
	for k, v := range changes {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	return m
}

// batch returns a call with a version for each address.
func batch(addresses ...string) object {
	var list []object
	for _, a := range addresses {
		list = append(list, object{"to": to(a), "headers": custom(a), "subject": "For " + a})
	}
	return mail(object{"to": nil, "messageVersions": list})
}

// posts returns "address event" of each webhook, and what the first one holds.
func (c *client) posts() (list []string, first object) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if r.Account != "br" {
			continue
		}
		var e object
		require.NoError(c.t, json.Unmarshal(r.Body, &e), "%s", r.Body)
		if r.Header.Get("Authorization") != "Bearer a-token" {
			e["event"] = "forged"
		}
		if first == nil {
			first = e
		}
		list = append(list, fmt.Sprint(e["email"], " ", e["event"]))
	}
	slices.Sort(list)
	return list, first
}

func TestBatchAndItsEvents(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	status, answer := c.call("POST", "/v3/smtp/email",
		batch("click@sim.test", "hardbounce@sim.test", "suppressed-spam@sim.test"))
	ids := answer["messageIds"].([]any)
	require.Equal(t, 201, status)
	require.Len(t, ids, 3)
	for i, name := range []string{"click", "hardbounce", "suppressed-spam"} {
		copies := c.Copies(name)
		require.Len(t, copies, 1)
		require.Equal(t, "For "+name+"@sim.test", copies[0].Subject)
		require.Equal(t, "T", copies[0].Text)
		require.Empty(t, copies[0].Visible)
		require.Regexp(t, `^<\d{12}\.\d+@smtp-relay\.sim\.test>$`, ids[i])
	}
	list, first := c.posts()
	require.Equal(t, []string{"click@sim.test click", "click@sim.test delivered", "click@sim.test request",
		"click@sim.test unique_opened", "hardbounce@sim.test hard_bounce", "hardbounce@sim.test request",
		"suppressed-spam@sim.test blocked", "suppressed-spam@sim.test request"}, list)
	require.Contains(t, ids, first["message-id"])
	require.Equal(t, `["t/1","news"]`, first["tag"])
	require.Len(t, first["tags"], 2)
	require.Contains(t, first["X-Mailin-custom"], simtest.RecipientKey)
	at := time.UnixMilli(int64(first["ts_epoch"].(float64)))
	require.WithinDuration(t, time.Now(), at, time.Minute)

	c = open(t, simulator.Options{TimeScale: 1e6, NoVersionHeaders: true})
	c.call("POST", "/v3/smtp/email", batch("a@example.com"))
	_, first = c.posts()
	require.NotContains(t, first, "X-Mailin-custom")
}

func TestCallIsSentWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	many := batch(simtest.Addresses(1001)...)
	crowd := mail(object{"to": slices.Repeat(to("a@example.com"), 100)})
	late := batch("a@example.com")
	late["textContent"] = nil
	late["messageVersions"].([]object)[0]["textContent"] = "own"
	for name, test := range map[string]struct {
		body any
		want string
	}{
		"good":             {mail(nil), "201 "},
		"a thousand":       {batch(simtest.Addresses(1000)...), "201 "},
		"too many":         {many, "400 invalid_parameter"},
		"crowded":          {crowd, "400 invalid_parameter"},
		"no JSON":          {"{", "400 bad_request"},
		"a list":           {[]object{mail(nil)}, "400 bad_request"},
		"a number":         {mail(object{"headers": object{"X-A": 1}}), "400 bad_request"},
		"no sender":        {mail(object{"sender": nil}), "400 missing_parameter"},
		"bad sender":       {mail(object{"sender": object{"email": "no-address"}}), "400 invalid_parameter"},
		"no recipient":     {mail(object{"to": nil}), "400 missing_parameter"},
		"bad recipient":    {batch("a@example.com", "no-address"), "400 invalid_parameter"},
		"no subject":       {mail(object{"subject": nil}), "400 missing_parameter"},
		"no content":       {mail(object{"textContent": nil}), "400 missing_parameter"},
		"content too late": {late, "400 invalid_parameter"},
		"attachment":       {mail(object{"attachment": []object{{"name": "a.PDF", "content": "aGk="}}}), "201 "},
		"exe":              {mail(object{"attachment": []object{{"name": "a.exe", "content": "aGk="}}}), "400 invalid_parameter"},
		"no base64":        {mail(object{"attachment": []object{{"name": "a.pdf", "content": "?"}}}), "400 invalid_parameter"},
		"no UUID":          {mail(object{"headers": object{"idempotencyKey": "abcdef-123y"}}), "400 invalid_parameter"},
	} {
		before := c.Stats("br").Copies
		status, answer := c.call("POST", "/v3/smtp/email", test.body)
		code, _ := answer["code"].(string)
		require.Equal(t, test.want, fmt.Sprint(status, " ", code), "%s: %v", name, answer)
		require.Equal(t, status == 201, c.Stats("br").Copies > before, name)
	}
	for header, want := range map[string]int{"": 401, "other": 401} {
		status, _ := c.call("POST", "/v3/smtp/email", mail(nil), "api-key", header)
		require.Equal(t, want, status)
	}
	for path, want := range map[string]int{"GET /v3/account": 200, "GET /v3/senders/domains": 200, "GET /v3/none": 404,
		"PUT /v3/smtp/email": 405} {
		method, path, _ := strings.Cut(path, " ")
		status, _ := c.call(method, path, nil)
		require.Equal(t, want, status, path)
	}
}

// TestKeyIsInTheBody: a known key sends nothing again, and the answer has no ids. A header means nothing.
func TestKeyIsInTheBody(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	one := mail(object{"headers": object{"idempotencyKey": keyed}})
	status, answer := c.call("POST", "/v3/smtp/email", one)
	require.Equal(t, 201, status)
	require.NotEmpty(t, answer["messageId"])
	for _, again := range []object{one, mail(object{"subject": "Other", "headers": object{"idempotencyKey": keyed}})} {
		status, answer = c.call("POST", "/v3/smtp/email", again)
		require.Equal(t, 201, status)
		require.Nil(t, answer["messageId"])
	}
	require.EqualValues(t, 1, c.Stats("br").Copies)
	for range 2 {
		_, answer = c.call("POST", "/v3/smtp/email", mail(nil), "Idempotency-Key", keyed)
		require.NotEmpty(t, answer["messageId"])
	}
	require.EqualValues(t, 3, c.Stats("br").Copies)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for mode, want := range map[string]string{
		"status:401": "401 unauthorized", "status:500": "500 internal_error", "status:503": "503 service_unavailable",
		simulator.ModeCredits: "402 not_enough_credits", simulator.ModeFull: "402 not_enough_credits",
		simulator.ModeUnverified: "400 invalid_parameter", simulator.ModeBlocked: "401 unauthorized",
		simulator.ModeNotAllowed: "403 permission_denied", simulator.ModeLargeBatch: "400 out_of_range",
		simulator.ModeTooLarge: "413 bad_request", simulator.ModeRate: "429 too_many_requests",
		simulator.ModeRefuse: "400 invalid_parameter", simulator.ModeAcceptThenClose: "0 <nil>",
	} {
		id := c.Inject(simulator.Fault{Account: "br", Mode: mode, RetryAfter: 30 * time.Second})
		status, answer := c.call("POST", "/v3/smtp/email", mail(nil))
		require.Equal(t, want, fmt.Sprint(status, " ", answer["code"]), mode)
		require.Equal(t, mode == simulator.ModeRate, answer["reset"] == "30", mode)
		c.Clear(id)
	}
}

// TestWebhooksAreRepeatedOnlyAfter429: another status discards the event.
func TestWebhooksAreRepeatedOnlyAfter429(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{429: 10, 500: 2, 503: 2, 401: 2, 204: 2, 200: 2} {
		c := open(t, simulator.Options{TimeScale: 1e6})
		c.Hooks.Status = func(*http.Request, []byte) int { return status }
		c.call("POST", "/v3/smtp/email", batch("a@example.com"))
		list, _ := c.posts()
		require.Len(t, list, want, "%d", status)
	}
	c := open(t, simulator.Options{})
	c.Inject(simulator.Fault{Account: "br", Mode: simulator.ModeBadSignature})
	c.call("POST", "/v3/smtp/email", batch("a@example.com"))
	list, _ := c.posts()
	require.Contains(t, list, "a@example.com forged")
}

func TestLog(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	c.call("POST", "/v3/smtp/email", batch("a@example.com", "hardbounce@sim.test"))
	other := batch("b@example.com")
	other["tags"] = []string{"other"}
	c.call("POST", "/v3/smtp/email", other)
	c.SettleAll(t)
	today := time.Now().UTC().Format(time.DateOnly)
	for query, want := range map[string]int{
		"": 6, "days=1": 6, "tags=[%22t/1%22]": 4, "tags=[%22other%22]": 2, "tags=[%22t/1%22,%22other%22]": 6,
		"tags=[%22none%22]": 0, "email=A@example.com": 2, "event=hardBounces": 1, "limit=5": 5, "limit=5&offset=5": 1,
		"startDate=" + today + "&endDate=" + today: 6, "startDate=2020-01-01&endDate=2020-01-02": 0, "unknown=x": 6,
		"tags=t/1": -1, "days=91": -1, "limit=2501": -1, "limit=0": -1, "offset=-1": -1, "startDate=" + today: -1,
		"sort=up": -1, "days=1&startDate=" + today + "&endDate=" + today: -1,
	} {
		status, answer := c.call("GET", "/v3/smtp/statistics/events?"+query, nil)
		list, _ := answer["events"].([]any)
		if want < 0 {
			require.Equal(t, 400, status, query)
			continue
		}
		require.Equal(t, 200, status, query)
		require.Len(t, list, want, query)
	}
	_, answer := c.call("GET", "/v3/smtp/statistics/events?event=hardBounces", nil)
	row := answer["events"].([]any)[0].(object)
	require.Equal(t, "hardbounce@sim.test", row["email"])
	require.Contains(t, row["reason"], "550 5.1.1")
	require.Equal(t, `["t/1","news"]`, row["tag"])
	require.NotContains(t, row, "X-Mailin-custom", "the log does not have it")
}

func TestBlockedContacts(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6, Suppress: true})
	c.call("POST", "/v3/smtp/email", batch("hardbounce@sim.test", "complain@sim.test", "unsubscribe@sim.test",
		"a@example.com"))
	c.SettleAll(t)
	_, answer := c.call("GET", "/v3/smtp/blockedContacts?limit=2&sort=asc", nil)
	require.EqualValues(t, 3, answer["count"])
	require.Len(t, answer["contacts"], 2)
	first := answer["contacts"].([]any)[0].(object)
	require.Equal(t, "hardBounce", first["reason"].(object)["code"])
	status, _ := c.call("DELETE", "/v3/smtp/blockedContacts/hardbounce%40sim.test", nil)
	require.Equal(t, 204, status)
	status, _ = c.call("DELETE", "/v3/smtp/blockedContacts/hardbounce%40sim.test", nil)
	require.Equal(t, 404, status)
	for _, query := range []string{"limit=101", "startDate=2026-01-01", "sort=up"} {
		status, _ = c.call("GET", "/v3/smtp/blockedContacts?"+query, nil)
		require.Equal(t, 400, status, query)
	}
}
