package liquid

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var filterVars = map[string]any{
	"none": nil, "empty": "", "yes": true, "no": false, "n": 3, "f": 4.5612, "s": " \tab c  \n \t", "lines": "a\r\nb\nc",
	"cjk": "测试测试测试测试", "nums": []any{1, 2, 3, 4}, "mixed": []any{nil, 4, 3, nil, 1},
	"nested":  []any{1, []any{2, []any{3, 4}}},
	"no_list": []any{}, "hash": map[string]any{"foo": map[string]any{"bar": 42}, "a": "x"},
	"hashes": []any{map[string]any{"a": 4, "b": "d"}, map[string]any{"b": "B"}, map[string]any{"a": 1, "b": "c"}},
	"no_map": map[string]any{}, "letters": []any{"c", "D", "a", "B"}, "tags": []any{"10", "2"}, "nbsp": "\u00a0x\u00a0",
	"big": 9_007_199_254_740_993,
}

// filterCases are templates and what they show.
var filterCases = [][2]string{
	{`{{ nums | size }}{{ no_list | size }}{{ none | size }}{{ "héé" | size }}{{ hash | size }}`, "40032"},
	{`{{ "Testing" | downcase }}{{ none | downcase }}{{ n | downcase }}`, "testing3"},
	{`{{ "Testing" | upcase }}{{ none | upcase }}{{ yes | upcase }}`, "TESTINGTRUE"},
	{
		`{{ "foobar" | slice: 1, 3 }} {{ "foobar" | slice: 1, 1000 }} {{ "foobar" | slice: 1, 0 }}.`,
		"oob oobar .",
	},
	{`{{ "foobar" | slice: 1 }} {{ "foobar" | slice: -2, 2 }} {{ "foobar" | slice: -2, 1000 }}`, "o ar ar"},
	{`{{ none | slice: 0 }}{{ "foobar" | slice: 100, 10 }}{{ "foobar" | slice: -100, 10 }}.`, "."},
	{`{{ "foobar" | slice: "1", "3" }} {{ 12345 | slice: 1, 2 }} {{ "foobar" | slice: 0, -1 }}.`, "oob 23 ."},
	{`{{ "foobar" | slice: 6 }}{{ "foobar" | slice: 0, 9223372036854775807 }}`, "foobar"},
	{
		`{{ nums | slice: 1, 2 | join: "-" }} {{ nums | slice: -2, 9 | join }} {{ nums | slice: 9 | size }}`,
		"2-3 3 4 0",
	},
	{
		`{{ "1234567890" | truncate: 7 }} {{ "1234567890" | truncate: 20 }} {{ "1234567890" | truncate: 0 }}`,
		"1234... 1234567890 ...",
	},
	{
		`{{ cjk | truncate: 5 }} {{ "1234567890" | truncate: 5, 1 }} {{ "foobar" | truncate: -9 }}`,
		"测试... 12341 ...",
	},
	{`{{ none | truncate: 1 }}{{ 12345678 | truncate: 5 }}{{ "foobar" | truncate: "4", "" }}`, "12...foob"},
	{`{{ "12~34" | split: "~" | join }} {{ "A? ~ ~ ~ ,Z" | split: "~ ~ ~" | join: "|" }}`, "12 34 A? | ,Z"},
	{`{{ none | split: " " | size }}{{ "A1Z" | split: 1 | join }}{{ "abc" | split: "" | size }}`, "0A Z3"},
	{
		`{{ " a  b " | split: " " | join: "." }} {{ "a,b,," | split: "," | size }}{{ 12 | split: "" | size }}`,
		"a.b 22",
	},
	{`{{ "<i>" | escape }}{{ 1 | escape }}{{ none | escape }}{{ "'" | escape }}`, "&lt;i&gt;1&#39;"},
	{`{{ "&lt;b&gt;x</b>" | escape_once }}`, "&lt;b&gt;x&lt;/b&gt;"},
	{`{{ "foo+1@example.com" | url_encode }} {{ 1 | url_encode }}{{ none | url_encode }} {{ "a b*~" | url_encode }}`,
		"foo%2B1%40example.com 1 a+b%2A~"},
	{`{{ "foo+bar" | url_decode }} {{ "foo%20bar" | url_decode }} {{ 1 | url_decode }}`, "foo bar foo bar 1"},
	{`{{ none | url_decode }}{{ "100% a%zz" | url_decode }}`, "100% a%zz"},
	{
		`{{ "one two three" | truncatewords: 4 }} {{ "one two three" | truncatewords: 2 }}`,
		"one two three one two...",
	},
	{
		`{{ "one two three" | truncatewords: 2, 1 }} {{ "one  two three four" | truncatewords: 3 }}`,
		"one two1 one two three...",
	},
	{
		`{{ "one two three" | truncatewords: 0 }} {{ "one  two" | truncatewords: 5 }} {{ none | truncatewords: 1 }}`,
		"one... one  two ",
	},
	{
		`{{ "one two" | truncatewords: -1 }} {{ "one two" | truncatewords: 9223372036854775807 }}`,
		"one... one two",
	},
	{`{{ "<div id='t'>test</div>" | strip_html }}{{ none | strip_html }}{{ 1 | strip_html }}`, "test1"},
	{"{{ '<div\nclass=\"m\">test</div>' | strip_html }}", "test"},
	{
		`{{ nums | join }} {{ nums | join: " - " }} {{ nums | join: 1 }} {{ mixed | join: "," }}`,
		"1 2 3 4 1 - 2 - 3 - 4 1121314 ,4,3,,1",
	},
	{`{{ nested | join: "" }} {{ "abc" | join: "-" }} {{ n | join: "-" }}{{ none | join }}`, "1234 abc 3"},
	{
		`{{ mixed | sort | join: "," }} {{ tags | sort | join }} {{ "a,C,b" | split: "," | sort | join }}`,
		"1,3,4,, 10 2 C a b",
	},
	{`{{ hashes | sort: "a" | map: "b" | join }} {{ no_list | sort: "a" | size }}`, "c d B 0"},
	{
		`{{ letters | sort_natural | join }} {{ hashes | sort_natural: "b" | map: "b" | join }}`,
		"a B c D B c d",
	},
	{`{{ "1,1,3,2,3" | split: "," | uniq | join }} {{ nested | uniq | size }}`, "1 3 2 4"},
	{`{{ hashes | uniq: "z" | size }} {{ hashes | uniq: "a" | size }}`, "1 3"},
	{
		`{{ mixed | compact | join }} {{ hashes | compact: "a" | size }}{{ no_list | compact | size }}`,
		"4 3 1 20",
	},
	{`{{ nums | reverse | join }} {{ none | reverse | size }} {{ "abc" | reverse | join }}`, "4 3 2 1 0 abc"},
	{
		`{{ hashes | map: "a" | join: "," }} {{ hash | map: "foo" | map: "bar" | join }} {{ "foo" | map: "x" | join }}.`,
		"4,,1 42 .",
	},
	{`{{ nums | first }}{{ nums | last }}{{ no_list | first }}{{ none | last }}`, "14"},
	{`{{ "foo" | first }}{{ "foö" | last }}{{ empty | first }}{{ cjk | first }}`, "fö测"},
	{
		`{{ "a a" | replace: "a", "b" }} {{ "1 1" | replace: 1, 2 }} {{ "1 1" | replace: 2, 3 }} {{ "1 1" | replace: 1 }}.`,
		"b b 2 2 1 1  .",
	},
	{
		`{{ "a a" | replace_first: "a", "b" }} {{ "1 1" | replace_first: 1, 2 }} {{ 11 | replace_last: 1, 2 }}`,
		"b a 2 1 12",
	},
	{
		`{{ "a a a" | remove: "a" }}. {{ "1 1" | remove_first: 1 }} {{ "a a b a" | remove_last: " a" }}`,
		"  .  1 a a b",
	},
	{`{{ "foo|bar" | remove: "|" }}`, "foobar"},
	{`{{ s | strip }}|{{ s | lstrip }}|{{ s | rstrip }}|{{ nbsp | strip }}|{{ n | strip }}{{ none | lstrip }}`,
		"ab c|ab c  \n \t| \tab c|\u00a0x\u00a0|3"},
	{`{{ lines | strip_newlines }} {{ lines | newline_to_br }}{{ none | strip_newlines }}{{ n | newline_to_br }}`,
		"abc a<br />\nb<br />\nc3"},
	{
		`{{ 1 | plus: 1 }} {{ "1" | plus: "1.0" }} {{ none | plus: 1 }} {{ yes | plus: 1 }} {{ " 2" | plus: 1 }}`,
		"2 2.0 1 1 3",
	},
	{`{{ 5 | minus: 1 }} {{ "4.3" | minus: "2" }} {{ 2 | minus: none }}`, "4 2.3 2"},
	{
		`{{ 17 | abs }}{{ -17 | abs }}{{ "-17" | abs }} {{ -17.42 | abs }} {{ "-17.42" | abs }}`,
		"171717 17.42 17.42",
	},
	{
		`{{ 3 | times: 4 }} {{ "foo" | times: 4 }} {{ 0.0725 | times: 100 }} {{ "-0.0725" | times: -100 }}`,
		"12 0 7.25 7.25",
	},
	{`{{ "2.1" | times: 3 | replace: ".", "-" | plus: 0 }}`, "6"},
	{
		`{{ 12 | divided_by: 3 }} {{ 14 | divided_by: 3 }} {{ 2.0 | divided_by: 4 }} {{ -7 | divided_by: 2 }}`,
		"4 4 0.5 -4",
	},
	{`{{ 3 | modulo: 2 }} {{ -7 | modulo: 3 }} {{ 7 | modulo: -3 }} {{ -7.5 | modulo: 2 }}`, "1 2 -2 0.5"},
	{`{{ 4.6 | round }} {{ "4.3" | round }} {{ f | round: 2 }} {{ -2.5 | round }} {{ 1250 | round: -2 }}`, "5 4 4.56 -3 1300"},
	{`{{ 3 | round: 2 }} {{ 1250.0 | round: -2 }} {{ nums | plus: 1 }}`, "3 1300.0 1"},
	{
		`{{ 4.6 | ceil }} {{ "4.3" | ceil }} {{ -4.6 | ceil }} {{ 4.6 | floor }} {{ "-4.3" | floor }}`,
		"5 5 -4 4 -5",
	},
	{
		`{{ 5 | at_most: 4 }} {{ 4.5 | at_most: 5 }} {{ 5 | at_least: 6 }} {{ "4.5" | at_least: 5 }}`,
		"4 4.5 6 5",
	},
	{
		`{{ "bc" | append: "d" }} {{ 1 | append: 2 }} {{ none | append: "x" }} {{ 1.5 | prepend: "v" }}`,
		"bcd 12 x v1.5",
	},
	{`{{ nums | concat: tags | join }} {{ none | concat: tags | join }}`, "1 2 3 4 10 2 10 2"},
	{
		`{{ "foo" | default: "bar" }} {{ none | default: "bar" }} {{ empty | default: "bar" }} {{ no | default: "bar" }}`,
		"foo bar bar bar",
	},
	{
		`{{ no_list | default: "bar" }} {{ no_map | default: "bar" }} {{ 0 | default: "bar" }} {{ none | default }}.`,
		"bar bar 0 .",
	},
	{
		`{{ "2006-05-05 10:00:00" | date: "%B" }} {{ "Fri Jul 16 01:00:00 2004" | date: "%m/%d/%Y" }}`,
		"May 07/16/2004",
	},
	{
		`{{ "2006-07-05 10:00:00" | date: "" }} {{ "2006-07-05 10:00:00" | date: none }}`,
		"2006-07-05 10:00:00 2006-07-05 10:00:00",
	},
	{`{{ empty | date: "%D" }}{{ "abc" | date: "%D" }}{{ none | date: "%B" }}{{ n | date: "%Y" }}`, "abc1970"},
	{
		`{{ nums | sum }} {{ nested | sum }} {{ hashes | sum: "a" }} {{ hashes | sum }} {{ none | sum }}`,
		"10 10 5 0 0",
	},
	{
		`{{ hashes | where: "a" | size }} {{ hashes | where: "a", 1 | map: "b" | join }} {{ no_list | where: "a" | size }}`,
		"2 c 0",
	},
	{`{% if yes %}{{ nums }} {{ nested }} {{ yes }}{{ none }} {{ hash }} {{ nums | append: "x" }}{% endif %}`,
		`1234 1234 true {"a"=>"x", "foo"=>{"bar"=>42}} [1, 2, 3, 4]x`},
	{`{% for pair in hash %}{{ pair[0] }}{% endfor %}{% for x in none %}{% else %}-{% endfor %}`, "afoo-"},
	{`{{ big }} {{ big | plus: 0 }} {{ 1500000.5 }} {{ "Tue" }} {{ nums | size | plus: 0.5 }}`,
		"9007199254740993 9007199254740993 1500000.5 Tue 4.5"},
}

// filterMistakes are templates and their errors.
var filterMistakes = map[string]string{
	`{{ "x" | slice: none }}`:                        "invalid integer",
	`{{ "x" | slice: 0, "" }}`:                       "invalid integer",
	`{{ "x" | truncate: "long" }}`:                   "invalid integer",
	`{{ nums | concat: 10 }}`:                        "concat needs a list",
	`{{ "%ff" | url_decode }}`:                       "not valid UTF-8",
	`{{ nums | map: "a" }}`:                          "cannot select the property a",
	`{{ nums | sum: "a" }}`:                          "cannot select the property a",
	`{{ nums | where: "a" }}`:                        "cannot select the property a",
	`{{ hashes | sort }}`:                            "cannot sort values of different types",
	`{{ "1,a" | split: "," | concat: nums | sort }}`: "cannot sort values of different types",
	`{{ 1 | divided_by: 0 }}`:                        "divided by 0",
	`{{ 1.0 | divided_by: 0.0 }}`:                    "divided by 0",
	`{{ 1 | plus }}`:                                 "wrong number of arguments",
}

// TestFilters: each filter does what the reference does. The cases follow its test suite (Shopify/liquid,
// test/integration/standard_filter_test.rb), filter by filter.
func TestFilters(t *testing.T) {
	t.Parallel()
	for _, c := range filterCases {
		p, err := Compile(c[0], Text, false)
		require.NoError(t, err, c[0])
		var values []string
		if values, err = p.Render(t.Context(), filterVars); err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		if values[0] != c[1] && len(values) == 1 || len(values) != 1 {
			if got := fill(t, p, filterVars); got != c[1] {
				t.Errorf("%s:\n got %q\nwant %q", c[0], got, c[1])
			}
		}
	}
	for source, want := range filterMistakes {
		p, err := Compile("\n"+source, Text, false)
		if err == nil {
			_, err = p.Render(t.Context(), filterVars)
		}
		if err == nil {
			t.Errorf("%s: no error", source)
			continue
		}
		require.ErrorContains(t, err, "line 2: ", source)
		require.ErrorContains(t, err, want, source)
	}
}
