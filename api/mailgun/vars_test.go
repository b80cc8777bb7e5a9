package mailgun

import (
	"strconv"
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
)

// FuzzFiller: what a recipient reads is the text with its values. Both may have any braces and percent signs.
func FuzzFiller(f *testing.F) {
	f.Add("Hi %recipient.name%, {%recipient.n%} {{x}} {{{%recipient%", "{{y}} %recipient.n%")
	f.Add("100% %recipient.%recipient.name%%", "{")
	f.Fuzz(func(t *testing.T, text, value string) {
		if strings.Contains(text, "subscribe") {
			return
		}
		to := &address{posted: "Ann <ann@x.test>", email: "ann@x.test", name: "Ann"}
		to.vars = map[string]string{"name": value, "n": value}
		var fill filler
		r := &models.Recipient{Vars: map[string]string{}}
		written := fill.text(text)
		for i, v := range fill.values(to) {
			r.Vars[models.SlotName('h', i)] = v
		}
		want := macro.ReplaceAllStringFunc(text, func(found string) string {
			switch key := strings.Trim(found, "%"); key {
			case "recipient":
				return to.posted
			case "recipient_email":
				return to.email
			case "recipient_name", "recipient_fname":
				return to.name
			case "recipient_lname":
				return ""
			case "recipient.name", "recipient.n":
				return value
			}
			return found
		})
		if got := r.Fill(written, models.EscapeHTML); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
	})
}

// TestManyVariables: of a message with too many variables, which is refused, no more are kept than show that.
func TestManyVariables(t *testing.T) {
	var text strings.Builder
	for i := range 10_000 {
		text.WriteString("%recipient.a" + strconv.Itoa(i) + "%")
	}
	var fill filler
	if fill.text(text.String()); len(fill.names) != intake.MaxVars+1 {
		t.Errorf("%d variables are kept", len(fill.names))
	}
}

// FuzzExpression: a filter of any text is read, and selects what has its only word.
func FuzzExpression(f *testing.F) {
	f.Add("a AND b OR c")
	f.Fuzz(func(t *testing.T, text string) {
		parseExpression(text).matches(text)
		if word := strings.ToLower(strings.Trim(text, `()"<> `)); word == text && word != "" && !strings.Contains(word, " ") {
			if !parseExpression(text).matches(word) {
				t.Errorf("%q does not select itself", text)
			}
		}
	})
}
