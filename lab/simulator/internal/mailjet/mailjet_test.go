package mailjet_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type object = map[string]any

// A client calls the account mj.
type client struct {
	*simtest.Rig
	t *testing.T
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent, o.RecipientKey = true, "CustomID"
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	if err := r.AddAccount(simulator.Account{Name: "mj", Kind: simulator.Mailjet, Key: "public:private",
		Domain: "example.com", SigningKey: "user:password", WebhookURL: hooks + "mj"}); err != nil {
		t.Fatal(err)
	}
	return &client{r, t}
}

// call makes a request and decodes the answer. The status is 0 if there is no whole answer.
func (c *client) call(method, path string, body, out any, keys ...string) (status int) {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	if raw, ok := body.(string); ok {
		text = []byte(raw)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.URL+"/mj"+path, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	if keys = append(keys, "public", "private"); keys[0] != "" {
		r.SetBasicAuth(keys[0], keys[1])
	}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	_ = json.Unmarshal(answer, out)
	return resp.StatusCode
}

type sent struct {
	Email     string
	MessageID json.Number
}

// An answer is the answer to a call, or the error of all of it.
type answer struct {
	ErrorCode string
	Messages  []struct {
		Status      string
		To, Cc, Bcc []sent
		Errors      []struct {
			ErrorCode      string
			ErrorRelatedTo []string
		}
	}
}

// codes returns the results of the messages: "ok", or the code of the first error.
func (a *answer) codes() (list []string) {
	for _, m := range a.Messages {
		if m.Status == "success" {
			list = append(list, "ok")
		} else {
			list = append(list, m.Errors[0].ErrorCode)
		}
	}
	return append(list, strings.Fields(a.ErrorCode)...)
}

func mail(to string, more object) object {
	m := object{"From": object{"Email": "shop@example.com", "Name": "Shop"}, "To": []object{{"Email": to}}, "Subject": "S",
		"TextPart": "T", "CustomID": strings.Split(to, "@")[0]}
	for k, v := range more {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	return m
}

func messages(list ...object) object { return object{"Messages": list} }

// events returns "recipient event/error" of each event in the webhooks, and how many webhooks lack the credentials.
func (c *client) events() (list []string, forged int) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if r.Account != "mj" {
			continue
		}
		user, password, _ := (&http.Request{Header: r.Header}).BasicAuth()
		if user != "user" || password != "password" {
			forged++
			continue
		}
		var posted []struct {
			Event, Email, Error, CustomID string
			Time                          int64
			MessageID                     json.Number
		}
		if err := json.Unmarshal(r.Body, &posted); err != nil {
			c.t.Fatalf("%v %s", err, r.Body)
		}
		for _, e := range posted {
			if e.Time == 0 || len(e.MessageID.String()) < 17 || e.CustomID != strings.Split(e.Email, "@")[0] {
				c.t.Errorf("%+v", e)
			}
			list = append(list, strings.TrimSuffix(e.Email+" "+e.Event+"/"+e.Error, "/"))
		}
	}
	slices.Sort(list)
	return list, forged
}

func TestEachMessageHasAResult(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	var a answer
	status := c.call("POST", "/v3.1/send", messages(mail("a@example.com", nil), mail("no-address", nil),
		mail("b@example.com", object{"Cc": []object{{"Email": "c@example.com"}}}), mail("refused@sim.test", nil)), &a)
	if status != 400 || fmt.Sprint(a.codes()) != "[ok mj-0013 ok mj-0013]" || a.Messages[1].Errors[0].ErrorRelatedTo[0] !=
		"To[0].Email" {
		t.Error(status, a)
	}
	ids := []string{a.Messages[0].To[0].MessageID.String(), a.Messages[2].To[0].MessageID.String(),
		a.Messages[2].Cc[0].MessageID.String()}
	if slices.Sort(ids); len(slices.Compact(ids)) != 3 || len(ids[0]) < 17 {
		t.Error(ids)
	}
	if c.Stats("mj").Copies != 3 || len(c.Copies("a")) != 1 || c.Copies("a")[0].Text != "T" {
		t.Errorf("%+v", c.Copies("a"))
	}
	if status := c.call("POST", "/v3.1/send", messages(mail("a2@example.com", nil)), &a); status != 200 {
		t.Error(status)
	}
}

func TestInvalidMessagesAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	many := make([]object, 51)
	for i := range many {
		many[i] = mail("a@example.com", nil)
	}
	file := object{"Filename": "f", "ContentType": "text/plain", "Base64Content": "aGk="}
	one := func(more object) object { return messages(mail("a@example.com", more)) }
	for name, test := range map[string]struct {
		body any
		want string
	}{
		"valid":      {one(object{"HTMLPart": "h", "TrackOpens": "enabled", "Headers": object{"X-A": "b"}}), "[ok]"},
		"file":       {one(object{"Attachments": []object{file}}), "[ok]"},
		"not JSON":   {"{", "[mj-0002]"},
		"wrong type": {one(object{"ReplyTo": []object{{"Email": "a@b.test"}}}), "[mj-0002]"},
		"empty":      {messages(), "[mj-0007]"},
		"51":         {messages(many...), "[mj-0008]"},
		"no from":    {one(object{"From": nil}), "[mj-0003]"},
		"bad from":   {one(object{"From": object{"Email": "x"}}), "[mj-0013]"},
		"no to":      {one(object{"To": nil}), "[mj-0003]"},
		"no body":    {one(object{"TextPart": nil}), "[send-0003]"},
		"subject":    {one(object{"Subject": strings.Repeat("ü", 256)}), "[mj-0006]"},
		"header":     {one(object{"Headers": object{"List-Id": "x"}}), "[send-0011]"},
		"own header": {one(object{"Headers": object{"X-MJ-Vars": "x"}}), "[send-0011]"},
		"tracking":   {one(object{"TrackClicks": "disabled"}), "[mj-0005]"},
		"no type":    {one(object{"Attachments": []object{{"Filename": "f", "Base64Content": "aGk="}}}), "[mj-0012]"},
		"not base64": {one(object{"Attachments": []object{{"Filename": "f", "ContentType": "a/b", "Base64Content": "?"}}}),
			"[mj-0012]"},
		"large files": {one(object{"TextPart": strings.Repeat("x", 15<<20+1)}), "[mj-0011]"},
	} {
		before := c.Stats("mj").Copies
		var a answer
		if c.call("POST", "/v3.1/send", test.body, &a); fmt.Sprint(a.codes()) != test.want {
			t.Errorf("%s: %v", name, a.codes())
		}
		if stored := c.Stats("mj").Copies > before; stored != (test.want == "[ok]") {
			t.Errorf("%s: stored %v", name, stored)
		}
	}
	for _, keys := range [][]string{{""}, {"public", "other"}} {
		if status := c.call("POST", "/v3.1/send", one(nil), &answer{}, keys...); status != 401 {
			t.Error(keys, status)
		}
	}
	var a answer
	c.call("POST", "/v3.1/send", messages(mail("code@example.com",
		object{"TextPart": "a[[data:x]]b[[var:y:z]]c[[x]]"})), &a)
	if got := c.Copies("code")[0].Text; got != "abc[[x]]" {
		t.Error(got)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	outcomes := map[string]string{
		"deliver": "sent", "hardbounce": "bounce/user unknown", "blocked": "bounce/policy issue",
		"mailboxfull": "bounce/quota exceeded", "softbounce": "bounce/greylisted sent", "invalid": "blocked/typofix",
		"rejected": "blocked/content blocked", "suppressed-bounce": "blocked/preblocked",
		"suppressed-spam": "blocked/spam reporter", "suppressed-unsub": "sent", "complain": "sent spam",
		"unsubscribe": "sent unsub", "open": "open sent", "click": "click open sent", "async": "bounce/user unknown sent",
		"overquota": "sent", "lostevent": "", "silent": "",
		"expire": "bounce/greylisted bounce/greylisted bounce/no mail host",
	}
	for name := range outcomes {
		c.call("POST", "/v3.1/send", messages(mail(name+"@sim.test", nil)), &answer{})
	}
	events, _ := c.events()
	for name, want := range outcomes {
		var got []string
		for _, e := range events {
			if rest, ok := strings.CutPrefix(e, name+"@sim.test "); ok {
				got = append(got, rest)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for mode, want := range map[string]string{
		"status:401": "401 [mj-0015]", "status:500": "500 []", "status:503": "503 []", simulator.ModeCredits: "403 []",
		simulator.ModeFull: "403 []", simulator.ModeRate: "429 []", simulator.ModeUnverified: "403 [send-0008]",
		simulator.ModeNotAllowed: "401 [mj-0001]", simulator.ModeBlocked: "403 []", simulator.ModeTooLarge: "400 [mj-0011]",
		simulator.ModeLargeBatch: "400 [mj-0008]", simulator.ModeGarbage: "200 []", simulator.ModeCloseUnread: "0 []",
		simulator.ModeAcceptThenClose: "0 []", simulator.ModeTruncate: "0 []",
	} {
		id := c.Inject(simulator.Fault{Account: "mj", Mode: mode})
		var a answer
		before := c.Stats("mj").Copies
		status := c.call("POST", "/v3.1/send", messages(mail("a@example.com", nil)), &a)
		if got := fmt.Sprint(status, " ", a.codes()); got != want {
			t.Errorf("%s: %s", mode, got)
		}
		stored := mode == simulator.ModeAcceptThenClose || mode == simulator.ModeTruncate
		if (c.Stats("mj").Copies > before) != stored {
			t.Errorf("%s: stored %v", mode, !stored)
		}
		c.Clear(id)
	}
	c.Inject(simulator.Fault{Account: "mj", Mode: simulator.ModeBadSignature})
	c.call("POST", "/v3.1/send", messages(mail("b@example.com", nil)), &answer{})
	if _, forged := c.events(); forged != 1 {
		t.Errorf("%d forged", forged)
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	for _, to := range []string{"a@example.com", "hardbounce@sim.test", "click@sim.test"} {
		c.call("POST", "/v3.1/send", messages(mail(to, nil)), &answer{})
	}
	c.events()
	type page struct {
		Count, Total int
		Data         []struct {
			ID                                                json.Number
			CustomID, ContactAlt, EventType, State, ArrivedAt string
			StatePermanent                                    bool
		}
	}
	now := time.Now().Unix()
	for query, want := range map[string]string{
		"": "3/3", "?CustomID=click": "1/1", "?CustomID=x": "0/0", "?Limit=1&Offset=1": "1/3",
		fmt.Sprintf("?FromTS=%d", now+60): "0/0",
		fmt.Sprintf("?ToTS=%d", now-60):   "0/0", "?FromTS=1577836800": "3/3",
	} {
		var p page
		status := c.call("GET", "/v3/REST/message"+query, nil, &p)
		if status != 200 || fmt.Sprintf("%d/%d", len(p.Data), p.Total) != want {
			t.Errorf("%s: %d %+v", query, status, p)
		}
	}
	for _, query := range []string{"?Limit=1001", "?Limit=x", "?FromTS=x", "?Offset=-1"} {
		if status := c.call("GET", "/v3/REST/message"+query, nil, &page{}); status != 400 {
			t.Error(query, status)
		}
	}
	var p, h page
	if c.call("GET", "/v3/REST/message?Limit=1000", nil, &p); p.Data[0].CustomID+p.Data[0].ContactAlt != "" {
		t.Error("ids and addresses are shown only if they are asked for")
	}
	c.call("GET", "/v3/REST/message?ShowCustomID=true&ShowContactAlt=true", nil, &p)
	for i, want := range []string{"queued sent", "queued hardbounced/user unknown", "queued sent opened clicked"} {
		var got []string
		c.call("GET", "/v3/REST/messagehistory/"+p.Data[i].ID.String(), nil, &h)
		for _, e := range h.Data {
			got = append(got, strings.TrimSuffix(e.EventType+"/"+e.State, "/"))
		}
		if m := p.Data[i]; strings.Join(got, " ") != want || m.CustomID != strings.Split(m.ContactAlt, "@")[0] ||
			m.StatePermanent != (i == 1) {
			t.Errorf("%+v: %v", m, got)
		}
	}
	if status := c.call("GET", "/v3/REST/messagehistory/1", nil, &h); status != 404 {
		t.Error(status)
	}
}
