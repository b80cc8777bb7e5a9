package sparkpost_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type object = map[string]any

// A client calls the account sp.
type client struct {
	*simtest.Rig
	t *testing.T
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent = true
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	if err := r.AddAccount(simulator.Account{Name: "sp", Kind: simulator.SparkPost, Key: "key", Domain: "example.com",
		SigningKey: "user:password", WebhookURL: hooks + "sp"}); err != nil {
		t.Fatal(err)
	}
	return &client{r, t}
}

// An answer is the answer to a call.
type answer struct {
	Errors  []struct{ Code, Message string }
	Results struct {
		Accepted int `json:"total_accepted_recipients"`
		Rejected int `json:"total_rejected_recipients"`
		ID       string
	}
}

func (a answer) String() string {
	code := ""
	if len(a.Errors) > 0 {
		code = a.Errors[0].Code
	}
	return fmt.Sprintf("%d+%d %s", a.Results.Accepted, a.Results.Rejected, code)
}

// call makes a request and decodes the answer. The status is 0 if there is no whole answer.
func (c *client) call(method, path string, body, out any, header ...string) (status int) {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	if raw, ok := body.(string); ok {
		text = []byte(raw)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.URL+"/sp/api/v1/"+path, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "key")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	_ = json.Unmarshal(read, out)
	return resp.StatusCode
}

func to(addresses ...string) (list []object) {
	for _, a := range addresses {
		list = append(list, object{"address": object{"email": a, "name": "N"},
			"metadata": object{simtest.RecipientKey: strings.Split(a, "@")[0]}})
	}
	return list
}

// transmission returns the body of a call whose content has more members, or lacks those that are nil.
func transmission(recipients []object, more object) object {
	content := object{"from": object{"email": "shop@example.com"}, "subject": "S", "text": "T"}
	for k, v := range more {
		if content[k] = v; v == nil {
			delete(content, k)
		}
	}
	return object{"campaign_id": "c1", "recipients": recipients, "content": content}
}

// events returns "recipient type/class" of each event in the webhooks, and how many webhooks lack the credentials.
func (c *client) events() (list []string, forged int) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if r.Account != "sp" {
			continue
		}
		user, password, _ := (&http.Request{Header: r.Header}).BasicAuth()
		if user != "user" || password != "password" || len(r.Header.Get("X-MessageSystems-Batch-ID")) != 32 {
			forged++
			continue
		}
		var posted []struct {
			Msys map[string]struct {
				Type, Timestamp string
				ID              string            `json:"event_id"`
				To              string            `json:"raw_rcpt_to"`
				Class           string            `json:"bounce_class"`
				Campaign        string            `json:"campaign_id"`
				Metadata        map[string]string `json:"rcpt_meta"`
			}
		}
		if err := json.Unmarshal(r.Body, &posted); err != nil {
			c.t.Fatalf("%v %s", err, r.Body)
		}
		for _, p := range posted {
			for _, e := range p.Msys {
				if len(e.Timestamp) != 10 || e.ID == "" || e.Campaign != "c1" ||
					e.Metadata[simtest.RecipientKey] != strings.Split(e.To, "@")[0] {
					c.t.Errorf("%+v", e)
				}
				list = append(list, strings.TrimSuffix(e.To+" "+e.Type+"/"+e.Class, "/"))
			}
		}
	}
	slices.Sort(list)
	return list, forged
}

func TestRejectedRecipientsAreCounted(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	var a answer
	list := to("a@example.com", "no-address", "refused@sim.test", "b@example.com")
	status := c.call("POST", "transmissions", transmission(list, nil), &a)
	if status != 200 || a.String() != "2+2 2000" || c.Stats("sp").Copies != 2 || a.Results.ID == "" {
		t.Error(status, a)
	}
	a = answer{}
	status = c.call("POST", "transmissions", transmission(to("refused@sim.test"), nil), &a)
	if status != 400 || a.String() != "0+0 5002" {
		t.Error(status, a)
	}
	if status := c.call("POST", "transmissions", transmission(to("no-address"), nil), &a); status != 400 {
		t.Error(status, a)
	}
}

func TestInvalidTransmissionsAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	one := to("a@example.com")
	long := to("a@example.com")
	long[0]["substitution_data"] = object{"v": strings.Repeat("x", 100<<10+1)}
	campaign := transmission(one, nil)
	campaign["campaign_id"] = strings.Repeat("x", 65)
	file := func(data string) []object { return []object{{"name": "f", "type": "text/plain", "data": data}} }
	for name, test := range map[string]struct {
		body   any
		status int
		code   string
	}{
		"valid":         {transmission(one, object{"attachments": file("aGk="), "inline_images": file("aGk=")}), 200, ""},
		"not JSON":      {"{", 422, "1300"},
		"no recipients": {transmission(nil, nil), 422, "1400"},
		"no from":       {transmission(one, object{"from": nil}), 422, "1400"},
		"no subject":    {transmission(one, object{"subject": nil}), 422, "1400"},
		"no body":       {transmission(one, object{"text": nil}), 422, "1400"},
		"bad from":      {transmission(one, object{"from": object{"email": "x"}}), 400, "7001"},
		"campaign":      {campaign, 422, "1300"},
		"file":          {transmission(one, object{"attachments": file("?")}), 422, "1300"},
		"values":        {transmission(long, nil), 400, "5002"},
		"large":         {transmission(one, object{"text": strings.Repeat("x", 20<<20+1)}), 413, ""},
		"statement":     {transmission(one, object{"text": "{{if x}}a{{end}}"}), 422, "3000"},
		"open":          {transmission(one, object{"html": "{{ x"}), 422, "3000"},
		"beside":        {transmission(one, object{"html": "{{{{x}}}}"}), 422, "3000"},
		"header":        {transmission(one, object{"headers": object{"X-A": "}}"}}), 422, "3000"},
	} {
		before := c.Stats("sp").Copies
		var a answer
		status := c.call("POST", "transmissions", test.body, &a)
		if status != test.status || test.code != "" && a.Errors[0].Code != test.code {
			t.Errorf("%s: %d %v", name, status, a)
		}
		if stored := c.Stats("sp").Copies > before; stored != (test.status == 200) {
			t.Errorf("%s: stored %v", name, stored)
		}
	}
	if status := c.call("POST", "transmissions", transmission(one, nil), &answer{}, "Authorization",
		"Bearer key"); status != 401 {
		t.Error(status)
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	list := to("a@example.com", "b@example.com")
	list[0]["substitution_data"] = object{"v": `<b> & {{w}}`}
	body := transmission(list, object{"subject": "{{v}}|{{{v}}}",
		"text": "{{ v }} https://x.test/?{{v}}&{{{v}}} {{none}}|",
		"html": `{{v}}|{{{v}}}|<a href="https://x.test/?{{v}}">{{address.name}}</a>`, "headers": object{"X-A": "{{{v}}} ü"}})
	body["substitution_data"] = object{"v": "all", "w": "other"}
	c.call("POST", "transmissions", body, &answer{})
	a, b := c.Copies("a")[0], c.Copies("b")[0]
	const v = "<b> & {{w}}"
	if a.Subject != v+"|"+v || a.Text != v+" https://x.test/?%3Cb%3E+%26+%7B%7Bw%7D%7D&"+v+" |" ||
		a.Headers["X-A"] != v+" ü" ||
		a.HTML != "&lt;b&gt; &amp; {{w}}|"+v+`|<a href="https://x.test/?%3Cb%3E+%26+%7B%7Bw%7D%7D">N</a>` {
		t.Errorf("%+v", a.Content)
	}
	if b.Subject != "all|all" {
		t.Errorf("%+v", b.Content)
	}
}

func TestCopiesAreOneMail(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	list := to("a@example.com", "b@example.com", "c@example.com")
	for i := range list {
		list[i]["address"].(object)["header_to"] = `"A" <a@example.com>`
		list[i]["metadata"] = object{simtest.RecipientKey: "a"}
	}
	c.call("POST", "transmissions", transmission(list, object{"headers": object{"CC": `"B" <b@example.com>`}}), &answer{})
	for id, want := range map[string]string{"a": "[b@example.com]", "a/b@example.com": "[a@example.com]",
		"a/c@example.com": "[a@example.com b@example.com]"} {
		if copies := c.Copies(id); len(copies) != 1 || fmt.Sprint(copies[0].Visible) != want {
			t.Errorf("%s: %+v", id, copies)
		}
	}
}

func TestKeysAnswerRepeats(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	body := transmission(to("a@example.com"), nil)
	var first, again, other answer
	c.call("POST", "transmissions", body, &first, "Idempotency-Key", "k-1")
	status := c.call("POST", "transmissions", body, &again, "Idempotency-Key", "k-1")
	if status != 200 || first.Results != again.Results || c.Stats("sp").Copies != 1 {
		t.Error(status, first, again)
	}
	status = c.call("POST", "transmissions", transmission(to("b@example.com"), nil), &other, "Idempotency-Key", "k-1")
	if status != 409 || other.Errors[0].Code != "1601" {
		t.Error(status, other)
	}
	other = answer{}
	status = c.call("POST", "transmissions", body, &other, "Idempotency-Key", "a b")
	if status != 400 || other.Errors[0].Code != "1602" {
		t.Error(status, other)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	outcomes := map[string]string{
		"deliver": "delivery injection", "hardbounce": "bounce/10 injection", "blocked": "bounce/50 injection",
		"mailboxfull": "bounce/22 injection", "softbounce": "delay/20 delivery injection", "invalid": "bounce/10 injection",
		"rejected": "injection policy_rejection/25", "suppressed-bounce": "generation_rejection",
		"suppressed-spam": "generation_rejection", "suppressed-unsub": "generation_rejection",
		"complain": "delivery injection spam_complaint", "unsubscribe": "delivery injection list_unsubscribe",
		"open": "delivery injection open", "click": "click delivery injection open",
		"async":     "delivery injection out_of_band/10",
		"overquota": "delivery injection", "lostevent": "injection", "silent": "",
		"expire": "bounce/24 delay/20 delay/20 injection",
	}
	for name := range outcomes {
		c.call("POST", "transmissions", transmission(to(name+"@sim.test"), nil), &answer{})
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
		"status:401": "401 0+0 ", "status:500": "500 0+0 ", "status:503": "503 0+0 ", simulator.ModeCredits: "420 0+0 2102",
		simulator.ModeFull: "420 0+0 2101", simulator.ModeRate: "429 0+0 ", simulator.ModeUnverified: "400 0+0 7001",
		simulator.ModeNotAllowed: "403 0+0 ", simulator.ModeBlocked: "403 0+0 ", simulator.ModeTooLarge: "413 0+0 ",
		simulator.ModeLargeBatch: "413 0+0 ", simulator.ModeGarbage: "200 0+0 ", simulator.ModeCloseUnread: "0 0+0 ",
		simulator.ModeAcceptThenClose: "0 0+0 ", simulator.ModeTruncate: "0 0+0 ",
	} {
		id := c.Inject(simulator.Fault{Account: "sp", Mode: mode})
		var a answer
		before := c.Stats("sp").Copies
		status := c.call("POST", "transmissions", transmission(to("a@example.com"), nil), &a)
		if got := fmt.Sprint(status, " ", a); got != want {
			t.Errorf("%s: %s", mode, got)
		}
		stored := mode == simulator.ModeAcceptThenClose || mode == simulator.ModeTruncate
		if (c.Stats("sp").Copies > before) != stored {
			t.Errorf("%s: stored %v", mode, !stored)
		}
		c.Clear(id)
	}
	c.Inject(simulator.Fault{Account: "sp", Mode: simulator.ModeBadSignature})
	c.call("POST", "transmissions", transmission(to("b@example.com"), nil), &answer{})
	if _, forged := c.events(); forged < 1 {
		t.Errorf("%d forged", forged)
	}
}

func TestEventsAreFoundByCampaign(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	three := to("a@example.com", "B@example.com", "hardbounce@sim.test")
	c.call("POST", "transmissions", transmission(three, nil), &answer{})
	other := transmission(to("a@example.com"), nil)
	other["campaign_id"] = "c2"
	c.call("POST", "transmissions", other, &answer{})
	c.SettleAll(t)
	type page struct {
		Results []struct{ Type, Timestamp string }
		Total   int `json:"total_count"`
		Links   struct{ Next string }
	}
	at := func(d time.Duration) string { return url.QueryEscape(time.Now().Add(d).UTC().Format(time.RFC3339)) }
	soon := "to=" + at(time.Minute)
	for query, want := range map[string]string{
		soon: "8/8", soon + "&campaigns=c1": "6/6", soon + "&campaigns=c1,C2": "8/8", soon + "&campaigns=c": "0/0",
		soon + "&recipients=b@example.com": "2/2", soon + "&events=bounce,delivery&campaigns=c1": "3/3",
		"from=" + at(time.Hour): "0/0",
		"to=" + at(-time.Hour):  "0/0", soon + "&per_page=3": "3/8", soon + "&per_page=3&cursor=at-6": "2/8",
	} {
		var p page
		status := c.call("GET", "events/message?"+query, nil, &p)
		got := fmt.Sprintf("%d/%d", len(p.Results), p.Total)
		if status != 200 || got != want || (p.Links.Next != "") != (want == "3/8") {
			t.Errorf("%s: %d %s %+v", query, status, got, p.Links)
		}
	}
	for _, query := range []string{"per_page=0", "per_page=10001", "from=x", "cursor=x",
		"campaigns=" + strings.Repeat("x", 4096)} {
		if status := c.call("GET", "events/message?"+query, nil, &page{}); status != 400 {
			t.Error(query[:9], status)
		}
	}
}

func TestSuppressions(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6, Suppress: true})
	outcomes := to("hardbounce@sim.test", "complain@sim.test", "unsubscribe@sim.test")
	c.call("POST", "transmissions", transmission(outcomes, nil), &answer{})
	c.SettleAll(t)
	added := simulator.Suppressed{Address: "x@example.com", List: "Compliance", At: time.Now().Add(-time.Hour)}
	if err := c.Suppress("sp", added); err != nil {
		t.Fatal(err)
	}
	list := func(query string) (out []string) {
		var p struct {
			Results []struct{ Recipient, Source, Type, Updated string }
			Links   []struct{ Href, Rel string }
		}
		if status := c.call("GET", "suppression-list"+query, nil, &p); status != 200 && status != 404 {
			t.Error(query, status)
		}
		for _, e := range p.Results {
			out = append(out, e.Recipient+" "+e.Source)
		}
		for _, l := range p.Links {
			out = append(out, l.Rel)
		}
		return out
	}
	for query, want := range map[string]string{
		"": "[hardbounce@sim.test Bounce Rule complain@sim.test Spam Complaint unsubscribe@sim.test List Unsubscribe " +
			"x@example.com Compliance]",
		"?sources=Bounce+Rule":       "[hardbounce@sim.test Bounce Rule]",
		"?types=transactional":       "[]",
		"?per_page=3&cursor=at-3":    "[x@example.com Compliance]",
		"?per_page=1":                "[hardbounce@sim.test Bounce Rule next]",
		"/HardBounce@sim.test":       "[hardbounce@sim.test Bounce Rule]",
		"/unknown@sim.test":          "[]",
		"?from=2099-01-01T00:00:00Z": "[]",
	} {
		if got := fmt.Sprint(list(query)); got != want {
			t.Errorf("%s: %s", query, got)
		}
	}
	for _, test := range []struct {
		address, kind string
		status        int
	}{
		{"hardbounce@sim.test", "transactional", 404}, {"hardbounce@sim.test", "non_transactional", 204},
		{"hardbounce@sim.test", "non_transactional", 404}, {"x@example.com", "non_transactional", 403},
	} {
		status := c.call("DELETE", "suppression-list/"+test.address+"?list_id=", object{"type": test.kind}, &answer{})
		if status != test.status {
			t.Errorf("%+v: %d", test, status)
		}
	}
	if got := list("/hardbounce@sim.test"); len(got) != 0 {
		t.Error(got)
	}
}
