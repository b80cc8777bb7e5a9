package providertest

import (
	"fmt"
	"mime"
	"net/mail"
	"slices"
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// testOptions sends what a message may have besides sender, subject and bodies.
func testOptions(t *testing.T, s Suite) {
	content := func(headers ...models.Header) *models.Content {
		c := *call(1).Content
		c.ReplyTo = []models.Address{{Email: "help@sender.test", Name: "Hülfe, \"quoted\""}, {Email: "more@sender.test"}}
		if s.Carries.OneReply {
			c.ReplyTo = c.ReplyTo[:1]
		}
		c.Headers = headers
		for i := range 10 {
			c.Tags = append(c.Tags, fmt.Sprintf("tag.%d", i))
		}
		c.Tags[1] = "Größe/2 " + strings.Repeat("x", 200)
		return &c
	}
	list := models.Header{Name: "List-Unsubscribe", Value: "<https://sender.test/u?x=100%25>, <mailto:u@sender.test>"}
	far := models.Header{Name: "X-Far", Value: "%recipient.order% über -sd"}
	personal := models.Header{Name: "X-Order", Value: "№ {{order}} of {{name}}"}
	id, refs := models.Header{Name: "Message-Id", Value: "<a1@sender.test>"}, models.Header{Name: "References", Value: "<a0@x.test>"}
	own := models.Header{Name: "Message-Id", Value: "<{{order}}@sender.test>"}
	for name, c := range map[string]*models.Content{
		"ASCII":            content(list),
		"the same for all": content(list, far),
		"personal":         content(list, far, personal),
		"none":             content(),
		"Message-ID":       content(refs, id),
		"own Message-IDs":  content(own),
	} {
		for _, tracked := range []bool{false, true} {
			p, rec := serve(t, s)
			c.TrackOpens, c.TrackClicks = tracked, !tracked
			one := call(3)
			one.Content = c
			if !s.Carries.MessageID {
				one.MoveMessageIDs()
			}
			if !taken(t, s, p, rec, one) {
				continue
			}
			if len(rec.copies) != 3 {
				t.Fatalf("%s: %d mails for 3 recipients", name, len(rec.copies))
			}
			for i := range rec.copies {
				sameOptions(t, s, &rec.copies[i], one.Content, one)
			}
		}
	}
	testOwnHeaders(t, s, content)
	testNames(t, s)
	testReplies(t, s)

	// A placeholder without a value is never sent as it is.
	p, rec := serve(t, s)
	c := call(3)
	c.Content = content(personal)
	delete(c.Recipients[1].Vars, "order")
	parts := p.Send(t.Context(), c)
	Check(t, c, parts)
	if part, _ := classOf(parts, 2); rec.calls != 0 || !part.Class.Refused() {
		t.Errorf("a value is missing: %s, %d requests", show(parts), rec.calls)
	}
}

// taken sends a call and reports whether the kind takes it. What it does not take is refused before a request.
func taken(t *testing.T, s Suite, p models.Adapter, rec *recorder, c *models.Call) bool {
	t.Helper()
	if s.Takes == nil || s.Takes(c) {
		only(t, c, p.Send(t.Context(), c), models.Accepted)
		return true
	}
	only(t, c, p.Send(t.Context(), c), models.RejectedHereClass)
	if rec.calls != 0 {
		t.Errorf("%d requests for what is not taken", rec.calls)
	}
	return false
}

// testNames sends to and from names with the characters that separate addresses. Every part of a name arrives, and the
// marks, too, if the kind declares that it carries them.
func testNames(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	c := call(2)
	const marked = "Smith, Ann; PhD"
	c.Content.From.Name = marked
	for i := range c.Recipients {
		c.Recipients[i].Name = marked
	}
	only(t, c, p.Send(t.Context(), c), models.Accepted)
	want := marked
	if !s.Carries.NameMarks {
		want = "Smith Ann PhD"
	}
	for _, m := range rec.copies {
		from, err := mail.ParseAddress(m.From)
		if err != nil || from.Name != want || m.Name != want && s.Carries.Names {
			t.Errorf("name %q, sender %q (%v), want %q", m.Name, m.From, err, want)
		}
	}
}

// testReplies sends a message with two reply-to addresses to a kind that takes one: it is refused, and no address lost.
func testReplies(t *testing.T, s Suite) {
	if !s.Carries.OneReply {
		return
	}
	p, rec := serve(t, s)
	c := call(2)
	c.Content.ReplyTo = append(c.Content.ReplyTo, models.Address{Email: "more@sender.test"})
	if only(t, c, p.Send(t.Context(), c), models.RejectedHereClass); rec.calls != 0 {
		t.Errorf("%d requests were made", rec.calls)
	}
}

// testOwnHeaders sends header fields of recipients: of the same names, and if the kind carries that, of different ones.
func testOwnHeaders(t *testing.T, s Suite, content func(...models.Header) *models.Content) {
	own := func(names ...string) (out []models.Header) {
		for _, name := range names {
			out = append(out, models.Header{Name: name, Value: "№ {{order}} of " + name})
		}
		return out
	}
	order, all := models.Header{Name: "X-Order", Value: "none"}, models.Header{Name: "X-All", Value: "all"}
	for name, c := range map[string]struct {
		content []models.Header
		own     [3][]models.Header
		names   bool // the mails have fields of different names
	}{
		"all":         {own: [3][]models.Header{own("X-Ref", "X-Order"), own("X-Order", "X-Ref"), own("X-Ref", "X-Order")}},
		"in place":    {content: []models.Header{order, all}, own: [3][]models.Header{nil, own("x-order"), own("X-All")}},
		"not the 1st": {names: true, own: [3][]models.Header{nil, own("X-Ref"), own("X-Ref")}},
		"not the 3rd": {names: true, content: []models.Header{all}, own: [3][]models.Header{own("X-Ref"), own("X-Ref")}},
	} {
		p, rec := serve(t, s)
		one := call(3)
		one.Content = content(c.content...)
		for i := range c.own {
			one.Recipients[i].Headers = c.own[i]
		}
		parts := p.Send(t.Context(), one)
		Check(t, one, parts)
		if !s.Carries.Headers || c.names && !s.Carries.HeaderNames {
			if rec.calls != 0 || parts[0].Class != models.RejectedHereClass {
				t.Errorf("%s: %s, %d requests for fields that cannot be carried", name, show(parts), rec.calls)
			}
			continue
		}
		only(t, one, parts, models.Accepted)
		for i := range rec.copies {
			sameOptions(t, s, &rec.copies[i], one.Content, one)
		}
	}
}

// testRecipientFields checks what the kind declares of the fields of each recipient.
func testRecipientFields(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	c := call(2)
	if !s.Carries.Variables {
		c.Content.Subject, c.Content.Text, c.Content.HTML = "s", "t", "h"
	}
	only(t, c, p.Send(t.Context(), c), models.Accepted)
	if rec.calls != 1 || len(rec.copies) != 2 {
		t.Fatalf("%d requests and %d mails", rec.calls, len(rec.copies))
	}
	for i := range rec.copies {
		r, m := &c.Recipients[i], &rec.copies[i]
		if (m.Name == r.Name) != s.Carries.Names {
			t.Errorf("name %q of %q, declared: %t", m.Name, r.Name, s.Carries.Names)
		}
		if (m.Log == r.Log.String() && m.Attempt == fmt.Sprint(c.Attempt)) != s.Carries.Metadata {
			t.Errorf("log %q and attempt %q, declared: %t", m.Log, m.Attempt, s.Carries.Metadata)
		}
		if want := "Order " + r.Vars["order"]; (m.Subject == want) != s.Carries.Variables {
			t.Errorf("subject %q, want %q, declared: %t", m.Subject, want, s.Carries.Variables)
		}
	}

	// An address beyond ASCII is sent to, or refused before the call.
	for name, change := range map[string]func(c *models.Call){
		"recipient": func(c *models.Call) { c.Recipients[1].Email = "josé@rcpt.test" },
		"sender":    func(c *models.Call) { c.Content.From.Email = "josé@sender.test" },
		"replies":   func(c *models.Call) { c.Content.ReplyTo[0].Email = "josé@sender.test" },
	} {
		p, rec := serve(t, s)
		c := call(2)
		change(c)
		parts := p.Send(t.Context(), c)
		Check(t, c, parts)
		part, _ := classOf(parts, 2)
		if s.Carries.UTF8 && part.Class != models.Accepted || !s.Carries.UTF8 &&
			(part.Class != models.RejectedHereClass || rec.calls > 0) {
			t.Errorf("%s beyond ASCII: %s, %d requests; declared: %t", name, show(parts), rec.calls, s.Carries.UTF8)
		}
	}
}

// sameOptions checks that a copy has the options of the content.
func sameOptions(t *testing.T, s Suite, got *Copy, c *models.Content, call *models.Call) {
	t.Helper()
	var r *models.Recipient
	for i := range call.Recipients {
		if call.Recipients[i].Email == got.To {
			r = &call.Recipients[i].Recipient
		}
	}
	replies, err := mail.ParseAddressList(got.ReplyTo)
	same := func(got *mail.Address, want models.Address) bool { return got.Address == want.Email }
	if err != nil || !slices.EqualFunc(replies, c.ReplyTo, same) {
		t.Errorf("reply-to %q: %v", got.ReplyTo, err)
	}
	want := map[string]string{}
	for _, h := range slices.Concat(c.Headers, r.Headers) {
		name := h.Name
		for known := range want { // the recipient's value, by the name that the content has
			if strings.EqualFold(known, name) {
				name = known
			}
		}
		want[name] = models.Rewrite(h.Value, func(name string) string { v, _ := r.Value(name); return v })
	}
	decoded := map[string]string{}
	for k, v := range got.Headers {
		for i := range len(v) {
			if v[i] >= 0x80 {
				t.Errorf("header field %s: %q is not ASCII", k, v)
				break
			}
		}
		if decoded[k], err = new(mime.WordDecoder).DecodeHeader(v); err != nil {
			t.Errorf("header field %s: %q: %v", k, v, err)
		}
	}
	if fmt.Sprint(decoded) != fmt.Sprint(want) {
		t.Errorf("header fields\n got %v\nwant %v", decoded, want)
	}
	if fmt.Sprint(got.Tags) != fmt.Sprint(c.Slugs(s.Carries.Tags)) {
		t.Errorf("tags %v of %v, want %v", got.Tags, c.Tags, c.Slugs(s.Carries.Tags))
	}
	if !s.Carries.OwnTracking && (got.Opens != c.TrackOpens || got.Clicks != c.TrackClicks) {
		t.Errorf("opens are tracked: %t, clicks: %t; want %t, %t", got.Opens, got.Clicks, c.TrackOpens, c.TrackClicks)
	}
}
