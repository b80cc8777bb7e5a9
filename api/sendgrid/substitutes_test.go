package sendgrid

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
)

// FuzzSubstitutes: what a recipient reads is the text with the values of the keys. All may have braces.
func FuzzSubstitutes(f *testing.F) {
	f.Add("Hi -name-, {-name-} {{x}} {{{-n-", "-name-", "{{y}} -n-")
	f.Add("%n%%n%", "%n%", "{")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		if key == "" || strings.ContainsAny(key, "{}") || value == "" {
			return
		}
		raw, err := json.Marshal(map[string]string{key: value})
		var back map[string]string
		if err != nil || json.Unmarshal(raw, &back) != nil || back[key] != value {
			return // it is not valid UTF-8
		}
		p := dialect.Object{"substitutions": raw}
		s := newSubstitutes(&request{parts: []dialect.Object{p}}, []int{0})
		r := &models.Recipient{Vars: map[string]string{}}
		for i, v := range s.values(p) {
			r.Vars[models.SlotName('h', i)] = v
		}
		want := strings.ReplaceAll(text, key, value)
		if got := r.Fill(s.text(text), models.EscapeHTML); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
	})
}
