package templates

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"golang.org/x/text/language"

	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Languages returns the languages that have a tab in the form, sorted.
func (t *templateView) Languages() []string { return operation.Below(t.Form.Values, "languages") }

// sampleLanguage returns the language of the preview and of a test: the one that was entered, or that of the open tab.
func (t *templateView) sampleLanguage() string {
	if t.Adding() {
		return t.Form.Text("language")
	}
	return cmp.Or(t.Form.Text("language"), t.Shown)
}

// has reports whether there is a tab of a language.
func (t *templateView) has(code string) bool { return slices.Contains(t.Languages(), code) }

// Adding reports whether the tab that adds a language is open.
func (t *templateView) Adding() bool { return t.Shown == "+" }

// changeLanguages adds or removes a tab if that button was pressed, and stores nothing.
func (t *templateView) changeLanguages(do string) (done bool, err error) {
	if code, remove := strings.CutPrefix(do, "remove "); remove {
		maps.DeleteFunc(t.Form.Values, func(name string, _ []string) bool {
			return strings.HasPrefix(name, "languages/"+code+"/")
		})
		t.Shown = ""
		return true, nil
	}
	if do != "add" {
		return false, nil
	}
	tag, err := language.Parse(t.Form.Text("new_language"))
	if err != nil || tag == language.Und {
		t.Shown = "+"
		var f problem.Form
		f.Wrong("/new_language", "invalid_name", "Enter a language like de or de-AT.")
		return false, f.Err()
	}
	t.Form.Del("new_language")
	if t.Shown = tag.String(); !t.has(t.Shown) {
		t.Form.Set("languages/"+t.Shown+"/subject", "")
	}
	return true, nil
}
