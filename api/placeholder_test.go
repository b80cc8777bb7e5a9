package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlaceholders: each recipient needs a value for each placeholder.
func TestPlaceholders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const two = `"to": [
		{"email": "a@b.de", "vars": {"x": "1"}},
		{"email": "c@d.de", "name": "C", "vars": {"x": "2", "y": "3"}}
	]`
	for name, c := range map[string]struct {
		change string
		want   []string
	}{
		"name and email need no value": {`{"text": "{{name}} {{email}}"}`, nil},
		"all have a value":             {`{"subject": "{{x}}", "text": "{{ x }}", "html": "{{x}}", ` + two + `}`, nil},
		"no value at all, subject":     {`{"subject": "{{z}}", ` + two + `}`, []string{"/subject unknown_placeholder"}},
		"no value at all, text":        {`{"text": "{{z}}", ` + two + `}`, []string{"/text unknown_placeholder"}},
		"no value at all, html":        {`{"html": "{{z}}", ` + two + `}`, []string{"/html unknown_placeholder"}},
		"no value at all, body":        {`{"body": "{{z}}", ` + two + `}`, []string{"/body unknown_placeholder"}},
		"one has no value": {
			`{"subject": "{{y}}", "text": "{{y}} {{z}}", ` + two + `}`,
			[]string{"/text unknown_placeholder", "/to/0/vars/y unknown_placeholder"},
		},
		"dropped duplicate": {`{"text": "{{x}}", "to": [{"email": "a@b.de", "vars": {"x": "1"}}, "A@b.de"]}`, nil},
		"kept duplicate": {
			`{"text": "{{x}}", "to": [{"email": "a@b.de", "vars": {"x": "1"}}, "A@b.de"], "allow_duplicates": true}`,
			[]string{"/to/1/vars/x unknown_placeholder"},
		},
		"no placeholder": {`{"text": "{ {x}} }} {"}`, nil},
		"escaped":        {`{"subject": "{{{{ {{{{x}}", "text": "{{{{1a}}"}`, nil},
		"any script":     {`{"text": "{{prénom}}", "to": [{"email": "a@b.de", "vars": {"prénom": "Zoé"}}]}`, nil},
		"malformed": {
			`{"subject": "{{ }}", "text": "{{name}} {{1a}}", "html": "{{x y}}"}`,
			[]string{"/html unknown_placeholder", "/subject unknown_placeholder", "/text unknown_placeholder"},
		},
		"malformed body": {`{"body": "{{x"}`, []string{"/body unknown_placeholder"}},
		"with other mistakes": {
			`{"lane": "x", "text": "{{z}}", "to": ["bad", "a@b.de"]}`,
			[]string{"/to/0 invalid_address", "/lane invalid_value", "/text unknown_placeholder"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := f.with(t)
			r := f.post(batchOf(t, c.change))
			if c.want == nil {
				f.accepted(r)
				return
			}
			p := r.problem(t)
			got := p.pointers()
			slices.Sort(got)
			slices.Sort(c.want)
			require.Equal(t, c.want, got)
		})
	}
}

// TestMalformedPlaceholder: the error quotes the text, names its place and how to escape it.
func TestMalformedPlaceholder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := f.post(batchOf(t, `{"text": "Dear {{name}},\nélan {{first name}}\n{{}}"}`)).problem(t)
	require.Equal(t, []string{"/text unknown_placeholder"}, p.pointers())
	require.Contains(t, p.Errors[0].Detail, `"{{first name}}" in line 2, column 6 `)
	require.Contains(t, p.Errors[0].Detail, "Write {{{{ for a literal {{.")
}

// TestManySetsOfVars: placeholders are checked even if the recipients have too many different
// sets of variables to keep.
func TestManySetsOfVars(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var to []string
	for i := range 1050 {
		name := "v" + strings.Repeat("i", i/26%60) + string(rune('a'+i%26)) + strings.Repeat("j", i/1560)
		to = append(to, `{"email": "same@example.com", "vars": {"x": 1, "`+name+`": 1}}`)
	}
	list := strings.Join(to, ",")
	f.accepted(f.post(batchOf(t, `{"text": "{{x}}", "to": [`+list+`]}`)))
	p := f.post(batchOf(t, `{"text": "{{x}}", "to": [`+list+`, "ann@example.com"]}`)).problem(t)
	require.Equal(t, []string{"/to/1050/vars/x unknown_placeholder"}, p.pointers())
}

// inSubject returns the change of a request whose subject has a placeholder with the value of a
// variable.
func inSubject(placeholder, name, value string) string {
	return `{"subject": "Hi ` + placeholder + `", "to": [{"email": "ann@example.com", ` +
		`"vars": {"` + name + `": "Ann` + value + `"}}]}`
}
