package sendgrid_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sendgrid/sendgrid-go/helpers/mail"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

func TestThousandRecipients(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{KeepContent: true})
	resp, err := r.SendGrid(t.Context(), "sg", simtest.SendGridMail("r", simtest.Addresses(1000)...))
	if err != nil || resp.StatusCode != 202 || resp.Body != "" {
		t.Fatalf("%v %+v", err, resp)
	}
	id := resp.Headers["X-Message-Id"]
	if len(id) != 1 || len(id[0]) != 22 || resp.Headers["Server"][0] != "nginx" ||
		resp.Headers["X-Frame-Options"][0] != "DENY" {
		t.Errorf("headers %v", resp.Headers)
	}
	r.SettleAll(t)

	ids := 0
	r.EachCopy(func(id string, per map[string]int) {
		ids++
		if per["sg"] != 1 || len(per) != 1 {
			t.Errorf("%s has %v", id, per)
		}
	})
	st := r.Stats("sg")
	if ids != 1000 || st.Copies != 1000 || st.Distinct != 1000 || st.Doubled != 0 || st.Accepted != 1000 || st.Calls != 1 {
		t.Errorf("ids %d, stats %+v", ids, st)
	}
	seen := map[string][]string{}
	for _, e := range r.Hooks.Events("sg") {
		if !strings.HasPrefix(e.Text("sg_message_id"), id[0]+".") || e.Text("sd_a") != "attempt-1" {
			t.Fatalf("event %v", e)
		}
		seen[e.Text("sd_r")] = append(seen[e.Text("sd_r")], e.Text("event"))
	}
	for i := range 1000 {
		if have := seen[fmt.Sprintf("r%d", i)]; !slices.Equal(have, []string{"processed", "delivered"}) {
			t.Errorf("events of r%d: %v", i, have)
		}
	}
	if st = r.Stats("sg"); st.EventsOK != 2000 || st.EventsPending != 0 {
		t.Errorf("stats %+v", st)
	}

	c := r.Copies("r17")
	if len(c) != 1 {
		t.Fatalf("copies %v", c)
	}
	if byAddr := r.Copies("User0017@example.com"); len(byAddr) != 1 || byAddr[0].ID != "r17" {
		t.Errorf("by address: %+v", byAddr)
	}
	want := simulator.Content{Subject: "Hello Name 17", Text: `Dear Name 17, code "<&>"`, HTML: "<p>Dear Name 17</p>"}
	if !reflect.DeepEqual(c[0].Content, want) || c[0].Address != "user0017@example.com" ||
		c[0].Metadata["sd_a"] != "attempt-1" ||
		c[0].Metadata["sd_r"] != "r17" ||
		c[0].ProviderID != id[0] || c[0].Visible != nil ||
		c[0].From != "from@example.com" ||
		time.Since(c[0].At) > time.Minute {
		t.Errorf("copy %+v", c[0])
	}
}

// document builds a mail/send body from a valid one.
func document(t *testing.T, change func(m map[string]any)) []byte {
	t.Helper()
	m := map[string]any{
		"personalizations": []any{map[string]any{"to": []any{map[string]any{"email": "a@example.com"}}}},
		"from":             map[string]any{"email": "from@example.com"},
		"subject":          "s",
		"content":          []any{map[string]any{"type": "text/plain", "value": "v"}},
	}
	change(m)
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestInvalidMailIsRefused(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	type m = map[string]any
	to := func(list ...string) []any {
		var out []any
		for _, addr := range list {
			out = append(out, m{"email": addr})
		}
		return out
	}
	person := func(doc m) m { return doc["personalizations"].([]any)[0].(m) }
	long := strings.Repeat("x", 10_001)
	for name, c := range map[string]struct {
		change func(m)
		status int
		field  string // of the first error; "null" = null
		text   string
	}{
		"valid":               {func(m) {}, 202, "", ""},
		"no personalizations": {func(d m) { delete(d, "personalizations") }, 400, "personalizations", "required"},
		"no to":               {func(d m) { person(d)["to"] = []any{} }, 400, "personalizations.0.to", "required"},
		"bad address": {func(d m) { person(d)["to"] = to("a@example.com", "no-domain") }, 400,
			"personalizations.0.to.1.email", "Does not contain a valid address."},
		"bad cc": {func(d m) { person(d)["cc"] = to("x y@example.com") }, 400, "personalizations.0.cc.0.email",
			"valid address"},
		"1001 recipients": {func(d m) { person(d)["to"] = to(simtest.Addresses(1001)...) }, 400, "personalizations",
			"1000"},
		"1000 in one":       {func(d m) { person(d)["to"] = to(simtest.Addresses(1000)...) }, 202, "", ""},
		"duplicate":         {func(d m) { person(d)["bcc"] = to("A@example.com") }, 400, "personalizations.0", "duplicate"},
		"no from":           {func(d m) { delete(d, "from") }, 400, "from.email", "from object must be provided"},
		"non-ASCII from":    {func(d m) { d["from"] = m{"email": "frö@example.com"} }, 400, "from.email", "valid address"},
		"no subject":        {func(d m) { delete(d, "subject") }, 400, "subject", "subject is required"},
		"subject in person": {func(d m) { delete(d, "subject"); person(d)["subject"] = "s" }, 202, "", ""},
		"template": {func(d m) { delete(d, "subject"); delete(d, "content"); d["template_id"] = "d-1" }, 202, "",
			""},
		"no content": {func(d m) { delete(d, "content") }, 400, "content", "content parameter is required"},
		"empty content": {func(d m) { d["content"] = []any{m{"type": "text/plain", "value": ""}} }, 400,
			"content.0.value", "at least one character"},
		"html first": {func(d m) {
			d["content"] = []any{m{"type": "text/html", "value": "h"}, m{"type": "text/plain", "value": "t"}}
		}, 400, "content", "must be first"},
		"arg is a number": {func(d m) { person(d)["custom_args"] = m{"a": 1} }, 400, "null", "Bad Request"},
		"sub is a number": {func(d m) { person(d)["substitutions"] = m{"a": 1} }, 400, "null", "Bad Request"},
		"args too long": {func(d m) { person(d)["custom_args"] = m{"a": long} }, 400,
			"personalizations.0.custom_args", "10000"},
		"message args": {func(d m) { d["custom_args"] = m{"a": long} }, 400, "custom_args", "10000"},
		"subs too long": {func(d m) { person(d)["substitutions"] = m{"a": long} }, 400,
			"personalizations.0.substitutions", "10000"},
		"subs with dynamic": {func(d m) { d["template_id"] = "d-1"; person(d)["substitutions"] = m{"a": "b"} }, 400,
			"personalizations.0.substitutions", "dynamic"},
		"escapes count once": {func(d m) { person(d)["custom_args"] = m{"a": strings.Repeat("<", 9_000)} }, 202, "", ""},
		"11 categories": {func(d m) { d["categories"] = strings.Split("a,b,c,d,e,f,g,h,i,j,k", ",") }, 400,
			"categories", "10"},
		"same category": {func(d m) { d["categories"] = []string{"a", "a"} }, 400, "categories", "unique"},
		"long category": {func(d m) { d["categories"] = []string{long[:256]} }, 400, "categories.0", "255"},
		"send_at": {func(d m) { d["send_at"] = time.Now().Add(73 * time.Hour).Unix() }, 400, "send_at",
			"72 hours"},
		"send_at in person": {func(d m) { person(d)["send_at"] = time.Now().Add(73 * time.Hour).Unix() }, 400,
			"personalizations.0.send_at", "72 hours"},
		"both reply_to": {func(d m) { d["reply_to"] = m{"email": "a@b.cd"}; d["reply_to_list"] = to("a@b.cd") }, 400,
			"reply_to", "together"},
		"comma in name": {func(d m) { person(d)["to"] = []any{m{"email": "a@example.com", "name": "Doe, J"}} }, 400,
			"personalizations.0.to.0.name", "comma"},
		"quoted comma in name": {func(d m) { person(d)["to"] = []any{m{"email": "a@example.com", "name": `"Doe, J"`}} },
			202, "", ""},
		"nulls": {func(d m) { d["template_id"] = nil; person(d)["cc"] = nil; d["custom_args"] = nil }, 202,
			"", ""},
		"refused": {func(d m) { person(d)["to"] = to("a@example.com", "refused+1@sim.test") }, 400,
			"personalizations.0.to.1.email", "valid address"},
		"refused elsewhere": {func(d m) { person(d)["to"] = to("refused-mg+1@sim.test") }, 202, "", ""},
		"refused here": {func(d m) { person(d)["to"] = to("refused-sg.1@sim.test") }, 400,
			"personalizations.0.to.0.email", "valid address"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := r.SendGridRaw(t.Context(), "sg", "SG.key", document(t, c.change))
			if err != nil || resp.StatusCode != c.status {
				t.Fatalf("%v %+v", err, resp)
			}
			if c.status != 400 {
				return
			}
			var e struct {
				Errors []struct {
					Message     string
					Field, Help *string
				}
			}
			if err := json.Unmarshal([]byte(resp.Body), &e); err != nil || len(e.Errors) == 0 {
				t.Fatalf("%v %s", err, resp.Body)
			}
			field := "null"
			if e.Errors[0].Field != nil {
				field = *e.Errors[0].Field
			}
			if field != c.field || !strings.Contains(e.Errors[0].Message, c.text) {
				t.Errorf("have %s: %s", field, e.Errors[0].Message)
			}
		})
	}
	// 8 of the cases are valid, one of them with 1,000 recipients.
	if st := r.Stats("sg"); st.ByStatus[202] != 8 || st.Copies != 7+1000 || st.Refused != st.Calls-8 {
		t.Errorf("stats %+v", st)
	}
}

func TestRoutesAndEncodings(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	valid := document(t, func(map[string]any) {})

	resp, err := r.SendGridRaw(t.Context(), "sg", "wrong", valid)
	if err != nil || resp.StatusCode != 401 || !strings.Contains(resp.Body,
		"authorization grant is invalid, expired, or revoked") {
		t.Errorf("wrong key: %v %+v", err, resp)
	}
	for name, body := range map[string]string{"empty": "", "text": "hello", "cut": string(valid[:len(valid)-1]),
		"more": string(valid) + "x", "list": "[]"} {
		resp, err := r.SendGridRaw(t.Context(), "sg", "SG.key", []byte(body))
		want := 400
		if body == "" {
			want = 415 // the SDK sends no content type then
		}
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v %+v", name, err, resp)
		}
	}
	sandbox := document(t, func(m map[string]any) {
		m["mail_settings"] = map[string]any{"sandbox_mode": map[string]any{"enable": true}}
	})
	if resp, err := r.SendGridRaw(t.Context(), "sg", "SG.key", sandbox); err != nil || resp.StatusCode != 200 ||
		resp.Body != "" {
		t.Errorf("sandbox: %v %+v", err, resp)
	}
	big := document(t, func(m map[string]any) {
		m["attachments"] = []any{map[string]any{"content": strings.Repeat("A", 30<<20), "filename": "f"}}
	})
	if resp, err := r.SendGridRaw(t.Context(), "sg", "SG.key", big); err != nil || resp.StatusCode != 413 {
		t.Errorf("large: %v %+v", err, resp)
	}
	if st := r.Stats("sg"); st.Copies != 0 || st.Calls != 8 {
		t.Errorf("stored although not accepted: %+v", st)
	}

	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(valid)
	z.Close()
	for _, c := range []struct {
		body   []byte
		status int
	}{{zipped.Bytes(), 202}, {zipped.Bytes()[:20], 400}, {valid, 400}} {
		req, _ := http.NewRequest("POST", r.URL+"//sg//v3/mail/send", bytes.NewReader(c.body))
		req.Header = http.Header{"Authorization": {"Bearer SG.key"}, "Content-Type": {"application/json"},
			"Content-Encoding": {"gzip"}}
		resp, err := r.HTTP.Do(req)
		if err != nil || resp.StatusCode != c.status {
			t.Fatalf("gzip: %v %v", err, resp)
		}
		resp.Body.Close()
	}

	get := func(method, path, key string) (int, string) {
		req, _ := http.NewRequest(method, r.URL+path, nil)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := r.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var b bytes.Buffer
		b.ReadFrom(resp.Body)
		return resp.StatusCode, b.String()
	}
	if status, body := get("GET", "/sg/v3/user/webhooks/event/settings/signed", "SG.key"); status != 200 ||
		!strings.Contains(body, r.PublicKey("sg")) || len(r.PublicKey("sg")) != 124 {
		t.Errorf("public key: %d %s", status, body)
	}
	for path, want := range map[string]int{
		"GET /sg/v3/user/webhooks/event/settings": 200, "GET /sg/v3/scopes": 200, "GET /sg/v3/nothing": 404,
		"GET /sg/v3/mail/send": 405, "POST /sg/v3/scopes": 405, "GET /none/v3/scopes": 404, "GET /": 200,
	} {
		method, path, _ := strings.Cut(path, " ")
		if status, body := get(method, path, "SG.key"); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _ := get("GET", "/sg/v3/scopes", "wrong"); status != 401 {
		t.Errorf("scopes with a wrong key: %d", status)
	}
}

// TestPersonalizations checks metadata of both levels and the visible recipients.
func TestPersonalizations(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{KeepContent: true})
	m := simtest.SendGridMail("x")
	m.SetCustomArg("both", "message")
	m.SetCustomArg("email", "not SendGrid's")
	m.AddCategories("one", "two")
	p := mail.NewPersonalization()
	p.AddTos(mail.NewEmail("", "to1@example.com"), mail.NewEmail("", "to2@example.com"))
	p.AddCCs(mail.NewEmail("", "cc@example.com"))
	p.AddBCCs(mail.NewEmail("", "bcc@example.com"))
	p.SetCustomArg("both", "person")
	p.Subject = "own {{name}}"
	p.SetSubstitution("{{name}}", "subject")
	m.AddPersonalizations(p)
	alone := mail.NewPersonalization()
	alone.AddTos(mail.NewEmail("", "Alone@example.com"))
	m.AddPersonalizations(alone)
	if resp, err := r.SendGrid(t.Context(), "sg", m); err != nil || resp.StatusCode != 202 {
		t.Fatalf("%v %+v", err, resp)
	}
	r.SettleAll(t)
	for addr, want := range map[string]struct{ both, subject, visible string }{
		"to1@example.com":   {"person", "own subject", "to2@example.com cc@example.com"},
		"bcc@example.com":   {"person", "own subject", "to1@example.com to2@example.com cc@example.com"},
		"alone@example.com": {"message", "Hello {{name}}", ""},
	} {
		list := r.Copies(addr)
		if len(list) != 1 {
			t.Fatalf("%s: %v", addr, list)
		}
		c := list[0]
		if c.ID != addr || c.Metadata["both"] != want.both || c.Subject != want.subject ||
			strings.Join(c.Visible, " ") != want.visible {
			t.Errorf("%s: %+v", addr, c)
		}
	}
	for _, e := range r.Hooks.Events("sg") {
		if strings.HasPrefix(e.Text("email"), "to1") && (e.Text("both") != "person" ||
			fmt.Sprint(e["category"]) != "[one two]") {
			t.Errorf("event %v", e)
		}
		if !strings.Contains(e.Text("email"), "@") {
			t.Errorf("custom arg replaced SendGrid's field: %v", e)
		}
	}
}
