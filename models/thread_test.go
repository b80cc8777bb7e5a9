package models

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestShortenReferences(t *testing.T) {
	shorten := func(value string) string {
		h := Header{"references", value}
		h.ShortenReferences()
		return h.Value
	}
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("<%d.abcdefgh@example.com>", i))
	}
	got := strings.Fields(shorten(strings.Join(ids, " ")))
	if length := len(strings.Join(got, " ")); length > maxHeaderLine || length < maxHeaderLine-40 {
		t.Errorf("%d bytes", length)
	}
	if n := len(got); got[0] != ids[0] || !slices.Equal(got[1:], ids[len(ids)-n+1:]) {
		t.Errorf("%v", got)
	}
	if short := "<a@b>  <c@d>"; shorten(short) != short {
		t.Error("a short value was changed")
	}
	if long := shorten(strings.Repeat("x", 2000) + " <a@b>"); strings.Contains(long, "<a@b>") {
		t.Error("an id that is too long was followed by another one")
	}
}

func TestMoveMessageIDs(t *testing.T) {
	id, refs, other := Header{"Message-Id", "<{{n}}@x>"}, Header{"References", "<r@x>"}, Header{"X-A", "a"}
	for name, c := range map[string]struct {
		content, own []Header
		want         string // header fields of the mail
	}{
		"none":                 {[]Header{other, refs}, []Header{other}, "[{X-A a} {References <r@x>}]"},
		"of all":               {[]Header{id, other}, nil, "[{X-A a} {References <{{n}}@x>}]"},
		"after others":         {[]Header{refs, id}, nil, "[{References <r@x> <{{n}}@x>}]"},
		"own":                  {[]Header{refs}, []Header{{"message-id", "<o@x>"}}, "[{References <r@x> <o@x>}]"},
		"own in place of all":  {[]Header{id, refs}, []Header{{"message-id", "<o@x>"}}, "[{References <r@x> <o@x>}]"},
		"own references":       {[]Header{id, refs}, []Header{{"references", "<s@x>"}}, "[{References <s@x> <{{n}}@x>}]"},
		"own references alone": {[]Header{id}, []Header{{"References", "<s@x>"}}, "[{References <s@x> <{{n}}@x>}]"},
	} {
		content := &Content{Headers: c.content}
		call := Call{Content: content, Recipients: []CallRecipient{{Recipient: Recipient{Headers: c.own}}}}
		before := fmt.Sprint(c.content, c.own)
		call.MoveMessageIDs()
		if got := fmt.Sprint(call.Content.HeadersOf(&call.Recipients[0].Recipient)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if fmt.Sprint(c.content, c.own) != before || content.Headers != nil && &content.Headers[0] != &c.content[0] {
			t.Errorf("%s: the batch was changed", name)
		}
	}
}

// TestSlugs: providers get tags as all of them take them, each once.
func TestSlugs(t *testing.T) {
	c := Content{Tags: []string{"welcome", "Größe 2", "Gr--e-2", "a/b", strings.Repeat("x", 255)}}
	if got := fmt.Sprint(c.Slugs(4)); got != "[welcome Gr--e-2 a-b "+strings.Repeat("x", maxSlug)+"]" {
		t.Error(got)
	}
	got := Capabilities{Tags: 9, MessageID: true, NameMarks: true, Names: true, InlineNames: true}.LeftOut(&c)
	if !strings.HasPrefix(got, "some characters of tags: they become welcome, Gr--e-2, a-b, xxx") {
		t.Error(got)
	}
}
