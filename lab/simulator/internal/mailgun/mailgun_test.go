package mailgun_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	mgsdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

func TestThousandRecipients(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{KeepContent: true})
	id, err := r.Mailgun(t.Context(), simtest.MailgunMail(t, "r", simtest.Addresses(1000)...))
	if err != nil || !strings.HasPrefix(id, "<") || !strings.HasSuffix(id, "@"+simtest.Domain+">") {
		t.Fatalf("%v %s", err, id)
	}
	r.SettleAll(t)

	ids := 0
	r.EachCopy(func(id string, per map[string]int) {
		ids++
		if per["mg"] != 1 || len(per) != 1 {
			t.Errorf("%s has %v", id, per)
		}
	})
	if st := r.Stats("mg"); ids != 1000 || st.Copies != 1000 || st.Distinct != 1000 || st.Doubled != 0 ||
		st.EventsOK != 2000 {
		t.Errorf("ids %d, stats %+v", ids, st)
	}
	seen := map[string][]string{}
	for _, e := range r.Hooks.Events("mg") {
		vars := e["user-variables"].(map[string]any)
		if have := e["message"].(map[string]any)["headers"].(map[string]any)["message-id"]; "<"+have.(string)+">" != id ||
			vars["sd_a"] != "attempt-1" {
			t.Fatalf("event %v", e)
		}
		key := vars["sd_r"].(string)
		seen[key] = append(seen[key], e.Text("event"))
	}
	for i := range 1000 {
		have := seen[fmt.Sprintf("r%d", i)]
		if slices.Sort(have); !slices.Equal(have, []string{"accepted", "delivered"}) {
			t.Errorf("events of r%d: %v", i, have)
		}
	}
	c := r.Copies("r17")
	if len(c) != 1 {
		t.Fatalf("copies %v", c)
	}
	want := simulator.Content{Subject: "Hello Name 17", Text: "Dear Name 17, code 34", HTML: "<p>Dear Name 17</p>"}
	if !reflect.DeepEqual(c[0].Content, want) || c[0].Address != "user0017@example.com" ||
		c[0].Metadata["sd_a"] != "attempt-1" ||
		c[0].ProviderID != id || c[0].Visible != nil ||
		c[0].From != "from@"+simtest.Domain {
		t.Errorf("copy %+v", c[0])
	}
}

func TestRecipientsSeeEachOtherWithoutVariables(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{KeepContent: true})
	m := mgsdk.NewMessage("from@"+simtest.Domain, "s", "%recipient.x%", "a@example.com", "Bob <b@example.com>")
	if _, err := r.Mailgun(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if c := r.Copies("b@example.com"); len(c) != 1 || !slices.Equal(c[0].Visible, []string{"a@example.com"}) ||
		c[0].Text != "%recipient.x%" {
		t.Errorf("copies %+v", c)
	}
}

// TestNamedRecipients checks that recipients may have names, and that variables are keyed by the
// bare address in any case.
func TestNamedRecipients(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{KeepContent: true})
	names := map[string]string{
		`"Ann" <A@example.com>`:                   "Ann",
		`"Doe, Jane; <x@y.test>" <b@example.com>`: "Doe, Jane; <x@y.test>",
		`"a \"quoted\" name" <c@example.com>`:     `a "quoted" name`,
		`=?utf-8?q?Zo=C3=AB?= <d@example.com>`:    "Zoë",
		`Bob <e@example.com>`:                     "Bob",
		`f@example.com`:                           "",
	}
	fields := []string{"from=from@" + simtest.Domain, "subject=s", "text=%recipient.x%"}
	vars := []string{}
	for to := range names {
		fields = append(fields, "to="+to)
	}
	for _, c := range "abcdef" {
		vars = append(vars, fmt.Sprintf(`"%c@example.com":{"x":"%c"}`, c, c))
	}
	fields = append(fields, "recipient-variables={"+strings.Join(vars, ",")+"}")
	if status, body := postForm(t, r, messages(""), fields...); status != 200 {
		t.Fatalf("status %d: %s", status, body)
	}
	for to, name := range names {
		addr := strings.ToLower(strings.Trim(to[strings.LastIndexAny(to, " ")+1:], "<>"))
		c := r.Copies(addr)
		if len(c) != 1 || c[0].Name != name || c[0].Text != addr[:1] || c[0].Visible != nil {
			t.Errorf("%s: %+v", to, c)
		}
	}
	for _, to := range []string{`"Ann" <`, `"Ann" <>`, `"Ann <a@example.com>`, `"Ann" <a@example.com`,
		`"A"nn" <a@example.com>`, `Doe, Jane <a@example.com>`, `"Ann" <a@example>`} {
		status, body := postForm(t, r, messages(""), "from=from@"+simtest.Domain, "subject=s", "text=t", "to="+to)
		if status != 400 || !strings.Contains(body, "to parameter is not a valid address") {
			t.Errorf("%s: %d %s", to, status, body)
		}
	}
}

// A target is a path with the credentials for it.
type target struct{ path, user, key string }

// messages returns the endpoint of the account mg that takes messages.
func messages(suffix string) target {
	return target{"/mg/v3/" + simtest.Domain + "/messages" + suffix, "api", simtest.MailgunKey}
}

// postForm posts a form. Each field is "name=value".
func postForm(t *testing.T, r *simtest.Rig, to target, fields ...string) (status int, body string) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		if name == "message" {
			p, _ := w.CreateFormFile(name, "mime")
			io.WriteString(p, value)
			continue
		}
		w.WriteField(name, value)
	}
	w.Close()
	req, _ := http.NewRequest("POST", r.URL+to.path, &buf)
	req.Header.Set("Content-Type", w.FormDataContentType())
	req.SetBasicAuth(to.user, to.key)
	resp, err := r.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func TestInvalidMessagesAreRefused(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	valid := []string{"from=f@mg.sim.test", "to=a@example.com", "subject=s", "text=t"}
	with := func(more ...string) []string { return append(slices.Clone(valid), more...) }
	without := func(name string, more ...string) []string {
		return append(slices.DeleteFunc(slices.Clone(valid), func(f string) bool { return strings.HasPrefix(f, name+"=") }),
			more...)
	}
	var many []string
	for _, addr := range simtest.Addresses(1000) {
		many = append(many, "to="+addr)
	}
	for name, c := range map[string]struct {
		fields []string
		status int
		text   string
	}{
		"valid":           {valid, 200, "Queued. Thank you."},
		"comma separated": {with("to=Doe <b@example.com>, c@example.com"), 200, ""},
		"template":        {without("text", "template=x"), 200, ""},
		"no from":         {without("from"), 400, "from parameter is missing"},
		"no to":           {without("to"), 400, "to parameter is missing"},
		"bad from": {without("from", "from=no-domain"), 400,
			"from parameter is not a valid address. please check documentation"},
		"non-ASCII from":      {without("from", "from=frö@example.com"), 400, "from parameter is not a valid address"},
		"bad to":              {with("to=no-domain"), 400, "to parameter is not a valid address. please check documentation"},
		"bad cc":              {with("cc=no-domain"), 400, "cc parameter is not a valid address"},
		"no body":             {without("text"), 400, "Need at least one of 'text' or 'html'"},
		"variables no object": {with("recipient-variables=[]"), 400, "'recipient-variables' parameter is not a valid JSON"},
		"variables not JSON":  {with("recipient-variables={"), 400, "'recipient-variables' parameter is not a valid JSON"},
		"variables flat": {with(`recipient-variables={"a@example.com":1}`), 400,
			"'recipient-variables' parameter is not a valid JSON"},
		"1001 recipients":      {with(many...), 400, "Too many recipients, max is 1000"},
		"options too long":     {with("v:a=" + strings.Repeat("x", 16<<10)), 400, "limited to 16 kB total"},
		"header name":          {with("h:X-Ä=1"), 400, "ASCII"},
		"bad time":             {with("o:deliverytime=tomorrow"), 400, "RFC 2822"},
		"good time":            {with("o:deliverytime=Fri, 14 Oct 2033 06:11:45 +0200"), 200, ""},
		"11 tags":              {with(strings.Split(strings.Repeat("o:tag=x ", 11), " ")[:11]...), 400, "tags"},
		"message over 25 MB":   {with("html=" + strings.Repeat("x", 25<<20)), 413, "25MB"},
		"refused":              {with("to=refused+3@sim.test"), 400, "to parameter is not a valid address"},
		"refused by sendgrid":  {with("to=refused-sg+3@sim.test"), 200, ""},
		"address named twice":  {with("to=A@Example.com", "cc=a@example.com"), 200, ""},
		"first problem counts": {[]string{"to=no-domain"}, 400, "from parameter is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.Stats("mg").Copies
			status, body := postForm(t, r, messages(""), c.fields...)
			if status != c.status || !strings.Contains(body, c.text) {
				t.Errorf("%d %s", status, body)
			}
			if stored := r.Stats("mg").Copies - before; (stored > 0) != (status == 200) ||
				name == "address named twice" && stored != 1 {
				t.Errorf("stored %d", stored)
			}
		})
	}
}

func TestRoutesAndForms(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{KeepContent: true})
	valid := []string{"from=f@mg.sim.test", "to=a@example.com", "subject=s", "text=t"}
	for _, c := range []struct {
		path, user, key string
		status          int
		body            string
	}{
		{"/mg/v3//" + simtest.Domain + "/messages", "api", "mg-key", 200, "Queued"},
		{"/mg/v3/" + simtest.Domain + "/messages", "api", "wrong", 401, "Forbidden"},
		{"/mg/v3/" + simtest.Domain + "/messages", "me", "mg-key", 401, "Forbidden"},
		{"/mg/v3/other.test/messages", "api", "mg-key", 404, `{"message":"Domain not found: other.test"}`},
		{"/mg/v3/a/b/messages", "api", "mg-key", 200, "Mailgun Magnificent API"},
		{"/mg/v3/" + simtest.Domain + "/nothing", "api", "mg-key", 404, "404 page not found"},
		{"/mg/v4/" + simtest.Domain + "/messages", "api", "mg-key", 404, "404 page not found"},
	} {
		if status, body := postForm(t, r, target{c.path, c.user, c.key}, valid...); status != c.status ||
			!strings.Contains(body, c.body) {
			t.Errorf("%s %s: %d %s", c.path, c.key, status, body)
		}
	}

	form := url.Values{"from": {"f@mg.sim.test"}, "to": {"form@example.com"}, "text": {"t %recipient%"},
		"recipient-variables": {`{"form@example.com":{}}`}}
	post := func(kind, body string) (int, string) {
		req, _ := http.NewRequest("POST", r.URL+"/mg/v3/"+simtest.Domain+"/messages", strings.NewReader(body))
		req.Header.Set("Content-Type", kind)
		req.SetBasicAuth("api", "mg-key")
		resp, err := r.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	if status, body := post("application/x-www-form-urlencoded", form.Encode()); status != 200 {
		t.Errorf("urlencoded: %d %s", status, body)
	}
	if c := r.Copies("form@example.com"); len(c) != 1 || c[0].Text != "t form@example.com" {
		t.Errorf("copies %+v", c)
	}
	for _, c := range [][2]string{{"multipart/form-data; boundary=x", "--x\r\nnothing"},
		{"multipart/form-data", "--x--"}, {"text/plain", "hello"}} {
		if status, body := post(c[0], c[1]); status != 400 {
			t.Errorf("%v: %d %s", c, status, body)
		}
	}
	if status, body := post("multipart/form-data; boundary=x", strings.Repeat("x", 54_945_382+1)); status != 413 ||
		!strings.Contains(body, "52.4MiB") {
		t.Errorf("large: %d %s", status, body)
	}

	status, body := postForm(t, r, messages(".mime"), "to=mime@example.com",
		"message=From: A <f@mg.sim.test>\r\nSubject: MIME\r\n\r\nbody")
	if c := r.Copies("mime@example.com"); status != 200 || len(c) != 1 || c[0].Subject != "MIME" ||
		c[0].From != "f@mg.sim.test" {
		t.Errorf("mime: %d %s %+v", status, body, c)
	}

	var unexpected *mgsdk.UnexpectedResponseError
	mg := mgsdk.NewMailgun("other.test", "mg-key")
	mg.SetAPIBase(r.URL + "/mg/v3")
	mg.SetClient(r.HTTP)
	if _, _, err := mg.Send(t.Context(), mgsdk.NewMessage("f@other.test", "s", "t", "a@example.com")); !errors.As(err,
		&unexpected) || unexpected.Actual != 404 {
		t.Errorf("other domain: %v", err)
	}
	if d, err := r.MailgunClient().GetDomain(t.Context(), simtest.Domain); err != nil || d.Domain.State != "active" {
		t.Errorf("domain: %+v %v", d, err)
	}
}

func TestUnknownPlaceholdersAreKept(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{KeepContent: true})
	const kept = "100% %recipient.n% %recipient.deep% %recipient.none% %recipient.two words%"
	status, body := postForm(t, r, messages(""), "from=f@mg.sim.test",
		"to=a@example.com", "to=Name <B@example.com>",
		"subject=%recipient.s%", "text="+kept+" %recipient%",
		"v:sd_r=%recipient.id%", "v:const=c", "v:json={\"a\":1}",
		`recipient-variables={"a@example.com":{"s":"S\u00e4\n","n":1.5,"deep":{"x":1},"id":"A"},"b@example.com":{}}`)
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	a := r.Copies("A")
	if len(a) != 1 || a[0].Subject != "Sä\n" ||
		a[0].Text != strings.Replace(kept, "%recipient.n%", "1.5", 1)+" a@example.com" ||
		fmt.Sprint(a[0].Metadata) != `map[const:c json:{"a":1} sd_r:A]` {
		t.Errorf("a: %+v", a)
	}
	if b := r.Copies("%recipient.id%"); len(b) != 1 || b[0].Address != "B@example.com" {
		t.Errorf("b: %+v", b)
	}
}

func TestTestModeHasEventsButNoCopies(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	m := simtest.MailgunMail(t, "t", "a@example.com")
	m.EnableTestMode()
	if _, err := r.Mailgun(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r.SettleAll(t)
	list := r.Hooks.Events("mg")
	if len(list) != 2 || list[0]["flags"].(map[string]any)["is-test-mode"] != true || r.Stats("mg").Copies != 0 ||
		r.Copies("t0") != nil {
		t.Errorf("events %v, stats %+v", list, r.Stats("mg"))
	}
}

func TestWebhookURLsByType(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	mg, ctx := r.MailgunClient(), context.Background()
	list, err := mg.ListWebhooks(ctx)
	base := strings.TrimSuffix(list["delivered"][0], "/mg")
	if err != nil || len(list) != 8 {
		t.Fatalf("%v %v", list, err)
	}
	if err := mg.DeleteWebhook(ctx, "accepted"); err != nil {
		t.Error(err)
	}
	if err := mg.UpdateWebhook(ctx, "delivered", []string{base + "/mg", base + "/mg2"}); err != nil {
		t.Error(err)
	}
	if urls, err := mg.GetWebhook(ctx, "delivered"); err != nil || len(urls) != 2 {
		t.Errorf("%v %v", urls, err)
	}
	if _, err := mg.GetWebhook(ctx, "accepted"); err == nil {
		t.Error("deleted webhook is still there")
	}
	if mg.CreateWebhook(ctx, "nonsense", []string{base}) == nil ||
		mg.CreateWebhook(ctx, "opened", []string{"no url"}) == nil {
		t.Error("created a webhook that is not valid")
	}
	r.Send(t, "mg", "r", "a@example.com")
	r.SettleAll(t)
	if a, b := simtest.Summaries(r.Hooks.Events("mg")), simtest.Summaries(r.Hooks.Events("mg2")); fmt.Sprint(a,
		b) != "[a@example.com delivered] [a@example.com delivered]" {
		t.Errorf("%v %v", a, b)
	}
	if st := r.Stats("mg"); st.EventsOK != 2 || st.EventsPending != 0 {
		t.Errorf("stats %+v", st)
	}
	if err := mg.CreateWebhook(ctx, "accepted", []string{base + "/mg"}); err != nil {
		t.Error(err)
	}
}
