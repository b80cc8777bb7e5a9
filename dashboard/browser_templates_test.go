//go:build browser

package dashboard

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/templates"
)

// TestBrowserTemplates looks at the pages of templates, and at the preview that follows what
// is typed.
func TestBrowserTemplates(t *testing.T) {
	f := newRig(t, nil)
	for i, subject := range []string{"Hi {{name}}", "Welcome, {{name}}"} {
		src := templates.Source{
			Content: templates.Content{
				Subject: subject,
				HTML:    "<p>{% if vip %}Thank you, {{name}}.{% endif %}</p>",
				Text:    "Hello",
			},
			Sender: "Shop <shop@example.com>", InlineCSS: true, Defaults: map[string]any{"city": "Vienna"},
			Languages: map[string]templates.Content{"de": {Subject: "Willkommen, {{name}}"}},
		}
		var err error
		if i == 0 {
			_, err = f.service.Templates().Create(t.Context(), LocalUser().ID, "welcome", src, true)
		} else {
			_, err = f.service.Templates().AddVersion(t.Context(), LocalUser().ID, "welcome", src, false)
		}
		require.NoError(t, err)
	}
	b := openTab(t, f.url)
	link, err := f.board.LoginLink(t.Context(), LocalUser())
	require.NoError(t, err)
	b.open(link)
	b.sees("Overview")
	for name, path := range map[string]string{
		"templates": "/templates", "template": "/templates/welcome",
		"template-changes": "/templates/welcome?version=2&against=1",
	} {
		b.lookAround(name, path)
	}
}
