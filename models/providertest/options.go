package providertest

import (
	"fmt"
	"mime"
	"net/mail"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// testOptions sends what a message may have besides sender, subject and bodies.
func testOptions(t *testing.T, s Suite) {
	content := func(headers ...models.Header) *models.Content {
		c := *call(1).Content
		c.ReplyTo = []models.Address{{Email: "help@sender.test", Name: "Hülfe, \"quoted\""}, {Email: "more@sender.test"}}
		c.Headers = headers
		for i := range 10 {
			c.Tags = append(c.Tags, fmt.Sprintf("tag.%d", i))
		}
		return &c
	}
	list := models.Header{Name: "List-Unsubscribe", Value: "<https://sender.test/u?x=100%25>, <mailto:u@sender.test>"}
	far := models.Header{Name: "X-Far", Value: "%recipient.order% über -sd"}
	personal := models.Header{Name: "X-Order", Value: "№ {{order}} of {{name}}"}
	for name, c := range map[string]*models.Content{
		"the same for all": content(list, far),
		"personal":         content(list, far, personal),
		"none":             content(),
	} {
		for _, tracked := range []bool{false, true} {
			p, rec := serve(t, s)
			c.TrackOpens, c.TrackClicks = tracked, !tracked
			one := call(3)
			one.Content = c
			only(t, one, p.Send(t.Context(), one), models.Accepted)
			if len(rec.copies) != 3 {
				t.Fatalf("%s: %d mails for 3 recipients", name, len(rec.copies))
			}
			for i := range rec.copies {
				sameOptions(t, s, &rec.copies[i], c, one)
			}
		}
	}

	// A placeholder without a value is never sent as it is.
	p, rec := serve(t, s)
	c := call(3)
	c.Content = content(personal)
	delete(c.Recipients[1].Vars, "order")
	parts := p.Send(t.Context(), c)
	check(t, c, parts)
	if part, _ := classOf(parts, 2); rec.calls != 0 || !part.Class.Refused() {
		t.Errorf("a value is missing: %s, %d requests", show(parts), rec.calls)
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
	if err != nil || len(replies) != 2 || replies[0].Address != "help@sender.test" ||
		replies[1].Address != "more@sender.test" {
		t.Errorf("reply-to %q: %v", got.ReplyTo, err)
	}
	want := map[string]string{}
	for _, h := range c.Headers {
		want[h.Name] = models.Rewrite(h.Value, func(name string) string { v, _ := r.Value(name); return v })
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
	if fmt.Sprint(got.Tags) != fmt.Sprint(c.Tags[:min(len(c.Tags), s.Carries.Tags)]) {
		t.Errorf("tags %v of %v", got.Tags, c.Tags)
	}
	if got.Opens != c.TrackOpens || got.Clicks != c.TrackClicks {
		t.Errorf("opens are tracked: %t, clicks: %t; want %t, %t", got.Opens, got.Clicks, c.TrackOpens, c.TrackClicks)
	}
}
