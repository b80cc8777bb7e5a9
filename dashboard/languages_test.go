package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
)

// TestTemplateLanguages: a template has a tab for each language. Buttons add and remove one and store nothing. The open
// tab is the language of the preview, and stays open when the template is stored or refused.
func TestTemplateLanguages(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	form := url.Values{"subject": {"Hi"}, "text": {"Hello"}, "to": {"ann@example.com"}, "do": {"add"}}

	form.Set("new_language", "klingonisch!")
	a := b.post("/templates/welcome", form)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="new_language-wrong">Enter a language like de or de-AT.`)
	require.Contains(t, a.text, `id="shown-new" value="+" checked`)

	form.Set("new_language", "DE-at")
	a = b.post("/templates/welcome", form)
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Contains(t, a.text, `id="shown-de-AT" value="de-AT" checked`)
	require.Contains(t, a.text, "A new template", "it was stored")

	form.Set("shown", "de-AT")
	form.Set("languages/de-AT/subject", "Servus")
	form.Set("languages/fr/subject", "Salut")
	require.Contains(t, b.post("/templates/welcome/preview", form).text, "Subject: Servus")
	form.Set("language", "fr")
	require.Contains(t, b.post("/templates/welcome/preview", form).text, "Subject: Salut", "it was entered")
	form.Del("language")

	form.Set("do", "save")
	a = b.post("/templates/welcome", form)
	require.Contains(t, a.text, "Saved as a draft.")
	require.Contains(t, a.text, `id="shown-de-AT" value="de-AT" checked`)
	require.Contains(t, a.text, `name="languages/fr/subject" value="Salut"`)

	form.Set("languages/fr/html", "{% if %}")
	a = b.post("/templates/welcome", form)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="languages/fr/html-wrong">Line 1: {% if %} has no condition.`)
	require.Contains(t, a.text, `id="shown-fr" value="fr" checked`, "the mistake is in a tab that is not open")

	form.Del("languages/fr/html")
	form.Set("do", "remove fr")
	require.NotContains(t, b.post("/templates/welcome", form).text, "shown-fr")
	require.Contains(t, b.get("/templates/welcome?version=1").text, "shown-fr", "it was stored")
}
