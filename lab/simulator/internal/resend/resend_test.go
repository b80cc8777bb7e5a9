package resend_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

type object = map[string]any

// A client calls the account rs.
type client struct {
	*simtest.Rig
	t   *testing.T
	key []byte // of webhooks
}

func open(t *testing.T, o simulator.Options) *client {
	t.Helper()
	o.KeepContent = true
	r := simtest.New(t, o)
	hooks := strings.TrimSuffix(r.Accounts()[0].WebhookURL, "sg")
	if err := r.AddAccount(simulator.Account{Name: "rs", Kind: simulator.Resend, Key: "re_k",
		WebhookURL: hooks + "rs"}); err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Accounts()[2].SigningKey, "whsec_"))
	if err != nil || len(key) != 24 {
		t.Fatal(err, len(key))
	}
	return &client{r, t, key}
}

// request returns a request. Header has pairs of names and values.
func (c *client) request(method, path string, body any, header ...string) *http.Request {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	if raw, ok := body.(string); ok {
		text = []byte(raw)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.URL+"/rs"+path, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer re_k")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// call makes a request and returns the answer. The status is below 200 if there is no whole answer.
func (c *client) call(method, path string, body any, header ...string) (int, object, http.Header) {
	c.t.Helper()
	resp, err := c.HTTP.Do(c.request(method, path, body, header...))
	if err != nil {
		return 0, nil, nil
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return -1, nil, nil // the connection was closed in the middle
	}
	var out object
	if json.Unmarshal(answer, &out) != nil {
		out = object{"text": string(answer)}
	}
	return resp.StatusCode, out, resp.Header
}

func mail(to string, more object) object {
	m := object{"from": "Shop <shop@example.com>", "to": []string{to}, "subject": "S", "text": "T",
		"tags": []object{{"name": simtest.RecipientKey, "value": strings.Split(to, "@")[0]}}}
	for k, v := range more {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	return m
}

// events returns "recipient type" of each webhook, and checks its signature.
func (c *client) events() (list []string) {
	c.t.Helper()
	c.SettleAll(c.t)
	for _, r := range c.Hooks.Requests() {
		if r.Account != "rs" {
			continue
		}
		var e struct {
			Type      string
			CreatedAt time.Time `json:"created_at"`
			Data      struct {
				ID        string `json:"email_id"`
				To        []string
				Tags      map[string]string
				CreatedAt time.Time `json:"created_at"`
			}
		}
		if err := json.Unmarshal(r.Body, &e); err != nil {
			c.t.Fatalf("%v %s", err, r.Body)
		}
		mac := hmac.New(sha256.New, c.key)
		fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("svix-id"), r.Header.Get("svix-timestamp"), r.Body)
		if "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) != r.Header.Get("svix-signature") {
			list = append(list, "forged")
			continue
		}
		if len(e.Data.ID) != 36 || e.CreatedAt.IsZero() || e.Data.CreatedAt.IsZero() ||
			e.Data.Tags[simtest.RecipientKey] != strings.Split(e.Data.To[0], "@")[0] {
			c.t.Errorf("%s", r.Body)
		}
		list = append(list, strings.Join(e.Data.To, ",")+" "+e.Type)
	}
	slices.Sort(list)
	return list
}

func TestBatchAndItsEvents(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	var list []object
	for i := range 100 {
		list = append(list, mail(fmt.Sprintf("a%d@example.com", i), nil))
	}
	status, answer, _ := c.call("POST", "/emails/batch", list)
	data, _ := answer["data"].([]any)
	if status != 200 || len(data) != 100 {
		t.Fatal(status, answer)
	}
	for i := range data {
		copies := c.Copies(fmt.Sprintf("a%d", i))
		if len(copies) != 1 || copies[0].ProviderID != data[i].(object)["id"] || copies[0].Visible != nil ||
			copies[0].Subject != "S" || copies[0].From != "shop@example.com" {
			t.Fatalf("%+v", copies)
		}
	}
	if list := c.events(); len(list) != 200 || list[0] != "a0@example.com email.delivered" ||
		list[1] != "a0@example.com email.sent" {
		t.Errorf("%d events %v", len(list), list[:2])
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	for name, want := range map[string]string{
		"deliver": "delivered sent", "hardbounce": "bounced sent", "blocked": "bounced sent", "mailboxfull": "bounced sent",
		"softbounce": "delivered delivery_delayed sent", "expire": "bounced delivery_delayed delivery_delayed sent",
		"suppressed-bounce": "suppressed", "suppressed-spam": "suppressed", "suppressed-unsub": "delivered sent",
		"invalid": "bounced sent", "rejected": "bounced sent", "overquota": "failed sent",
		"complain": "complained delivered sent",
		"open":     "delivered opened sent", "click": "clicked delivered opened sent", "async": "bounced delivered sent",
		"unsubscribe": "delivered sent", "lostevent": "sent", "silent": "",
	} {
		to := name + "@sim.test"
		if status, answer, _ := c.call("POST", "/emails", mail(to, nil)); status != 200 {
			t.Fatal(name, status, answer)
		}
		var got []string
		for _, e := range c.events() {
			if rest, ok := strings.CutPrefix(e, to+" email."); ok {
				got = append(got, rest)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestInvalidEmailsAreRefused(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	many := make([]object, 101)
	for i := range many {
		many[i] = mail("a@example.com", nil)
	}
	type file = []object
	for name, test := range map[string]struct {
		path   string
		body   any
		status int
		want   string
	}{
		"valid":         {"/emails", mail("a@example.com", object{"to": "Ann <a@example.com>", "cc": "c@example.com"}), 200, ""},
		"template":      {"/emails", mail("a@example.com", object{"text": nil, "subject": nil, "template": object{"id": "t"}}), 200, ""},
		"not JSON":      {"/emails", "{", 400, "validation_error"},
		"a list":        {"/emails", "[]", 400, "validation_error"},
		"an object":     {"/emails/batch", "{}", 400, "validation_error"},
		"wrong type":    {"/emails", mail("a@example.com", object{"subject": 1}), 400, "validation_error"},
		"no from":       {"/emails", mail("a@example.com", object{"from": nil}), 422, "missing_required_field"},
		"bad from":      {"/emails", mail("a@example.com", object{"from": "x"}), 422, "invalid_from_address"},
		"no to":         {"/emails", mail("a@example.com", object{"to": nil}), 422, "missing_required_field"},
		"bad to":        {"/emails", mail("no-address", nil), 422, "validation_error"},
		"number as to":  {"/emails", mail("a@example.com", object{"to": 1}), 422, "validation_error"},
		"51 recipients": {"/emails", mail("a@example.com", object{"to": simtest.Addresses(51)}), 422, "validation_error"},
		"no subject":    {"/emails", mail("a@example.com", object{"subject": nil}), 422, "missing_required_field"},
		"no body":       {"/emails", mail("a@example.com", object{"text": nil}), 422, "missing_required_field"},
		"tag": {"/emails", mail("a@example.com", object{"tags": []object{{"name": "a b", "value": "c"}}}), 422,
			"validation_error"},
		"attachment": {"/emails", mail("a@example.com", object{"attachments": file{{"filename": "f", "content": "?"}}}), 422,
			"invalid_attachment"},
		"empty batch": {"/emails/batch", []object{}, 422, "validation_error"},
		"101":         {"/emails/batch", many, 422, "validation_error"},
		"one of two":  {"/emails/batch", []object{mail("a@example.com", nil), mail("no-address", nil)}, 422, "validation_error"},
		"refused":     {"/emails/batch", []object{mail("a@example.com", nil), mail("refused@sim.test", nil)}, 422, "validation_error"},
	} {
		before := c.Stats("rs").Copies
		status, answer, _ := c.call("POST", test.path, test.body)
		if status != test.status || test.want != "" && answer["name"] != test.want {
			t.Errorf("%s: %d %v", name, status, answer)
		}
		if stored := c.Stats("rs").Copies > before; stored != (status == 200) {
			t.Errorf("%s: stored %v", name, stored)
		}
	}
	for key, want := range map[string]string{"": "missing_api_key", "Bearer other": "invalid_api_key"} {
		if status, answer, _ := c.call("POST", "/emails", mail("a@example.com", nil), "Authorization",
			key); answer["name"] != want {
			t.Error(key, status, answer)
		}
	}
	for path, want := range map[string]int{"GET /emails/x": 404, "GET /none": 404, "PUT /emails": 405,
		"GET /domains": 200} {
		method, path, _ := strings.Cut(path, " ")
		if status, answer, _ := c.call(method, path, nil); status != want {
			t.Error(path, status, answer)
		}
	}
}

func TestPermissiveBatchSendsTheValidOnes(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	c.Inject(simulator.Fault{Account: "rs", Mode: simulator.ModeRefuse, Pattern: "c@*"})
	status, answer, _ := c.call("POST", "/emails/batch", []object{mail("a@example.com", nil), mail("no-address", nil),
		mail("b@example.com", nil), mail("c@example.com", nil)}, "x-batch-validation", "permissive")
	if status != 200 || len(answer["data"].([]any)) != 2 || fmt.Sprint(answer["errors"].([]any)[0].(object)["index"],
		answer["errors"].([]any)[1].(object)["index"]) != "1 3" || c.Stats("rs").Copies != 2 {
		t.Error(status, answer)
	}
}

func TestAttachmentsVanishInBatches(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	more := object{"attachments": []object{{"filename": "f.txt", "content": "aGk=", "content_type": "text/plain"}},
		"headers": object{"X-A": "1"}, "reply_to": "r@example.com", "bcc": []string{"d@example.com"}}
	c.call("POST", "/emails", mail("a@example.com", more))
	c.call("POST", "/emails/batch", []object{mail("b@example.com", more)})
	a, b := c.Copies("a"), c.Copies("b")
	if len(a) != 1 || len(b) != 1 || len(a[0].Attachments) != 1 || a[0].Attachments[0].Size != 2 ||
		len(b[0].Attachments) != 0 ||
		a[0].Headers["X-A"] != "1" || a[0].Headers["Reply-To"] != "r@example.com" {
		t.Errorf("%+v %+v", a, b)
	}
	if d := c.Copies("a/d@example.com"); len(d) != 1 || d[0].Role != "bcc" {
		t.Errorf("%+v", d)
	}
}

func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := simulator.New(simulator.Options{RecipientKey: simtest.RecipientKey})
		defer sim.Close()
		if err := sim.AddAccount(simulator.Account{Name: "rs", Kind: simulator.Resend, Key: "re_k"}); err != nil {
			t.Fatal(err)
		}
		send := func(key, to string) (status int, answer object) {
			t.Helper()
			body, err := json.Marshal(mail(to, nil))
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("POST", "/rs/emails", bytes.NewReader(body))
			r.Header = http.Header{"Authorization": {"Bearer re_k"}, "Idempotency-Key": {key}}
			w := httptest.NewRecorder()
			sim.ServeHTTP(w, r)
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
				t.Fatal(err)
			}
			return w.Code, answer
		}
		_, first := send("k", "a@example.com")
		time.Sleep(24*time.Hour - time.Second)
		if status, again := send("k", "a@example.com"); status != 200 || again["id"] != first["id"] ||
			len(sim.Copies("a")) != 1 {
			t.Error(status, first, again)
		}
		if status, answer := send("k", "b@example.com"); status != 409 || answer["name"] != "invalid_idempotent_request" {
			t.Error(status, answer)
		}
		long := strings.Repeat("k", 257)
		if status, answer := send(long, "a@example.com"); status != 400 || answer["name"] != "invalid_idempotency_key" {
			t.Error(status, answer)
		}
		time.Sleep(time.Second) // the key is free again after a day
		if status, again := send("k", "b@example.com"); status != 200 || again["id"] == first["id"] ||
			len(sim.Copies("b")) != 1 {
			t.Error(status, again)
		}
		// A refused call does not take its key.
		sim.Inject(simulator.Fault{Account: "rs", Mode: "status:503", Times: 1})
		if status, _ := send("r", "d@example.com"); status != 503 {
			t.Error(status)
		}
		if status, _ := send("r", "e@example.com"); status != 200 {
			t.Error(status)
		}
		if st := sim.Stats("rs"); st.Calls != 7 || st.Accepted != 3 || st.Copies != 3 {
			t.Errorf("%+v", st)
		}
	})
}

func TestLostAnswerIsFoundByItsKey(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for _, mode := range []string{simulator.ModeAcceptThenClose, simulator.ModeTruncate} {
		c.Inject(simulator.Fault{Account: "rs", Mode: mode, Times: 1})
		to := mode + "@example.com"
		if status, _, _ := c.call("POST", "/emails", mail(to, nil), "Idempotency-Key", mode); status > 0 {
			t.Error(mode, status)
		}
		c.Hooks.Wait(t, "the call has ended", func() bool { return c.Stats("rs").InFlight == 0 })
		status, answer, _ := c.call("POST", "/emails", mail(to, nil), "Idempotency-Key", mode)
		if copies := c.Copies(mode); status != 200 || len(copies) != 1 || copies[0].ProviderID != answer["id"] {
			t.Errorf("%s: %d %v %+v", mode, status, answer, copies)
		}
	}
	// While a call hangs, its key is in use.
	c.Inject(simulator.Fault{Account: "rs", Mode: simulator.ModeHangAfterBody, Times: 1})
	r := c.request("POST", "/emails", mail("h@example.com", nil), "Idempotency-Key", "h")
	go func() {
		if resp, err := c.HTTP.Do(r); err == nil { // it ends with the server
			resp.Body.Close()
		}
	}()
	c.Hooks.Wait(t, "the call hangs", func() bool { return c.Stats("rs").Hung == 1 })
	status, answer, _ := c.call("POST", "/emails", mail("h@example.com", nil), "Idempotency-Key", "h")
	if status != 409 || answer["name"] != "concurrent_idempotent_requests" || len(c.Copies("h")) != 1 {
		t.Error(status, answer)
	}
	c.Close()
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{})
	for mode, want := range map[string]string{
		"status:401": "401 missing_api_key", "status:403": "403 invalid_api_key", "status:500": "500 application_error",
		"status:502": "502 <nil>", "status:503": "503 service_unavailable", simulator.ModeCredits: "429 daily_quota_exceeded",
		simulator.ModeFull: "429 monthly_quota_exceeded", simulator.ModeRate: "429 rate_limit_exceeded",
		simulator.ModeUnverified: "403 validation_error", simulator.ModeNotAllowed: "403 suspended_api_key",
		simulator.ModeBlocked: "403 invalid_permission", simulator.ModeTooLarge: "413 validation_error",
		simulator.ModeRefuse: "422 validation_error", simulator.ModeGarbage: "200 <nil>",
		simulator.ModeCloseUnread: "0 <nil>", simulator.ModeLargeBatch: "422 validation_error",
	} {
		id := c.Inject(simulator.Fault{Account: "rs", Mode: mode, RetryAfter: 90 * time.Second})
		status, answer, header := c.call("POST", "/emails", mail("a@example.com", nil))
		if got := fmt.Sprint(status, " ", answer["name"]); got != want {
			t.Errorf("%s: %s", mode, got)
		}
		if wait := header.Get("retry-after"); (wait == "90") != (mode == simulator.ModeRate) {
			t.Errorf("%s: retry after %q", mode, wait)
		}
		c.Clear(id)
	}
	if n := c.Stats("rs").Copies; n != 0 {
		t.Errorf("%d copies", n)
	}
}

func TestWebhooksAreRepeatedWithNewSignatures(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	c.Hooks.Status = func(r *http.Request, _ []byte) int { return 500 }
	c.call("POST", "/emails", mail("a@example.com", nil))
	if list := c.events(); len(list) != 16 || slices.Contains(list, "forged") {
		t.Errorf("%d posts: %v", len(list), list)
	}
	ids := map[string]int{}
	for _, r := range c.Hooks.Requests() {
		ids[r.Header.Get("svix-id")]++
	}
	if len(ids) != 2 {
		t.Errorf("ids %v", ids)
	}
	c.Inject(simulator.Fault{Account: "rs", Mode: simulator.ModeBadSignature})
	c.call("POST", "/emails", mail("b@example.com", nil))
	if list := c.events(); !slices.Contains(list, "forged") {
		t.Errorf("%v", list)
	}
}

func TestEmailsByPage(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6})
	for _, to := range []string{"a@example.com", "hardbounce@sim.test", "c@example.com"} {
		c.call("POST", "/emails", mail(to, nil))
	}
	c.events()
	_, page, _ := c.call("GET", "/emails?limit=2", nil)
	data := page["data"].([]any)
	if len(data) != 2 || page["has_more"] != true || data[0].(object)["to"].([]any)[0] != "c@example.com" ||
		data[1].(object)["last_event"] != "bounced" {
		t.Fatal(page)
	}
	last := data[1].(object)["id"].(string)
	if _, page, _ := c.call("GET", "/emails?after="+last, nil); len(page["data"].([]any)) != 1 ||
		page["has_more"] != false {
		t.Error(page)
	}
	if _, page, _ := c.call("GET", "/emails?before="+last, nil); len(page["data"].([]any)) != 1 {
		t.Error(page)
	}
	if status, one, _ := c.call("GET", "/emails/"+last, nil); status != 200 || one["last_event"] != "bounced" {
		t.Error(status, one)
	}
	if status, _, _ := c.call("GET", "/emails?limit=101", nil); status != 422 {
		t.Error(status)
	}
}

func TestSuppressionList(t *testing.T) {
	t.Parallel()
	c := open(t, simulator.Options{TimeScale: 1e6, Suppress: true})
	for _, to := range []string{"hardbounce@sim.test", "complain@sim.test", "a@sim.test"} {
		c.call("POST", "/emails", mail(to, nil))
	}
	c.events()
	_, all, _ := c.call("GET", "/suppressions", nil)
	_, some, _ := c.call("GET", "/suppressions?origin=bounce", nil)
	if len(all["data"].([]any)) != 2 || len(some["data"].([]any)) != 1 ||
		some["data"].([]any)[0].(object)["email"] != "hardbounce@sim.test" {
		t.Fatal(all, some)
	}
	id := some["data"].([]any)[0].(object)["id"].(string)
	if status, _, _ := c.call("DELETE", "/suppressions/"+id, nil); status != 200 {
		t.Error(status)
	}
	if status, _, _ := c.call("DELETE", "/suppressions/complain@sim.test", nil); status != 200 {
		t.Error(status)
	}
	if status, _, _ := c.call("DELETE", "/suppressions/"+id, nil); status != 404 {
		t.Error(status)
	}
}
