package liquid

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// full compiles a source and returns what a recipient gets.
func full(t testing.TB, source string, place Place, vars map[string]any) string {
	t.Helper()
	p, err := Compile(source, place, true)
	require.NoError(t, err, source)
	return fill(t, p, vars)
}

// fill renders a part as acceptance does: slots become variables, and placeholders are
// replaced as at the provider.
func fill(t testing.TB, p *Part, vars map[string]any) string {
	t.Helper()
	values, err := p.Render(context.Background(), vars)
	require.NoError(t, err)
	r := models.Recipient{Vars: map[string]string{}}
	for name, v := range vars {
		r.Vars[name] = fmt.Sprint(v)
	}
	for i, name := range p.Slots {
		r.Vars[name] = values[i]
	}
	if p.place == HTML {
		return r.Fill(p.Fixed, models.EscapeHTML)
	}
	return r.Fill(p.Fixed, nil)
}

var sample = func() (vars map[string]any) {
	err := json.Unmarshal([]byte(`{"name": "Ann & Bob", "vip": true, "no": false, "n": 3, "s": "a\nb",
		"items": [{"title": "<Tea>", "price": 3.5}, {"title": "Cup", "price": 12}], "words": ["x", "y", "z"],
		"user": {"first": "Ann"}, "day": "2026-01-31T12:00:00Z"}`), &vars)
	if err != nil {
		panic(err)
	}
	vars["n"] = 3
	vars["items"].([]any)[1].(map[string]any)["price"] = 12 //nolint:forcetypeassert // as the caller decodes integers
	return vars
}()

func TestRender(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		source string
		html   string
		text   string // empty: as html
		slots  int
	}{
		{"Hello {{name}}!", "Hello Ann &amp; Bob!", "Hello Ann & Bob!", 0},
		{"{{ name | upcase }}", "ANN &amp; BOB", "ANN & BOB", 1},
		{"a {% if vip %}<b>{{name}}</b>{% else %}no{% endif %} b", "a <b>Ann &amp; Bob</b> b", "a <b>Ann & Bob</b> b", 1},
		{"{% if no %}x{% elsif n == 3 %}three{% endif %}", "three", "", 1},
		{"{% unless vip %}x{% else %}y{% endunless %}", "y", "", 1},
		{"{% case n %}{% when 1 %}one{% when 3 %}three{% endcase %}", "three", "", 1},
		{"{% for i in items %}{{ i.title }}: {{ i.price }}; {% endfor %}", "&lt;Tea&gt;: 3.5; Cup: 12; ", "<Tea>: 3.5; Cup: 12; ", 1},
		{"{% for i in none %}x{% else %}empty{% endfor %}", "empty", "", 1},
		{"{% for i in (1..3) %}{{ i }}{% endfor %}", "123", "", 1},
		{"{% for w in words %}{% if w == 'y' %}{% continue %}{% endif %}{{ w }}{% endfor %}", "xz", "", 1},
		{"{% for w in words %}{% if w == 'y' %}{% break %}{% endif %}{{ w }}{% endfor %}", "x", "", 1},
		{"{{ user.first }} {{ user.last | default: 'Doe' }}", "Ann Doe", "", 2},
		{"{% assign total = n | times: 2 %}x {{ total }} y {{ total | plus: 1 }}", "x 6 y 7", "", 2},
		{"{{ vip }}{{ words | join: '+' }}", "truex+y+z", "", 1},
		{"a  {%- if vip -%}  b  {%- endif -%}  c", "abc", "", 1},
		{"a  {{- n -}}  c", "a3c", "", 0},
		{"{% comment %}{{ x }}\n{% endcomment %}a", "a", "", 0},
		{"{% raw %}{{ name }} {% if %}{% endraw %} {{{{ {{n}}", "{{ name }} {% if %} {{ 3", "", 0},
		{"{% if vip %}{% raw %}{{ x }}{% endraw %} {{{{ { }}{% endif %}", "{{ x }} {{ { }}", "", 1},
		{"{{ name | raw }}", "Ann & Bob", "", 1},
		{"{{ s | newline_to_br }}", "a<br />\nb", "", 1},
		{"{{ name | escape }}", "Ann &amp; Bob", "", 1},
		{"{{ '<i>' }}{{ \"'\" }}", "&lt;i&gt;&#39;", "<i>'", 1},
		{"{{ name | truncate: 5 }} {{ name | truncatewords: 1 }} {{ name | slice: 4, 9 }}", "An... Ann... &amp; Bob", "An... Ann... & Bob", 3},
		{"{{ day | date: '%Y-%m-%d' }} {{ 'élan' | capitalize }}", "2026-01-31 Élan", "", 2},
		{"{{ n | divided_by: 2 }} {{ items | map: 'title' | first | size }} {{ none | strip }}.", "1 5 .", "", 3},
		{"multi {{ name\n| upcase }}", "multi ANN &amp; BOB", "multi ANN & BOB", 1},
	} {
		for place, want := range map[Place]string{HTML: c.html, Text: c.text} {
			if want == "" {
				want = c.html
			}
			p, err := Compile(c.source, place, true)
			require.NoError(t, err, c.source)
			require.Len(t, p.Slots, c.slots, c.source)
			if c.slots == 1 && strings.Contains(c.source, "| escape }}") && place == Text {
				continue // asked for
			}
			require.Equal(t, want, fill(t, p, sample), "%s as %c", c.source, place)
		}
	}
	require.Equal(t, "x a b", full(t, "x {{ s | append: '' }}", Subject, sample), "a subject is one line")
}

// TestEscaping: values cannot become HTML, unless the template allows it with raw.
func TestEscaping(t *testing.T) {
	t.Parallel()
	vars := map[string]any{"x": `<script>"'&`, "list": []any{`<b>`}, "map": map[string]any{"k": `<b>`}}
	for _, source := range []string{
		"{{x}}", "{{ x | append: '' }}", "{% if x %}{{ x }}{% endif %}", "{% assign y = x %}{{ y }}", "{{ list }}",
		"{{ map }}",
		"{% for y in list %}{{ y }}{% endfor %}", "{{ list | join: x }}", "{{ 'a' | append: x | newline_to_br }}",
		"{{ x | url_encode | url_decode }}", "{% case x %}{% when x %}{{ x | strip }}{% endcase %}",
		"{{ none | default: x }}",
	} {
		got := full(t, source, HTML, vars)
		require.NotContains(t, strings.ReplaceAll(got, "<br>", ""), "<", source)
	}
	_, err := Compile("a\n{{ x | raw }}", HTML, false)
	require.EqualError(
		t,
		err,
		"line 2: the filter raw is not allowed: set allow_raw in the template if you trust all values",
	)
}

// TestMistakes: each mistake is named with its line.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"a\n{{ x", "line 2: {{ is not closed"},
		{"a\n\n{% if x", "line 3: {% is not closed"},
		{"{{ }}", "line 1: {{}} is empty"},
		{"\n{% if x %}\n{% for y in x %}", "line 3: {% for %} has no {% endfor %}"},
		{"{% endif %}", "line 1: {% endif %} ends no block"},
		{"{% if x %}\n{% endfor %}", "line 2: {% endfor %} ends no block"},
		{"{% if %}a{% endif %}", "line 1: {% if %} has no condition"},
		{"a\n\n{% if x == %}a{% endif %}", "line 3: syntax error"},
		{"a {{ b }}\n{{ x y }}", "line 2: syntax error"},
		{"{% else %}", "line 1: {% else %} is allowed only in"},
		{"{% break %}", "line 1: {% break %} is allowed only in for"},
		{"\n{% include 'x' %}", "line 2: there is no tag include"},
		{"{% capture x %}{% endcapture %}", "line 1: there is no tag capture"},
		{"{{ x | inspect }}", "line 1: there is no filter inspect"},
		{"{% assign x = y | nope %}", "line 1: there is no filter nope"},
		{"{{ (1..1000000000) | join }}", "line 1: a range is allowed only in for"},
		{"{% assign x = (1..1000000000) %}", "line 1: a range is allowed only in for"},
		{"{% for i in (1..9) | reverse %}", "line 1: a range is allowed only in for"},
		{manyNames(), "line 1: it has more than 100 different placeholders and pieces of Liquid"},
		{"a\n{{ 99999999999999999999 | plus: 1 }}", "line 2: a number is too long"},
		{"{% if x == 99999999999999999999 %}{% endif %}", "line 1: a number is too long"},
		{"\n" + strings.Repeat("{% if a %}{% endif %}", 5_001), "line 2: it has more than 10000 tags and outputs"},
		{"{{ _safedelivr_pay | join }}", "line 1: the name _safedelivr_pay is reserved"},
		{"{% assign _safedelivr_pay = 1 %}", "line 1: the name _safedelivr_pay is reserved"},
		{"{% raw %}", "line 1: {% raw %} has no {% endraw %}"},
		{"{{ 'x }}", "line 1: a quotation mark ' is not closed"},
		{"a\x00", "line 1: it has a NUL"},
		{"{% raw %}{{% endraw %}{{ name }}", "line 1: a { comes right before braces"},
		{"{{ x | raw | upcase }}", "line 1: raw must be the last filter"},
		{"{% assign 1x = 2 %}", "line 1: write {% assign name = value %}"},
		{"{% for x %}{% endfor %}", "line 1: write {% for name in list %}"},
		{strings.Repeat("{% if a %}", 21), "line 1: blocks are nested more than 20 deep"},
		{"{{ '" + strings.Repeat("x", 2000) + "'}}", "line 1: {{ is not closed by }} within 2000 bytes"},
	} {
		source, want := c[0], c[1]
		_, err := Compile(source, HTML, true)
		require.Error(t, err, source)
		require.Contains(t, err.Error(), want, source)
	}
}

// manyNames returns a source with more placeholders than a message may have.
func manyNames() string {
	var b strings.Builder
	for i := range MaxNames + 1 {
		_, _ = fmt.Fprintf(&b, "{{v%d}}", i)
	}
	return b.String()
}

// TestBounds: no template takes more time or memory than the bounds allow.
func TestBounds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 60_000)
	for _, c := range [][2]string{
		{"\n{% for i in (1..1000000000) %}{% endfor %}", "loops have more than 10000 passes"},
		{"{% for i in (1..200) %}{% for k in (1..200) %}{% endfor %}{% endfor %}", "loops have more than 10000 passes"},
		{
			"{% assign a = 'x' %}{% for i in (1..99) %}{% assign a = a | append: a %}{% endfor %}{{ a }}",
			"a filter has more than 65536 bytes",
		},
		{"{% for i in (1..99) %}{{ long }}{% endfor %}", "the result has more than 262144 bytes"},
		{"{{ long | strip }}{{ long | strip }}", "a piece of it has more than 65536 bytes"},
		{"a\n{{ long | replace: 'x', long }}", "line 2: error applying filter \"replace\""},
		{"{{ long | split: '' | join: long }}", "a list has more than"},
		{"{{ 'now' | date: '%1000000000d' }}", "a date format has"},
		{"\n\n{{ 1 | divided_by: 0 }}", "line 3: error applying filter"},
	} {
		source, want := c[0], c[1]
		p, err := Compile(source, Text, true)
		require.NoError(t, err, source)
		_, err = p.Render(t.Context(), map[string]any{"long": long})
		require.Error(t, err, source)
		require.Contains(t, err.Error(), want, source)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := Compile("{% for i in (1..9) %}{% endfor %}", Text, true)
	require.NoError(t, err)
	_, err = p.Render(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// TestLinear: compiling allocates memory in proportion to the source, also for hostile ones.
func TestLinear(t *testing.T) {
	for _, piece := range []string{
		"a {{- n -}} ", "{{", "{% raw %}", "{% raw %}{% endraw %}", "{{{{", "{%- if a -%} {%- endif -%} ",
		"\n{% assign a = b %}", "{% comment %}{% endcomment %}", "{ {", "{% if", "{{ a | upcase }}",
	} {
		cost := func(n int) float64 {
			source := strings.Repeat(piece, n)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _ = Compile(source, HTML, false)
			runtime.ReadMemStats(&after)
			return float64(after.TotalAlloc - before.TotalAlloc)
		}
		cost(10)
		small, large := cost(4000), cost(16_000)
		require.Less(t, large, 8*small+1e6, piece)
	}
}

// TestNames: a part knows its placeholders, and the variables whose absence shows.
func TestNames(t *testing.T) {
	t.Parallel()
	p, err := Compile(
		"{{a}}{{a}} {{ b | upcase }}{% if c %}{{ d.e }}{% endif %}{% for x in list %}{{ x }}{{ forloop.index }}"+
			"{% endfor %}{{ f | default: 'g' }}{% assign h = 1 %}{{ h }}{{ 'i' }}",
		HTML,
		false,
	)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, p.Names)
	require.Equal(t, []string{"b", "d"}, p.Outputs)
}

// FuzzCompile: a template compiles or has an error with a line, takes work that is linear in
// its length, and what it compiles to has no malformed placeholder.
func FuzzCompile(f *testing.F) {
	for _, source := range []string{
		"Hello {{name}}, {% if vip %}<b>{{ n | plus: 1 }}</b>{% else %}x{% endif %}",
		"{% for i in items %}{{ i.title }}{% endfor %}{% raw %}{{{% endraw %}{{{{", "{%- assign a = 'b' -%} {{- a -}}",
		"{% case n %}{% when 1, 2 %}{% endcase %}{% comment %}\n{% endcomment %}", "{{ '{' }}{", "{%{{%}}",
	} {
		f.Add(source)
	}
	lines := regexp.MustCompile(`\n`)
	f.Fuzz(func(t *testing.T, source string) {
		for _, place := range []Place{HTML, Text, Subject} {
			p, err := Compile(source, place, false)
			if err != nil {
				var e *Error
				require.ErrorAs(t, err, &e)
				require.GreaterOrEqual(t, e.Line, 1)
				require.LessOrEqual(t, e.Line, 1+len(lines.FindAllString(source, -1)))
				continue
			}
			require.LessOrEqual(t, len(p.Fixed), 16*len(source)+16)
			at, text := models.MalformedPlaceholder(p.Fixed)
			require.Negative(t, at, text)
			require.ElementsMatch(t, append(append([]string{}, p.Names...), p.Slots...), models.Placeholders(p.Fixed))
			values, err := p.Render(t.Context(), maps.Clone(sample))
			if err == nil {
				require.Len(t, values, len(p.Slots))
			}
		}
	})
}

const letter = `<p>Hello {{name}},</p>{% if vip %}<p>Thank you for {{ n }} years.</p>{% else %}<p>Welcome.</p>{% endif %}
<table>{% for i in items %}<tr><td>{{ i.title }}</td><td>{{ i.price | round: 2 }}</td></tr>{% endfor %}</table>
<p>Yours, {{sender}}</p>`

// BenchmarkThousand renders a message for a thousand recipients: with Liquid in its slots,
// and with the same placeholders only.
func BenchmarkThousand(b *testing.B) {
	for name, source := range map[string]string{
		"liquid": letter,
		"plain":  "<p>Hello {{name}},</p><p>Thank you for {{n}} years.</p><p>{{vip}}</p><p>Yours, {{sender}}</p>",
	} {
		p, err := Compile(source, HTML, false)
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for range 1000 {
					_ = fill(b, p, sample)
				}
			}
		})
	}
}

// TestNumbers: numbers are as in the reference implementation: no exponent, decimals without binary noise, and integers
// of any length.
func TestNumbers(t *testing.T) {
	t.Parallel()
	vars := map[string]any{"big": "9007199254740993", "price": 1234567.5, "pi": 3.14159, "n": 7, "none": nil,
		"list": []any{1, 2.5, "3"}, "rows": []any{map[string]any{"n": 1}, map[string]any{"n": 2}}}
	for source, want := range map[string]string{
		`{{ 1500000 | times: 1 }}`:                                                "1500000",
		`{{ 19.99 | times: 100 }}`:                                                "1999.0",
		`{{ 0.1 | plus: 0.2 }}`:                                                   "0.3",
		`{{ 1234567.5 | plus: 0 }}`:                                               "1234567.5",
		`{{ price | default: 1 }}{{ price | append: "!" }}`:                       "1234567.51234567.5!",
		`{{ price | round }}`:                                                     "1234568",
		`{{ 183.357 | round: 2 }}`:                                                "183.36",
		`{{ 1.5 | round }}{{ 2.5 | round }}`:                                      "23",
		`{{ 4.6 | ceil }}{{ 4.6 | floor }}`:                                       "54",
		`{{ "3.5" | ceil }}`:                                                      "4",
		`{{ -17 | abs }}{{ "-19.86" | abs }}`:                                     "1719.86",
		`{{ big | plus: 1 }}`:                                                     "9007199254740994",
		`{{ 9007199254740993 | times: 1 }}`:                                       "9007199254740993",
		`{{ 9223372036854775807 | plus: 1 }}`:                                     "9223372036854775808",
		`{{ 20 | divided_by: 7 }}`:                                                "2",
		`{{ 20 | divided_by: 7.0 }}`:                                              "2.857142857142857",
		`{{ -7 | divided_by: 2 }}`:                                                "-4",
		`{{ 3 | modulo: 2 }}{{ -7 | modulo: 3 }}{{ 183.357 | modulo: 12 }}`:       "123.357",
		`{{ "12 cups" | plus: 1 }}{{ none | plus: 1 }}{{ "x" | plus: 1 }}`:        "1311",
		`{{ "1e999999999" | plus: 1 }}`:                                           "2",
		`{{ 4 | at_least: 5 }}{{ 4 | at_most: 3 }}`:                               "53",
		`{{ list | sum }} {{ rows | sum: "n" }}`:                                  "6.5 3",
		`{% assign x = price | plus: 0.5 %}{% if x == 1234568.0 %}yes{% endif %}`: "yes",
		`{{ list | join: " " }}`:                                                  "1 2.5 3",
	} {
		require.Equal(t, want, full(t, source, Text, vars), source)
		require.Equal(t, want, full(t, source, HTML, vars), source)
	}
	for _, source := range []string{`{{ 1 | modulo: 0 }}`, `{{ 1 | divided_by: 0 }}`, `{{ 1.5 | modulo: 0.0 }}`} {
		p, err := Compile("\n"+source, Text, false)
		require.NoError(t, err)
		_, err = p.Render(t.Context(), nil)
		require.ErrorContains(t, err, "line 2: ")
		require.ErrorContains(t, err, "divided by 0")
	}
}

// TestConditions: blank and empty are literals, the last and or or of a condition counts first, and a when may have
// several values.
func TestConditions(t *testing.T) {
	t.Parallel()
	vars := map[string]any{"none": nil, "no": false, "yes": true, "text": "Ann", "nothing": "", "space": " \n", "zero": 0,
		"list": []any{1}, "noone": []any{}, "object": map[string]any{"a": 1}, "bare": map[string]any{}, "n": 2}
	for names, want := range map[string]string{
		"missing none no nothing space noone bare": "blank",
		"yes text zero list object object.a":       "",
		"nothing noone bare":                       "empty",
		"missing none no space zero text list":     "",
	} {
		literal := "blank"
		if strings.HasPrefix(names, "nothing") || strings.HasPrefix(names, "missing none no space") {
			literal = "empty"
		}
		for name := range strings.FieldsSeq(names) {
			for _, source := range []string{
				`{% if NAME == LITERAL %}LITERAL{% endif %}`,
				`{% if LITERAL == NAME %}LITERAL{% endif %}`,
				`{% unless NAME != LITERAL %}LITERAL{% endunless %}`,
				`{% if no %}{% elsif NAME==LITERAL %}LITERAL{% endif %}`,
				`{% if NAME == LITERAL and yes %}LITERAL{% endif %}`,
				`{% if NAME != LITERAL %}{% else %}LITERAL{% endif %}`,
			} {
				source = strings.NewReplacer("NAME", name, "LITERAL", literal).Replace(source)
				require.Equal(t, want, full(t, source, Text, vars), source)
			}
		}
	}
	for source, want := range map[string]string{
		`{% if yes or no and no %}1{% endif %}`:                                "1",
		`{% if no and yes or yes %}1{% endif %}`:                               "",
		`{% if yes and no or yes and no or yes %}1{% endif %}`:                 "1",
		`{% if no and no and no or yes %}1{% endif %}`:                         "",
		`{% if yes or yes and no and no %}1{% endif %}`:                        "1",
		`{% if text == "blank" or text == "a and b" %}1{% endif %}`:            "",
		`{% if text == " or " %}{% elsif text == 'Ann' and yes %}1{% endif %}`: "1",
		`{% case n %}{% when 1 or 2 %}1{% endcase %}`:                          "1",
		`{% case text %}{% when "a or b" or "Ann", "x" %}1{% endcase %}`:       "1",
		`{% case bare.empty %}{% when none %}1{% endcase %}`:                   "1",
		`{% case n %}{% when non-empty %}{% else %}1{% endcase %}`:             "1",
		`{% if (bare.empty or yes) and yes %}1{% endif %}`:                     "1",
		`{{ "Straße ünder" | upcase }}`:                                        "STRASSE ÜNDER",
	} {
		require.Equal(t, want, full(t, source, Text, vars), source)
	}
	for source, want := range map[string]string{
		`{% if (text == blank) or yes %}{% endif %}`:                    "no parentheses",
		`{% if text | default: 'a and b' == blank %}{% endif %}`:        "syntax error",
		`{% if text == blank and or %}{% endif %}`:                      "text == blank and or",
		`{% case text %}{% when blank %}{% endcase %}`:                  "only in if, elsif and unless",
		"{% if a" + strings.Repeat(" or b and c", 60) + "%}{% endif %}": "more than 50 times",
	} {
		_, err := Compile(source, Text, false)
		require.ErrorContains(t, err, want, source)
	}
}

// TestDates: what is no time stays as it is, and a whole number is a Unix time.
func TestDates(t *testing.T) {
	t.Parallel()
	vars := map[string]any{"none": nil, "empty": "", "unix": 1152098955, "digits": "1152098955", "word": "soon"}
	for source, want := range map[string]string{
		`{{ none | date: "%d.%m.%Y" }}`:         "",
		`{{ missing | date: "%d.%m.%Y" }}`:      "",
		`{{ empty | date: "%d.%m.%Y" }}`:        "",
		`{{ unix | date: "%m/%d/%Y" }}`:         "07/05/2006",
		`{{ digits | date: "%m/%d/%Y" }}`:       "07/05/2006",
		`{{ word | date: "%Y" }}`:               "soon",
		`{{ "2026-01-31" | date: "%d.%m.%Y" }}`: "31.01.2026",
	} {
		require.Equal(t, want, full(t, source, Text, vars), source)
	}
}

// TestTextFilters: filters of text are as in the reference implementation.
func TestTextFilters(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		`{{ "MY GREAT title" | capitalize }}`:                                        "My great title",
		`{{ "1 < 2 &amp; 3" | escape_once }}`:                                        "1 &lt; 2 &amp; 3",
		`{{ "<p>a</p><!-- b --><STYLE>c</style><script>d</script>e" | strip_html }}`: "ae",
		`{{ "a < b" | strip_html }}`:                                                 "a < b",
		`{{ "a.b.a" | replace_last: "a", "c" }}{{ "aba" | remove_last: "a" }}`:       "a.b.cab",
		`{{ s | strip_newlines }}|{{ s | newline_to_br }}`:                           "ab|a<br />\nb",
		`{{ "a,b,a" | split: "," | uniq | join: "" }}`:                               "ab",
		`{% assign r = rows | where: "ok" %}{{ r | size }}`:                          "1",
		`{% assign r = rows | where: "n", 2 %}{{ r[0].n }}`:                          "2",
	} {
		require.Equal(t, want, full(t, source, Text, map[string]any{"s": "a\r\nb", "rows": []any{
			map[string]any{"n": 1, "ok": true}, map[string]any{"n": 2},
		}}), source)
	}
}

// TestWorkIsBounded: all work of filters, comparisons and loops over objects is bounded, also where nothing is printed.
func TestWorkIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("<", 60_000)
	list, object := make([]any, 20_000), map[string]any{}
	for i := range list {
		list[i] = i
		object[strconv.Itoa(i)] = map[string]any{"text": long[:9]}
	}
	vars := map[string]any{"s": long, "some": long[:9_000], "list": list, "same": slices.Clone(list), "object": object,
		"deep": map[string]any{"list": list}}
	same := strings.Repeat("list == same and ", 100) + "1 == 1"
	for name, source := range map[string]string{
		"assigned values":         strings.Repeat(`{% assign a = s | append: "x" %}`, 1_000),
		"outputs":                 strings.Repeat("{{ s "+strings.Repeat("| strip_html ", 140)+"}}", 60),
		"lists":                   strings.Repeat(`{% assign a = some | split: "" | sort | uniq | reverse %}`, 500),
		"comparisons":             "{% if " + same + " %}{% endif %}",
		"comparisons of elsif":    "{% if no %}{% elsif " + same + " %}{% endif %}",
		"comparisons of when":     "{% case list %}{% when 1" + strings.Repeat(", same", 100) + " %}{% endcase %}",
		"comparisons of unless":   "{% unless " + same + " %}{% endunless %}",
		"comparisons of a member": "{% if " + strings.Repeat("deep.list == same and ", 80) + "1 == 1 %}{% endif %}",
		"comparisons of an alias": "{% assign a = list %}{% if " +
			strings.Repeat("a contains same or ", 90) + "1 == 1 %}{% endif %}",
		"objects": "{% if " + strings.Repeat("list contains object or ", 80) + "1 == 2 %}{% endif %}",
		"loops":   strings.Repeat(`{% for x in object limit: 1 %}{% endfor %}`, 100),
	} {
		p, err := Compile(source+"{{ 1 | plus: 1 }}", Text, false)
		require.NoError(t, err, name)
		_, err = p.Render(t.Context(), vars)
		require.ErrorContains(t, err, "handles more than 32 MiB of values", name)
	}
	p, err := Compile("{% for i in (1..5000) %}{% if deep.list.size == 20000 and object.size > 3 and s != 'x' %}y"+
		"{% endif %}{% endfor %}", Text, false)
	require.NoError(t, err)
	values, err := p.Render(t.Context(), vars)
	require.NoError(t, err, "the size of a list is compared, not its elements")
	require.Len(t, values[0], 5000)
}
