package models

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	angled := func(n string) string { return "<" + n + ">" }
	for in, c := range map[string]struct {
		rewritten string
		malformed int // offset, -1: none
	}{
		"Hi {{name}}, {{ a.b-c }}{{\tx\n}}":    {"Hi <name>, <a.b-c><x>", -1},
		"{{prénom}} {{имя}} {{नाम}} {{名前2}}":   {"<prénom> <имя> <नाम> <名前2>", -1},
		"{{{{name}} {{{{ {{x}}":                {"{{name}} {{ <x>", -1},
		"{{{{{{x}}":                            {"{{<x>", -1},
		"}} {x} } {":                           {"}} {x} } {", -1},
		"a {{1x}} {{y}}":                       {"a {{1x}} <y>", 2},
		"{{}}":                                 {"{{}}", 0},
		"{{a b}}":                              {"{{a b}}", 0},
		"{{{name}}}":                           {"{{{name}}}", 0},
		"{{name":                               {"{{name", 0},
		"{{name}":                              {"{{name}", 0},
		"{{":                                   {"{{", 0},
		"{{a{{b}}":                             {"{{a<b>", 0},
		"{{\xff}}":                             {"{{\xff}}", 0},
		"{{" + strings.Repeat("é", 32) + "}}":  {"<" + strings.Repeat("é", 32) + ">", -1},
		"{{" + strings.Repeat("é", 32) + "x}}": {"{{" + strings.Repeat("é", 32) + "x}}", 0},
	} {
		require.Equal(t, c.rewritten, Rewrite(in, angled), in)
		at, _ := MalformedPlaceholder(in)
		require.Equal(t, c.malformed, at, in)
	}
	require.Equal(t, []string{"b", "a"}, Placeholders("{{b}} {{a}} {{b}} {{1}}"))
	_, text := MalformedPlaceholder("Hello\n{{first name}}, and so on")
	require.Equal(t, "{{first name}}", text)

	r := Recipient{Email: "a@b.c", Name: "Ann", Vars: map[string]string{"name": "Other"}}
	v, ok := r.Value("name")
	require.True(t, ok)
	require.Equal(t, "Other", v)
	_, ok = r.Value("none")
	require.False(t, ok)
}

func FuzzPlaceholders(f *testing.F) {
	f.Add("a {{b}} c {{ d }} {{ {{{{")
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		n := 0
		EachPlaceholder(s, func(x string) { b.WriteString(x) }, func(name string) {
			n++
			require.True(t, ValidVar(name), name)
		})
		if n == 0 && !strings.Contains(s, "{{{{") {
			require.Equal(t, s, b.String(), "plain text stays as it is")
		}
		at, text := MalformedPlaceholder(s)
		require.True(t, at < 0 || strings.HasPrefix(s[at:], "{{") && utf8.ValidString(text))
	})
}
