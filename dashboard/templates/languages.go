package templates

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/text/language"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/service"
)

// languageTab is a tab of the template editor: what a language says in place of the default.
type languageTab struct {
	Code string
	client.TemplateContent
}

// languageTabs returns the tabs of a template, sorted by language.
func languageTabs(all map[string]client.TemplateContent) (out []languageTab) {
	for _, code := range slices.Sorted(maps.Keys(all)) {
		out = append(out, languageTab{code, all[code]})
	}
	return out
}

// languagesOf is the reverse of languageTabs.
func languagesOf(tabs []languageTab) map[string]client.TemplateContent {
	if len(tabs) == 0 {
		return nil
	}
	out := map[string]client.TemplateContent{}
	for _, tab := range tabs {
		out[tab.Code] = tab.TemplateContent
	}
	return out
}

// readLanguages reads the tabs of the form. Their fields have the same names in all tabs.
func (t *templateView) readLanguages(form url.Values) {
	at := func(name string, i int) string {
		if all := form[name]; i < len(all) {
			return web.Lines(all[i])
		}
		return ""
	}
	for i, code := range form["language_code"] {
		t.Languages = append(t.Languages, languageTab{code, client.TemplateContent{
			Subject: at("language_subject", i), HTML: at("language_html", i), Text: at("language_text", i),
		}})
	}
	t.Shown, t.NewLanguage = form.Get("shown"), strings.TrimSpace(form.Get("new_language"))
}

// sampleLanguage returns the language of the preview and of a test: the one that was entered, or that of the open tab.
func (t *templateView) sampleLanguage() string {
	if t.Shown == newLanguageTab {
		return strings.TrimSpace(t.Language)
	}
	return cmp.Or(strings.TrimSpace(t.Language), t.Shown)
}

// has reports whether there is a tab of a language.
func (t *templateView) has(code string) bool {
	return slices.ContainsFunc(t.Languages, func(tab languageTab) bool { return tab.Code == code })
}

// newLanguageTab is the tab that adds a language.
const newLanguageTab = "+"

// Adding reports whether the tab that adds a language is open.
func (t *templateView) Adding() bool { return t.Shown == newLanguageTab }

// changeLanguages adds or removes a tab if that button was pressed, and stores nothing.
func (t *templateView) changeLanguages(do string) bool {
	if code, remove := strings.CutPrefix(do, "remove "); remove {
		t.Languages = slices.DeleteFunc(t.Languages, func(tab languageTab) bool { return tab.Code == code })
		t.Shown = ""
		return true
	}
	if do != "add" {
		return false
	}
	tag, err := language.Parse(t.NewLanguage)
	if err != nil || tag == language.Und {
		t.Wrong["new_language"] = "Enter a language like de or de-AT."
		t.Shown = newLanguageTab
		return true
	}
	t.Shown, t.NewLanguage = tag.String(), ""
	if !t.has(t.Shown) {
		t.Languages = append(t.Languages, languageTab{Code: t.Shown})
	}
	return true
}

// wrongLanguage reports a mistake in a language, and opens the tab of the first one.
func (t *templateView) wrongLanguage(pointer string, f *service.FieldError) {
	code, part, _ := strings.Cut(pointer, "/")
	if t.Wrong["languages"] == "" {
		t.Shown = code
	}
	text := strings.TrimSpace(code+" "+part) + ": " + web.Sentence(f.Detail)
	t.Wrong["languages"] = strings.TrimSpace(t.Wrong["languages"] + " " + text)
}
