//go:build browser

package dashboard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBrowserMistakes: a mistake stands beside its input, which has what was typed and names the mistake to assistive
// technology. A part of a form that was closed is open if it has one.
func TestBrowserMistakes(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.logIn(f.url)
	for _, c := range []struct{ name, path, field, typed, button, sees string }{
		{"endpoint-wrong", "/endpoints", "rate", "few", "Add", "rate must be a whole number."},
		{"hours-wrong", "/settings/times", "send_window/from", "9", "Save", "from must be a time of day"},
		{"template-wrong", "/templates/welcome", "defaults", "[]", "Save as draft", "defaults must be an object."},
		{"message-wrong", "/compose", "cc", "no-address", "Send to all", "no-address"},
		{"rule-wrong", "/operations/blocks", "domain", "no domain", "Add rule", `"no domain" is not a domain.`},
	} {
		b.open(c.path)
		b.typeInto(c.field, c.typed)
		b.press(c.button)
		b.sees(c.sees)
		input := `document.getElementById(` + quoteJS(c.field) + `)`
		require.Equal(t, c.typed, eval[string](b, input+`.value`))
		require.True(t, eval[bool](b, input+`.checkVisibility()`))
		require.Contains(t, eval[string](b, `document.getElementById(`+input+`.getAttribute("aria-describedby")).innerText`),
			c.sees)
		b.lookAround(c.name, "")
	}
}
