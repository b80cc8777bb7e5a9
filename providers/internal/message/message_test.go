package message

import (
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

func TestMailbox(t *testing.T) {
	for _, s := range []string{"a@b", "User.Name+tag@example.com", `"a b"@example.com`, "josé@example.com",
		"o'neil@example.com", "a@[192.0.2.1]"} {
		want := !strings.Contains(s, `"a b"`) // white space is refused, quoted or not
		if Mailbox(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
	for _, s := range []string{"", "a", "@", "a@", "@b", "a@b@c", ".a@b", "a.@b", "a..b@c", "a@.b", "a@b.", "a@b, c@d",
		"a@b;c@d", "N <a@b>", "<a@b>", "a b@c",
		"a@b c", "a@b\n", "a@b\x00", "a\u2028b@c", "a@b\u2029", "a@b(x)", `"a`, "a\xff@b", strings.Repeat("a", 400) + "@b"} {
		if Mailbox(s) {
			t.Errorf("%q was taken", s)
		}
	}
}

func FuzzMailbox(f *testing.F) {
	f.Add("a@b.test, c@d.test")
	f.Add(`"a,b"@c`)
	f.Fuzz(func(t *testing.T, s string) {
		if Mailbox(s) && (models.OneLine(s) != s || strings.ContainsAny(s, " \t\r\n<>") || !strings.Contains(s, "@")) {
			t.Errorf("%q", s)
		}
	})
}

func TestLine(t *testing.T) {
	for in, want := range map[string]string{"": "", "plain": "plain", "a\r\n b": "a  b", "a\r\n\r\nb": "a b", "\na": " a",
		"a\x7f": "a ", "ü\u2028ü": "ü ü", "\xff": "\ufffd", "a\u0085b": "a b"} {
		if got := models.OneLine(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if Name(" \r\nx\t") != "x" {
		t.Error("a name keeps its margins")
	}
	if Body("a\x00b\r\n\xff") != "ab\r\n\ufffd" {
		t.Errorf("%q", Body("a\x00b\r\n\xff"))
	}
}

// TestSlots: a slot of HTML is put in as it is, because the template has escaped the values in
// it. Other values are escaped, also those of slots of other parts.
func TestSlots(t *testing.T) {
	r := &models.Recipient{Vars: map[string]string{
		models.SlotName('h', 0): "<b>&amp;</b>", models.SlotName('t', 0): "<b>", "x": "<b>",
	}}
	for v, want := range map[Var]string{
		{models.SlotName('h', 0), HTMLForm}: "<b>&amp;</b>",
		{models.SlotName('t', 0), HTMLForm}: "&lt;b&gt;",
		{models.SlotName('t', 0), TextForm}: "<b>",
		{"x", HTMLForm}:                     "&lt;b&gt;",
	} {
		if got, ok := v.Value(r); !ok || got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
