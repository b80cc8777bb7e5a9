package providertest

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/safedelivr/safedelivr/models"
)

func testCopies(t *testing.T, s Suite) {
	for _, n := range []int{1, 2, 7} {
		p, rec := serve(t, s)
		c := call(n)
		only(t, c, p.Send(t.Context(), c), models.Accepted)
		if rec.calls != 1 {
			t.Fatalf("%d requests for one call", rec.calls)
		}
		arrived(t, rec.copies, c)
	}
	p, rec := serve(t, s)
	if parts := p.Send(t.Context(), call(0)); len(parts) != 0 || rec.calls != 0 {
		t.Errorf("a call without recipients: %s, %d requests", show(parts), rec.calls)
	}
	// HTML alone, text alone, no names, no reply-to.
	for _, content := range []models.Content{{Text: "only text"}, {HTML: "<b>only HTML</b>"}} {
		p, rec := serve(t, s)
		c := call(2)
		content.From, content.Subject = models.Address{Email: "shop@sender.test"}, "plain"
		c.Content = &content
		only(t, c, p.Send(t.Context(), c), models.Accepted)
		arrived(t, rec.copies, c)
	}
}

func testThousand(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	n := p.MaxRecipients()
	if n < 1 || n > models.MaxChunkRecipients {
		t.Fatalf("MaxRecipients is %d", n)
	}
	c := call(n)
	only(t, c, p.Send(t.Context(), c), models.Accepted)
	arrived(t, rec.copies, c)
}

func testParallel(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	const workers, each, size = 64, 3, 20
	size1 := min(size, p.MaxRecipients())
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for k := range each {
				c := chunk(w*each+k, size1)
				only(t, c, p.Send(t.Context(), c), models.Accepted)
			}
		})
	}
	wg.Wait()
	if rec.calls != workers*each {
		t.Errorf("%d requests for %d calls", rec.calls, workers*each)
	}
	var calls []*models.Call
	for k := range workers * each {
		calls = append(calls, chunk(k, size1))
	}
	arrived(t, rec.copies, calls...)
}

// arrived checks that every recipient of the calls has exactly one mail, with its own
// content.
func arrived(t *testing.T, copies []Copy, calls ...*models.Call) {
	t.Helper()
	got := map[string]Copy{}
	for _, c := range copies {
		if _, twice := got[c.To]; twice {
			t.Errorf("%s has two mails", c.To)
		}
		got[c.To] = c
	}
	n := 0
	for _, c := range calls {
		for i := range c.Recipients {
			r := &c.Recipients[i]
			n++
			m, ok := got[r.Email]
			if !ok {
				t.Errorf("%s has no mail", r.Email)
				continue
			}
			fill := func(text string, how func(string) string) string {
				return models.Rewrite(text, func(name string) string { v, _ := r.Value(name); return how(v) })
			}
			plain := func(v string) string { return v }
			want := Copy{
				To:      r.Email,
				Name:    r.Name,
				Log:     r.Log.String(),
				Attempt: fmt.Sprint(c.Attempt),
				Subject: fill(c.Content.Subject, plain),
				Text:    fill(c.Content.Text, plain),
				HTML:    fill(c.Content.HTML, html.EscapeString),
				From:    m.From,
				ReplyTo: m.ReplyTo,
			}
			if len(m.Visible) > 0 {
				t.Errorf("%s sees other recipients: %v", r.Email, m.Visible)
			}
			m.Visible, m.Tags, m.Headers, m.Files = nil, nil, nil, nil
			if fmt.Sprint(m) != fmt.Sprint(want) {
				t.Errorf("mail to %s:\n got %+v\nwant %+v", r.Email, m, want)
			}
			sameMailbox(t, m.From, c.Content.From.Email)
			for _, a := range c.Content.ReplyTo {
				sameMailbox(t, m.ReplyTo, a.Email)
			}
		}
	}
	if len(copies) != n {
		t.Errorf("%d mails for %d recipients", len(copies), n)
	}
}

func sameMailbox(t *testing.T, header, want string) {
	t.Helper()
	a, err := mail.ParseAddress(header)
	if err != nil || a.Address != want {
		t.Errorf("header address %q (%v), want %s alone", header, err, want)
	}
}

func testPlaceholders(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	c := call(3)
	c.Content = &models.Content{
		From:    models.Address{Email: "shop@sender.test"},
		Subject: "{{a}} & {{A}} {{a-b}} {{a.b}} {{a_b}} {{name}} 100%",
		Text:    "{{a}}|{{A}}|{{a-b}}|{{a.b}}|{{a_b}}|{{email}}|{{{{a}}}}|{{1x}}|{{}}|%recipient.x%|-name-",
		HTML:    `<a href="https://x.test/?u={{a}}">{{a}}|{{A}}|{{ a-b }}|{{a.b}}|{{a_b}}|{{email}}</a>{{`,
	}
	if s.Braces {
		c.Content.Text = strings.ReplaceAll(c.Content.Text, "|{{{{a}}}}|{{1x}}|{{}}", "")
	}
	for i := range c.Recipients {
		c.Recipients[i].Vars = map[string]string{
			"a": fmt.Sprintf(`<b>"%d" & 'x'</b>`, i), "A": "{{a}}", "a-b": "line one\nline two", "a.b": `\"%40`,
			"a_b": "日本語 — ü",
		}
		if s.Braces {
			c.Recipients[i].Vars["A"] = "{a}"
		}
		if i == 1 {
			c.Recipients[i].Vars["a"] = ""
		}
	}
	only(t, c, p.Send(t.Context(), c), models.Accepted)
	// In the subject line breaks become spaces.
	for i := range rec.copies {
		if strings.Contains(rec.copies[i].Subject, "line one line two") {
			rec.copies[i].Subject = strings.Replace(rec.copies[i].Subject, "line one line two", "line one\nline two", 1)
		} else {
			t.Errorf("subject %q", rec.copies[i].Subject)
		}
	}
	arrived(t, rec.copies, c)

	// A placeholder without a value is never sent as it is.
	c = call(3)
	delete(c.Recipients[1].Vars, "order")
	before := rec.calls
	parts := p.Send(t.Context(), c)
	Check(t, c, parts)
	if part, _ := classOf(parts, 2); rec.calls != before || !part.Class.Refused() {
		t.Errorf("a value is missing: %s, %d requests", show(parts), rec.calls-before)
	}
}

func testHeaderInjection(t *testing.T, s Suite) {
	for _, evil := range []string{
		"a\r\nBcc: evil@evil.test", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\x00b", "a\u2028Bcc: evil@evil.test",
		"a\u0085b\u2029c\vd",
		`evil" <evil@evil.test>, "x`, "Doe, Jane; Inc.", "<evil@evil.test>", "bad \xff\xfe utf-8", strings.Repeat("\r\n", 50),
	} {
		p, rec := serve(t, s)
		c := call(2)
		c.Content = &models.Content{
			From:    models.Address{Email: "shop@sender.test", Name: evil},
			ReplyTo: []models.Address{{Email: "help@sender.test", Name: evil}},
			Subject: "S " + evil + "{{v}}",
			Text:    "t",
			HTML:    "h",
		}
		for i := range c.Recipients {
			c.Recipients[i].Name, c.Recipients[i].Vars = evil, map[string]string{"v": evil}
		}
		parts := p.Send(t.Context(), c)
		only(t, c, parts, models.Accepted)
		if len(rec.copies) != 2 {
			t.Fatalf("%d mails for 2 recipients", len(rec.copies))
		}
		for _, m := range rec.copies {
			for _, header := range []string{m.Name, m.From, m.ReplyTo, m.Subject} {
				if strings.IndexFunc(header, func(r rune) bool {
					return unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
				}) >= 0 {
					t.Errorf("%q went into the header field %q", evil, header)
				}
			}
			sameMailbox(t, m.From, "shop@sender.test")
			sameMailbox(t, m.ReplyTo, "help@sender.test")
		}
	}
	// Addresses hold nothing but one address, or nothing is sent to them.
	for _, evil := range []string{
		"a@b.test\r\nBcc: evil@evil.test", "a@b.test, evil@evil.test", "a@b.test;evil@evil.test", "Evil <evil@evil.test>",
		"a@b.test\x00",
		"a\u2028@b.test", "a@b.test\n", " a@b.test", "a b@c.test", "a@", "@b.test", "", "a", "a@b@c.test", "<a@b.test>",
	} {
		p, rec := serve(t, s)
		c := call(3)
		c.Recipients[1].Email = evil
		parts := p.Send(t.Context(), c)
		Check(t, c, parts)
		if part, _ := classOf(parts, 2); !part.Class.Refused() || part.Class == models.Split {
			t.Errorf("recipient %q: %s", evil, show(parts))
		}
		if part, _ := classOf(parts, 1); part.Class == models.RejectedRecipient {
			t.Errorf("recipient %q: its neighbour was rejected", evil)
		}
		for field, set := range map[string]func(*models.Content){
			"from":     func(m *models.Content) { m.From.Email = evil },
			"reply_to": func(m *models.Content) { m.ReplyTo[0].Email = evil },
		} {
			c := call(2)
			set(c.Content)
			if evil == "" && field == "reply_to" {
				continue
			}
			parts := p.Send(t.Context(), c)
			Check(t, c, parts)
			if part, _ := classOf(parts, 1); !part.Class.Refused() {
				t.Errorf("%s %q: %s", field, evil, show(parts))
			}
		}
		if rec.calls != 0 {
			t.Errorf("address %q: a request was made", evil)
		}
	}
}

func testRefusals(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	big := call(1)
	big.Content.HTML = strings.Repeat("x", 60_000_000)
	many := call(p.MaxRecipients())
	many.Recipients = append(many.Recipients,
		models.CallRecipient{Log: batch.Chunk(1).Log(1), Recipient: models.Recipient{Email: "more@x.test"}})
	again := call(3)
	again.Recipients[2].Email = strings.ToUpper(again.Recipients[0].Email)
	same := call(3)
	same.Recipients[2].Email = same.Recipients[0].Email
	twice := call(3)
	twice.Recipients[2].Log = twice.Recipients[0].Log
	for name, c := range map[string]*models.Call{"size": big, "one recipient too many": many,
		"an address twice, by case": again,
		"an address twice":          same, "a log twice": twice} {
		parts := p.Send(t.Context(), c)
		Check(t, c, parts)
		if len(parts) != 1 || parts[0].Class != models.RejectedHereClass || parts[0].Text == "" {
			t.Errorf("%s: %s, want one part of class rejected_here with words", name, show(parts))
		}
	}
	empty := call(2)
	empty.Content.Text, empty.Content.HTML = "", ""
	only(t, empty, p.Send(t.Context(), empty), models.RejectedRequest, models.RejectedHereClass)
	if rec.calls != 0 {
		t.Errorf("%d requests were made", rec.calls)
	}
}

func testAnswers(t *testing.T, s Suite) {
	if len(s.Answers) == 0 {
		t.Fatal("the suite has no answers")
	}
	for _, a := range s.Answers {
		t.Run(a.Name, func(t *testing.T) {
			for _, n := range []int{1, 3} {
				p := answering(t, s, func(w http.ResponseWriter, _ *http.Request) { a.write(w, n) })
				c := call(n)
				now := time.Now()
				parts := p.Send(t.Context(), c)
				Check(t, c, parts)
				for i := 1; i <= n; i++ {
					want := a.Three
					if n == 1 {
						want = a.One
					} else if i != 2 && a.Others != "" {
						want = a.Others
					}
					part, _ := classOf(parts, i)
					if part.Class != want {
						t.Fatalf("recipient %d of %d: class %s, want %s: %s", i, n, part.Class, want, show(parts))
					}
					if part.Status != a.Status {
						t.Errorf("status %d, want %d", part.Status, a.Status)
					}
					if want != models.Accepted && part.Text == "" {
						t.Errorf("class %s comes without words", part.Class)
					}
					if a.Reason != "" && (i == 2 || n == 1) && part.Reason != a.Reason {
						t.Errorf("recipient %d of %d: reason %q, want %q", i, n, part.Reason, a.Reason)
					}
					if fewer := a.Fewer; n == 3 && part.Fewer != fewer || n == 1 && part.Fewer != 0 {
						t.Errorf("a call of %d may have %d recipients, want %d", n, part.Fewer, fewer)
					}
					if a.RetryIn > 0 || !a.RetryAt.IsZero() {
						// Sent after now, answered before Send returned; given in whole seconds.
						from, to := a.RetryAt, a.RetryAt
						if a.RetryIn > 0 {
							from, to = now.Add(a.RetryIn-time.Second), time.Now().Add(a.RetryIn+time.Second)
						}
						if part.RetryAt.Before(from) || part.RetryAt.After(to) {
							t.Errorf("RetryAt %v is not in %v to %v", part.RetryAt, from, to)
						}
					} else if !part.RetryAt.IsZero() {
						t.Errorf("RetryAt %v out of nothing", part.RetryAt)
					}
				}
			}
		})
	}
}

func (a Answer) write(w http.ResponseWriter, n int) {
	if a.Each != nil {
		a.Body = a.Each(n)
	}
	for k, v := range a.Header {
		w.Header().Set(k, v)
	}
	if w.Header().Get("Content-Type") == "" && (strings.HasPrefix(a.Body, "{") || a.Each != nil) {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write([]byte(a.Body))
}

// testGarbage answers with every status and every kind of body. Nothing may panic, and no
// answer of a proxy may refuse a mail permanently.
func testGarbage(t *testing.T, s Suite) {
	var status int
	var body string
	p := answering(t, s, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "Thursday")
		w.Header().Set("X-RateLimit-Reset", "99999999999999999999")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
	c := call(3)
	_, keyed := p.(keyed)
	for _, body = range []string{
		"", "null", "[]", "{}", "{", `"text"`, "42", "\x00\xff\xfe",
		"<html><body>Bad Gateway for User.2@rcpt2.test</body></html>",
		`{"errors":null,"message":null}`, `{"errors":[null,1,"x",{"field":7,"message":{}}],"message":[]}`,
		`{"errors":[{"field":"personalizations.99999999999.to","message":"x"}],"message":"User.1@rcpt1.test said no"}`,
		`{"errors":{"field":"personalizations.1"},"id":{},"message":{"a":1}}`,
		strings.Repeat("x <User.1@rcpt1.test> ", 100_000), strings.Repeat("[", 20_000), strings.Repeat(`{"a":`, 20_000),
	} {
		for _, status = range []int{200, 201, 202, 204, 206, 300, 302, 304, 400, 401, 402, 403, 404, 405, 406, 408, 409, 413,
			418, 422, 429, 451, 499,
			500, 501, 502, 503, 504, 520, 599, 600, 999} {
			parts := p.Send(t.Context(), c)
			Check(t, c, parts)
			for _, part := range parts {
				switch {
				case status >= 500 && status != 503 && part.Class != models.Unknown:
					t.Errorf("%d is %s", status, part.Class)
				case status == 503 && part.Class != models.Unavailable:
					t.Errorf("%d is %s", status, part.Class)
				case status == http.StatusConflict && keyed: // the first call with the key may have been accepted
					if part.Class != models.Unknown {
						t.Errorf("%d is %s", status, part.Class)
					}
				case status >= 300 && status < 500 && !part.Class.Refused():
					t.Errorf("%d is %s", status, part.Class)
				case status < 300 && part.Class != models.Accepted && part.Class != models.Unknown:
					t.Errorf("%d with %.40q is %s", status, body, part.Class)
				}
			}
			if t.Failed() {
				t.Fatalf("status %d, body %.60q: %s", status, body, show(parts))
			}
		}
	}
}

// testRedirect redirects the adapter to another server. Neither the mail nor the key may
// arrive there.
func testRedirect(t *testing.T, s Suite) {
	var strays atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strays.Add(1) }))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		p := answering(t, s, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		c := call(2)
		parts := p.Send(t.Context(), c)
		Check(t, c, parts)
		if !parts[0].Class.Refused() || parts[0].Status != status {
			t.Errorf("%d: %s", status, show(parts))
		}
	}
	if n := strays.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}
