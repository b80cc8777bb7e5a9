package mailtrap_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type object = map[string]any

// A client calls the account mt.
type client struct {
	*simtest.Rig
	t   *testing.T
	key string // of webhooks
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent = true
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	require.NoError(t, r.AddAccount(simulator.Account{Name: "mt", Kind: simulator.Mailtrap, Key: "token",
		Domain: "example.com", WebhookURL: hooks + "mt"}))
	key := r.Accounts()[2].SigningKey
	require.Len(t, key, 32)
	return &client{r, t, key}
}

// call makes a request and decodes the answer. The status is 0 if there is no whole answer.
func (c *client) call(method, path string, body, out any, header ...string) int {
	c.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(c.t, err)
	if raw, ok := body.(string); ok {
		text = []byte(raw)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.URL+"/mt"+path, bytes.NewReader(text))
	require.NoError(c.t, err)
	r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer token"}}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	var read bytes.Buffer
	if _, err := read.ReadFrom(resp.Body); err != nil {
		return 0
	}
	if out != nil {
		_ = json.Unmarshal(read.Bytes(), out)
	}
	return resp.StatusCode
}

func to(address string) []object { return []object{{"email": address, "name": "N"}} }

// request returns a request of a batch, with changes; nil removes a field.
func request(address string, changes object) object {
	m := object{"to": to(address), "custom_variables": object{simtest.RecipientKey: strings.Split(address, "@")[0]}}
	for k, v := range changes {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	return m
}

var base = object{"from": object{"email": "shop@example.com", "name": "Shop, Inc."}, "subject": "S", "text": "T",
	"category": "chunk", "headers": object{"X-A": "1"}}

func batch(requests ...object) object { return object{"base": base, "requests": requests} }

type result struct {
	Success   bool
	IDs       []string `json:"message_ids"`
	Errors    []string
	Responses []result
}

type event struct {
	Event, Category, Response, Reason string
	Email                             string
	MessageID                         string `json:"message_id"`
	EventID                           string `json:"event_id"`
	Timestamp                         int64
	Variables                         map[string]string `json:"custom_variables"`
}

// events returns the events of all webhooks that are signed, by their order, and the number of others.
func (c *client) events() (list []event, forged, posts int) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if r.Account != "mt" {
			continue
		}
		posts++
		mac := hmac.New(sha256.New, []byte(c.key))
		_, _ = mac.Write(r.Body)
		if hex.EncodeToString(mac.Sum(nil)) != r.Header.Get("Mailtrap-Signature") {
			forged++
			continue
		}
		var in struct{ Events []event }
		require.NoError(c.t, json.Unmarshal(r.Body, &in), "%s", r.Body)
		list = append(list, in.Events...)
	}
	return list, forged, posts
}

func TestBatchHasAResultForEachMail(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	list := []object{request("a@example.com", object{"subject": "Own", "headers": object{"X-B": "2"}}),
		request("no-address", nil),
		request("refused@sim.test", nil), request("click@sim.test",
			object{"cc": to("cc@example.com"), "bcc": to("b@example.com")})}
	var r result
	require.Equal(t, 200, c.call("POST", "/api/batch", batch(list...), &r))
	require.Len(t, r.Responses, 4)
	for i, n := range []int{1, 0, 0, 3} {
		one := r.Responses[i]
		require.Equal(t, n > 0, one.Success)
		require.Len(t, one.IDs, n)
		require.Equal(t, n == 0, len(one.Errors) == 1)
	}
	require.Equal(t, []string{"'to' address is invalid"}, r.Responses[1].Errors)
	own := c.Copies("a")[0]
	require.Equal(t, "Own", own.Subject)
	require.Equal(t, "T", own.Text)
	require.Equal(t, map[string]string{"X-B": "2"}, own.Headers, "what a request has replaces what the base has")
	events, forged, posts := c.events()
	require.Zero(t, forged)
	require.Less(t, posts, len(events), "a webhook has several events")
	var names []string
	ids := map[string]bool{}
	for _, e := range events {
		names = append(names, e.Email+" "+e.Event)
		require.Equal(t, "chunk", e.Category)
		require.False(t, ids[e.EventID], "each event has an id")
		ids[e.EventID] = true
		require.WithinDuration(t, time.Now(), time.Unix(e.Timestamp, 0), time.Minute)
		require.Contains(t, slices.Concat(r.Responses[0].IDs, r.Responses[3].IDs), e.MessageID)
	}
	slices.Sort(names)
	require.Equal(t, []string{"a@example.com delivery", "b@example.com delivery", "cc@example.com delivery",
		"click@sim.test click", "click@sim.test delivery", "click@sim.test open"}, names)
}

func TestCallsThatAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	single := func(changes object) object {
		m := request("a@example.com", object{"from": base["from"], "subject": "S", "text": "T"})
		for k, v := range changes {
			if m[k] = v; v == nil {
				delete(m, k)
			}
		}
		return m
	}
	for name, test := range map[string]struct {
		path   string
		body   any
		status int
		want   string
	}{
		"good":         {"/api/send", single(nil), 200, ""},
		"no from":      {"/api/send", single(object{"from": nil}), 400, "'from' is required"},
		"bad from":     {"/api/send", single(object{"from": object{"email": "x"}}), 400, "'from' address is invalid"},
		"no recipient": {"/api/send", single(object{"to": nil}), 400, "'to', 'cc' or 'bcc' address is required"},
		"no subject":   {"/api/send", single(object{"subject": ""}), 400, "'subject' is required"},
		"no content":   {"/api/send", single(object{"text": nil}), 400, "must specify either text or html body"},
		"category":     {"/api/send", single(object{"category": strings.Repeat("c", 256)}), 400, "'category' is too long"},
		"a number":     {"/api/send", single(object{"custom_variables": object{"a": 1}}), 400, "invalid JSON"},
		"no file name": {"/api/send", single(object{"attachments": []object{{"content": "aGk="}}}), 400,
			"attachment must have a filename and content"},
		"no JSON":  {"/api/batch", "{", 400, "invalid JSON"},
		"empty":    {"/api/batch", batch(), 400, "Batch size must be from 1 to 500 messages"},
		"too many": {"/api/batch", batch(slices.Repeat([]object{request("a@example.com", nil)}, 501)...), 400, "Batch size"},
	} {
		var r result
		before := c.Stats("mt").Copies
		require.Equal(t, test.status, c.call("POST", test.path, test.body, &r), name)
		require.Contains(t, strings.Join(r.Errors, ""), test.want, name)
		require.Equal(t, test.status == 200, c.Stats("mt").Copies > before, name)
	}
	for header, want := range map[string]int{"Authorization=": 401, "Authorization=Bearer x": 401,
		"Api-Token=token": 200} {
		name, value, _ := strings.Cut(header, "=")
		require.Equal(t, want, c.call("GET", "/api/domains", nil, nil, "Authorization", "", name, value), header)
	}
	require.Equal(t, 404, c.call("GET", "/api/none", nil, nil))
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for mode, want := range map[string]string{
		"status:401": "401 Unauthorized", "status:500": "500 Internal server error", "status:503": "503 Service unavailable",
		simulator.ModeCredits:    "403 You have reached the limit of your billing plan",
		simulator.ModeFull:       "403 You have reached the limit of your billing plan",
		simulator.ModeUnverified: "403 The domain of the sender is not verified", simulator.ModeBlocked: "403 Forbidden",
		simulator.ModeNotAllowed: "403 Sending is suspended for this account", simulator.ModeRate: "429 ",
		simulator.ModeLargeBatch: "400 Batch size exceeds 500 messages",
		simulator.ModeTooLarge:   "413 Request entity too large", simulator.ModeAcceptThenClose: "0 ",
	} {
		id := c.Inject(simulator.Fault{Account: "mt", Mode: mode})
		var r result
		status := c.call("POST", "/api/batch", batch(request("a@example.com", nil)), &r)
		require.Equal(t, want, fmt.Sprint(status, " ", strings.Join(r.Errors, "")), mode)
		c.Clear(id)
	}
}

func TestWebhooksAreRepeatedUntil200(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{500: 5, 204: 5, 403: 5, 200: 1} {
		c := open(t, simulator.Options{TimeScale: 1e6})
		c.Hooks.Status = func(*http.Request, []byte) int { return status }
		c.call("POST", "/api/batch", batch(request("a@example.com", nil)), nil)
		list, forged, _ := c.events()
		require.Len(t, list, want, "%d", status)
		require.Zero(t, forged)
	}
	c := open(t, simulator.Options{TimeScale: 1e6})
	c.Inject(simulator.Fault{Account: "mt", Mode: simulator.ModeBadSignature})
	c.call("POST", "/api/batch", batch(request("a@example.com", nil)), nil)
	_, forged, posts := c.events()
	require.Equal(t, posts, forged)
}

type logs struct {
	Messages []object
	Total    int `json:"total_count"`
	Next     any `json:"next_page_cursor"`
}

func TestLogs(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	var list []object
	for _, a := range simtest.Addresses(150) {
		list = append(list, request(a, nil))
	}
	c.call("POST", "/api/batch", batch(list...), nil)
	var r result
	other := request("hardbounce@sim.test", object{"category": "other"})
	c.call("POST", "/api/batch", batch(other), &r)
	c.SettleAll(t)
	page := func(pairs ...string) (l logs) {
		form := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			form.Add(pairs[i], pairs[i+1])
		}
		require.Equal(t, 200, c.call("GET", "/api/email_logs?"+form.Encode(), nil, &l))
		return l
	}
	first := page()
	require.Len(t, first.Messages, 100)
	require.Equal(t, 151, first.Total)
	require.Equal(t, "hardbounce@sim.test", first.Messages[0]["to"], "the newest comes first")
	second := page("search_after", first.Next.(string))
	require.Len(t, second.Messages, 51)
	require.Nil(t, second.Next)
	const category = "filters[category][value]"
	require.Equal(t, 1, page("filters[category][operator]", "equal", category, "other").Total)
	require.Equal(t, 151, page("filters[category][operator]", "equal", category+"[]", "other", category+"[]",
		"chunk").Total)
	require.Equal(t, 151, page("filters[categorie][operator]", "equal", "filters[categorie][value]", "other").Total,
		"filters that are not known are ignored")
	require.Equal(t, 1, page("filters[to][operator]", "ci_equal", "filters[to][value]", "HardBounce@sim.test").Total)
	require.Zero(t, page("filters[sent_before]", "2020-01-01T00:00:00Z").Total)
	require.Equal(t, 400, c.call("GET", "/api/email_logs?filters[sent_after]=yesterday", nil, nil))

	var m object
	require.Equal(t, 200, c.call("GET", "/api/email_logs/"+r.Responses[0].IDs[0], nil, &m))
	require.Equal(t, "not_delivered", m["status"])
	require.Equal(t, "other", m["category"])
	events := m["events"].([]any)
	require.Len(t, events, 1)
	require.Equal(t, "bounce", events[0].(object)["event_type"])
	require.Equal(t, "5.1.1", events[0].(object)["details"].(object)["email_service_provider_status"])
	require.NotContains(t, events[0], "event_id", "the logs have none")
	require.Equal(t, 404, c.call("GET", "/api/email_logs/none", nil, nil))
}

func TestSuppressions(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6, Suppress: true})
	c.call("POST", "/api/batch", batch(request("hardbounce@sim.test", nil), request("complain@sim.test", nil),
		request("unsubscribe@sim.test", nil), request("a@example.com", nil)), nil)
	c.SettleAll(t)
	var all, rest, one []object
	require.Equal(t, 200, c.call("GET", "/api/suppressions", nil, &all))
	require.Len(t, all, 3)
	c.call("GET", "/api/suppressions?last_id="+all[0]["id"].(string), nil, &rest)
	require.Equal(t, all[1:], rest)
	c.call("GET", "/api/suppressions?email=HARDBOUNCE@sim.test", nil, &one)
	require.Len(t, one, 1)
	require.Equal(t, "hard bounce", one[0]["type"])
	require.Equal(t, 200, c.call("DELETE", "/api/suppressions/"+one[0]["id"].(string), nil, nil))
	require.Equal(t, 404, c.call("DELETE", "/api/suppressions/"+one[0]["id"].(string), nil, nil))
	require.Equal(t, 400, c.call("GET", "/api/suppressions?start_time=x", nil, nil))
}
