package postmark_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type object = map[string]any

// A client calls the account pm.
type client struct {
	*simtest.Rig
	t *testing.T
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent = true
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	if err := r.AddAccount(simulator.Account{Name: "pm", Kind: simulator.Postmark, Key: "token",
		SigningKey: "user:password",
		WebhookURL: hooks + "pm"}); err != nil {
		t.Fatal(err)
	}
	return &client{r, t}
}

// request returns a request.
func (c *client) request(method, path string, body any) *http.Request {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	if raw, ok := body.(string); ok {
		text = []byte(raw)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.URL+"/pm"+path, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "X-Postmark-Server-Token": {"token"}}
	return r
}

// call makes a request and decodes the answer. The status is 0 if there is no whole answer.
func (c *client) call(method, path string, body, out any, header ...string) (status int) {
	c.t.Helper()
	r := c.request(method, path, body)
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
	if err := json.Unmarshal(read.Bytes(), out); err != nil {
		c.t.Logf("%s %s: %s", method, path, read.Bytes())
	}
	return resp.StatusCode
}

type result struct {
	To, SubmittedAt, MessageID, Message string
	ErrorCode                           int
}

func mail(to string, more object) object {
	m := object{"From": "Shop <shop@example.com>", "To": to, "Subject": "S", "TextBody": "T",
		"Metadata": object{simtest.RecipientKey: strings.Split(to, "@")[0]}}
	for k, v := range more {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	return m
}

// posts returns the webhooks of the account that have its credentials, and counts the others.
func (c *client) posts() (list []object, forged int) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if r.Account != "pm" {
			continue
		}
		user, password, _ := (&http.Request{Header: r.Header}).BasicAuth()
		if user != "user" || password != "password" {
			forged++
			continue
		}
		var e object
		if err := json.Unmarshal(r.Body, &e); err != nil {
			c.t.Fatalf("%v %s", err, r.Body)
		}
		list = append(list, e)
	}
	return list, forged
}

func TestBatchHasAResultForEachMessage(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	var list []object
	for i := range 500 {
		to := fmt.Sprintf("a%d@example.com", i)
		switch i {
		case 7:
			to = "no-address"
		case 8:
			to = "refused@sim.test"
		case 9:
			to = "suppressed-bounce@sim.test"
		}
		list = append(list, mail(to, nil))
	}
	var results []result
	if status := c.call("POST", "/email/batch", list, &results); status != 200 || len(results) != 500 {
		t.Fatal(status, len(results))
	}
	for i, r := range results {
		code := map[int]int{7: 300, 8: 300, 9: 406}[i]
		if r.ErrorCode != code || (r.MessageID == "") != (code != 0) || (r.To == "") != (code != 0) {
			t.Fatalf("%d: %+v", i, r)
		}
		copies := c.Copies(fmt.Sprintf("a%d", i))
		if code == 0 && (len(copies) != 1 || copies[0].ProviderID != r.MessageID || copies[0].Text != "T") {
			t.Fatalf("%d: %+v", i, copies)
		}
	}
	if st := c.Stats("pm"); st.Copies != 497 {
		t.Errorf("%+v", st)
	}
	posts, _ := c.posts()
	for _, e := range posts {
		if e["RecordType"] != "Delivery" || len(e["MessageID"].(string)) != 36 || e["MessageStream"] != "outbound" ||
			e["Metadata"].(object)[simtest.RecipientKey] != strings.Split(e["Recipient"].(string), "@")[0] {
			t.Fatalf("%v", e)
		}
	}
	if len(posts) != 497 {
		t.Errorf("%d posts", len(posts))
	}
}

func TestHalfOfABatchIsRefused(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	c.Inject(simulator.Fault{Account: "pm", Mode: simulator.ModeRefuse, Pattern: "b*@example.com"})
	var results []result
	status := c.call("POST", "/email/batch", []object{mail("a@example.com", nil), mail("b@example.com", nil),
		mail("c@example.com", nil), mail("b2@example.com", nil)}, &results)
	var codes []int
	for _, r := range results {
		codes = append(codes, r.ErrorCode)
	}
	if status != 200 || fmt.Sprint(codes) != "[0 300 0 300]" || c.Stats("pm").Copies != 2 {
		t.Error(status, codes, c.Stats("pm"))
	}
	var one result
	if status := c.call("POST", "/email", mail("b@example.com", nil), &one); status != 422 || one.ErrorCode != 300 {
		t.Error(status, one)
	}
}

func TestInvalidMessagesAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	many := make([]object, 501)
	for i := range many {
		many[i] = mail("a@example.com", nil)
	}
	for name, test := range map[string]struct {
		path   string
		body   any
		status int
		code   int
	}{
		"valid":       {"/email", mail("a@example.com, B <b@example.com>", object{"Cc": "c@example.com", "Tag": "t"}), 200, 0},
		"not JSON":    {"/email", "{", 422, 402},
		"wrong type":  {"/email", mail("a@example.com", object{"Metadata": object{"a": 1}}), 422, 402},
		"no from":     {"/email", mail("a@example.com", object{"From": nil}), 422, 300},
		"no to":       {"/email", mail("a@example.com", object{"To": nil}), 422, 300},
		"bad to":      {"/email", mail("no-address", nil), 422, 300},
		"51":          {"/email", mail(strings.Join(simtest.Addresses(51), ","), nil), 422, 300},
		"no body":     {"/email", mail("a@example.com", object{"TextBody": nil}), 422, 300},
		"tag":         {"/email", mail("a@example.com", object{"Tag": strings.Repeat("x", 1001)}), 422, 300},
		"key":         {"/email", mail("a@example.com", object{"Metadata": object{strings.Repeat("x", 21): "v"}}), 422, 300},
		"value":       {"/email", mail("a@example.com", object{"Metadata": object{"k": strings.Repeat("x", 81)}}), 422, 300},
		"text":        {"/email", mail("a@example.com", object{"TextBody": strings.Repeat("x", 5<<20+1)}), 422, 300},
		"attachment":  {"/email", mail("a@example.com", object{"Attachments": []object{{"Name": "f", "Content": "?"}}}), 422, 300},
		"exe":         {"/email", mail("a@example.com", object{"Attachments": []object{{"Name": "f.EXE", "Content": "aGk="}}}), 422, 411},
		"inactive":    {"/email", mail("suppressed-spam@sim.test", nil), 422, 406},
		"empty batch": {"/email/batch", []object{}, 422, 410},
		"501":         {"/email/batch", many, 422, 410},
	} {
		before := c.Stats("pm").Copies
		var r result
		if status := c.call("POST", test.path, test.body, &r); status != test.status || r.ErrorCode != test.code {
			t.Errorf("%s: %d %+v", name, status, r)
		}
		if stored := c.Stats("pm").Copies > before; stored != (test.code == 0) {
			t.Errorf("%s: stored %v", name, stored)
		}
	}
	var r result
	if status := c.call("POST", "/email", mail("a@example.com", nil), &r, "X-Postmark-Server-Token",
		"other"); status != 401 ||
		r.ErrorCode != 10 {
		t.Error(status, r)
	}
	if status := c.call("POST", "/email", mail("a@example.com", nil), &r, "Content-Type", "text/plain"); status != 415 {
		t.Error(status, r)
	}
	before := c.Stats("pm").Copies
	r = result{}
	if status := c.call("POST", "/email", mail("a@example.com", nil), &r, "X-Postmark-Server-Token",
		"POSTMARK_API_TEST"); status != 200 ||
		r.MessageID == "" || c.Stats("pm").Copies != before {
		t.Error(status, r)
	}
}

func TestInactiveAddressAmongOthersGetsNothing(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	var r result
	status := c.call("POST", "/email", mail("a@example.com, Suppressed-Bounce@sim.test", nil), &r)
	if status != 200 || !strings.Contains(r.Message, "inactive addresses: suppressed-bounce@sim.test") ||
		c.Stats("pm").Copies != 1 {
		t.Error(status, r)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	for name, want := range map[string]string{
		"deliver": "Delivery", "hardbounce": "Bounce/HardBounce", "blocked": "Bounce/Blocked",
		"mailboxfull": "Bounce/SoftBounce",
		"softbounce":  "Bounce/Transient Delivery", "invalid": "Bounce/BadEmailAddress", "rejected": "Bounce/SpamNotification",
		"complain": "Delivery SpamComplaint/SpamComplaint", "unsubscribe": "Delivery SubscriptionChange",
		"open": "Delivery Open", "click": "Click Delivery Open", "async": "Bounce/HardBounce Delivery",
		"overquota": "Delivery",
		"lostevent": "", "silent": "", "expire": "Bounce/SoftBounce Bounce/Transient Bounce/Transient",
	} {
		to := name + "@sim.test"
		c.call("POST", "/email", mail(to, nil), &result{})
		var got []string
		posts, _ := c.posts()
		for _, e := range posts {
			if e["Recipient"] != to && e["Email"] != to {
				continue
			}
			kind := e["RecordType"].(string)
			if e["Type"] != nil {
				kind += "/" + e["Type"].(string)
				if e["ID"].(float64) < 1 || e["From"] != "shop@example.com" || e["Subject"] != "S" {
					t.Errorf("%v", e)
				}
			}
			got = append(got, kind)
		}
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for mode, want := range map[string]string{
		"status:401": "401 10", "status:500": "500 0", "status:503": "503 100", simulator.ModeCredits: "422 405",
		simulator.ModeFull: "422 405", simulator.ModeRate: "429 429", simulator.ModeUnverified: "422 400",
		simulator.ModeNotAllowed: "422 413", simulator.ModeBlocked: "403 0", simulator.ModeTooLarge: "413 0",
		simulator.ModeLargeBatch: "422 410", simulator.ModeGarbage: "200 0", simulator.ModeCloseUnread: "0 0",
		simulator.ModeAcceptThenClose: "0 0", simulator.ModeTruncate: "0 0",
	} {
		id := c.Inject(simulator.Fault{Account: "pm", Mode: mode})
		var r result
		before := c.Stats("pm").Copies
		status := c.call("POST", "/email", mail("a@example.com", nil), &r)
		if got := fmt.Sprint(status, " ", r.ErrorCode); got != want {
			t.Errorf("%s: %s", mode, got)
		}
		stored := mode == simulator.ModeAcceptThenClose || mode == simulator.ModeTruncate
		if (c.Stats("pm").Copies > before) != stored {
			t.Errorf("%s: stored %v", mode, !stored)
		}
		c.Clear(id)
	}
	for _, mode := range []string{simulator.ModeHang, simulator.ModeHangAfterBody} {
		id := c.Inject(simulator.Fault{Account: "pm", Mode: mode})
		before := c.Stats("pm")
		r := c.request("POST", "/email", mail("h@example.com", nil))
		go func() {
			if resp, err := c.HTTP.Do(r); err == nil { // it ends with the server
				resp.Body.Close()
			}
		}()
		c.Hooks.Wait(t, "the call hangs", func() bool { return c.Stats("pm").Hung == before.Hung+1 })
		if (c.Stats("pm").Copies > before.Copies) != (mode == simulator.ModeHangAfterBody) {
			t.Errorf("%s: %+v", mode, c.Stats("pm"))
		}
		c.Clear(id)
	}
	c.Close()
}

func TestWebhooksAreRepeatedUntil403(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{500: 4 + 11, 204: 4 + 11, 403: 2, 200: 2} {
		c := open(t, simulator.Options{TimeScale: 1e6})
		c.Hooks.Status = func(*http.Request, []byte) int { return status }
		c.call("POST", "/email/batch", []object{mail("a@example.com", nil), mail("hardbounce@sim.test", nil)}, &[]result{})
		if list, forged := c.posts(); len(list) != want || forged != 0 {
			t.Errorf("%d: %d posts, %d forged", status, len(list), forged)
		}
	}
	c := open(t, simulator.Options{})
	c.Inject(simulator.Fault{Account: "pm", Mode: simulator.ModeBadSignature})
	c.Inject(simulator.Fault{Account: "pm", Mode: simulator.ModeEventsOff, Events: "bounce"})
	c.call("POST", "/email/batch", []object{mail("a@example.com", nil), mail("hardbounce@sim.test", nil)}, &[]result{})
	if list, forged := c.posts(); len(list) != 0 || forged != 1 {
		t.Errorf("%v, %d forged", list, forged)
	}
}

type found struct {
	TotalCount int
	Messages   []struct {
		MessageID  string
		Recipients []string
		Metadata   map[string]string
	}
}

func TestMessagesAreFoundByMetadata(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	for _, to := range []string{"a@example.com", "b@example.com", "hardbounce@sim.test"} {
		c.call("POST", "/email", mail(to, object{"Tag": "t", "Metadata": object{simtest.RecipientKey: to, "chunk": "7"}}),
			&result{})
	}
	c.posts()
	for query, want := range map[string]int{
		"": 3, "&metadata_chunk=7": 3, "&metadata_chunk=8": 0, "&metadata_sd_r=a@example.com": 1,
		"&recipient=b@example.com": 1,
		"&tag=t&fromemail=shop@example.com&messagestream=outbound&status=sent": 3, "&status=queued": 0, "&subject=x": 0,
		"&fromdate=2020-01-01T12:00:00": 3, "&todate=2020-01-01": 0,
	} {
		var f found
		if status := c.call("GET", "/messages/outbound?count=500&offset=0"+query, nil, &f); status != 200 ||
			f.TotalCount != want || len(f.Messages) != want {
			t.Errorf("%s: %d %+v", query, status, f)
		}
	}
	var f found
	if c.call("GET", "/messages/outbound?count=1&offset=1", nil, &f); f.TotalCount != 3 || len(f.Messages) != 1 ||
		f.Messages[0].Recipients[0] != "b@example.com" || f.Messages[0].Metadata["chunk"] != "7" {
		t.Errorf("%+v", f)
	}
	for _, query := range []string{"", "?count=500", "?count=501&offset=0", "?count=500&offset=9501",
		"?count=1&offset=0&fromdate=x"} {
		if status := c.call("GET", "/messages/outbound"+query, nil, &result{}); status != 422 {
			t.Errorf("%s: %d", query, status)
		}
	}
	c.call("GET", "/messages/outbound?count=1&offset=0", nil, &f)
	var d struct {
		MessageEvents []struct {
			Recipient, Type string
			Details         struct{ BounceID string }
		}
	}
	if status := c.call("GET", "/messages/outbound/"+f.Messages[0].MessageID+"/details", nil, &d); status != 200 ||
		len(d.MessageEvents) != 1 || d.MessageEvents[0].Recipient+d.MessageEvents[0].Type != "hardbounce@sim.testBounced" {
		t.Fatal(status, d)
	}
	var b object
	if status := c.call("GET", "/bounces/"+d.MessageEvents[0].Details.BounceID, nil, &b); status != 200 ||
		b["Type"] != "HardBounce" || b["MessageID"] != f.Messages[0].MessageID || b["Metadata"] != nil {
		t.Error(status, b)
	}
	if status := c.call("GET", "/bounces/1", nil, &result{}); status != 422 {
		t.Error(status)
	}
	if status := c.call("GET", "/messages/outbound/x/details", nil, &d); status != 422 {
		t.Error(status)
	}
}

func TestSuppressions(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6, Suppress: true})
	for _, to := range []string{"hardbounce@sim.test", "complain@sim.test", "unsubscribe@sim.test"} {
		c.call("POST", "/email", mail(to, nil), &result{})
	}
	c.posts()
	const path = "/message-streams/outbound/suppressions"
	dump := func(query string) (out []string) {
		var d struct {
			Suppressions []struct {
				EmailAddress, SuppressionReason, Origin string
				CreatedAt                               time.Time
			}
		}
		if status := c.call("GET", path+"/dump"+query, nil, &d); status != 200 {
			t.Error(status)
		}
		for _, e := range d.Suppressions {
			out = append(out, e.EmailAddress+" "+e.SuppressionReason)
		}
		return out
	}
	if list := fmt.Sprint(dump("")); list != "[hardbounce@sim.test HardBounce complain@sim.test SpamComplaint "+
		"unsubscribe@sim.test ManualSuppression]" {
		t.Error(list)
	}
	if list := dump("?SuppressionReason=HardBounce"); len(list) != 1 {
		t.Error(list)
	}
	if list := dump("?fromdate=2099-01-01"); len(list) != 0 {
		t.Error(list)
	}
	var r result
	if c.call("POST", "/email", mail("hardbounce@sim.test", nil), &r); r.ErrorCode != 406 {
		t.Error(r)
	}
	var d struct {
		Suppressions []struct{ EmailAddress, Status string }
	}
	c.call("POST", path+"/delete", object{"Suppressions": []object{{"EmailAddress": "hardbounce@sim.test"},
		{"EmailAddress": "complain@sim.test"}}}, &d)
	if fmt.Sprint(d.Suppressions) != "[{hardbounce@sim.test Deleted} {complain@sim.test Failed}]" || len(dump("")) != 2 {
		t.Error(d, dump(""))
	}
}
