package inlinecss

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/andybalholm/cascadia"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/liquid"
)

// TestInline: the CSS is in style attributes, and all else is as it was, byte by byte.
func TestInline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ source, want string }{
		"no CSS": {"<P Class=x>{{ a }} &nbsp", "<P Class=x>{{ a }} &nbsp"},
		"elements, classes and ids": {
			`<style>p{color:red} .a{color:blue} #b{margin:0}</style><p>1<p class=a>2<P ID='b' class="x a">3`,
			`<style>p{color:red} .a{color:blue} #b{margin:0}</style><p style="color:red">1<p style="color:blue" class=a>2` +
				`<P style="color:blue;margin:0" ID='b' class="x a">3`,
		},
		"rows in a loop, and a > in a condition": {
			`<style>td > b{top:0}</style><table>{% for i in list %}{% if i.n > 1 %}<tr><td><b>{{i.n}}</b></tr>{% endif %}{% endfor %}</table>`,
			`<style>td > b{top:0}</style><table>{% for i in list %}{% if i.n > 1 %}<tr><td><b style="top:0">{{i.n}}</b></tr>{% endif %}{% endfor %}</table>`,
		},
		"own styles win": {
			`<style>p{color:red}</style><p style="color: {{ c }} !important; x">1</p><p style='top:0'>2</p>`,
			`<style>p{color:red}</style><p style="color:red;color: {{ c }} !important; x">1</p><p style='color:red;top:0'>2</p>`,
		},
		"what rules set that stay": {
			`<style>@media (max-width:9px) { .w, * { width: 1px; top: 0 !important } }
@font-face { font-family: "x"; src: url(a;b) } @import url(x); * { margin: 0 }
td { width: 2px; top: 3px; margin: 4px; color: red; background: blue } td:hover { color: blue } [title~="."] { background-color: red }</style>` +
				`<table><tr><td class=w><td><td title="a.">`,
			`<style>@media (max-width:9px) { .w, * { width: 1px; top: 0 !important } }
@font-face { font-family: "x"; src: url(a;b) } @import url(x); * { margin: 0 }
td { width: 2px; top: 3px; margin: 4px; color: red; background: blue } td:hover { color: blue } [title~="."] { background-color: red }</style>` +
				`<table><tr><td style="top:3px;margin:4px" class=w><td style="width:2px;top:3px;margin:4px">` +
				`<td style="width:2px;top:3px;margin:4px" title="a.">`,
		},
		"all": {
			"<style>p { top: 0 } b { top: 0 } p:hover { all: unset }</style><p><b>",
			"<style>p { top: 0 } b { top: 0 } p:hover { all: unset }</style><p><b style=\"top:0\">",
		},
		"quotation marks": {
			`<style>p{font-family:"A B",'C'}</style><p style='x:y'>1<p>2`,
			`<style>p{font-family:"A B",'C'}</style><p style='font-family:&#34;A B&#34;,&#39;C&#39;;x:y'>1` +
				`<p style="font-family:&#34;A B&#34;,&#39;C&#39;">2`,
		},
		"comments": {
			`<style media=print>p{top:1px}</style><style>/* p{} */ p{left:0;top:0;right:0}</style><!-- <p>{% if a %}{% endif %} -->` +
				`<!--[if mso]><style>p{right:2px}</style><p><![endif]--><p title="&#1;9&#2;">`,
			`<style media=print>p{top:1px}</style><style>/* p{} */ p{left:0;top:0;right:0}</style><!-- <p>{% if a %}{% endif %} -->` +
				`<!--[if mso]><style>p{right:2px}</style><p><![endif]--><p style="left:0" title="&#1;9&#2;">`,
		},
		"around the document": {
			"<!doctype html><!-- a -->{% if a %}{% endif %}<style>p{top:0}</style><p></html>{% if a %}{% endif %}<!-- b -->",
			"<!doctype html><!-- a -->{% if a %}{% endif %}<style>p{top:0}</style><p style=\"top:0\"></html>{% if a %}{% endif %}<!-- b -->",
		},
		"Liquid in attributes and titles": {
			`<title>{% if a %}{{ b }}{% endif %}</title><style>p{top:0}</style><p class="{{ c }}" title='{% if a %}>{% endif %}'>{% comment %}<p>{% endcomment %}{% raw %}{{<p>{% endraw %}{{{{`,
			`<title>{% if a %}{{ b }}{% endif %}</title><style>p{top:0}</style><p style="top:0" class="{{ c }}" title='{% if a %}>{% endif %}'>{% comment %}<p>{% endcomment %}{% raw %}{{<p style="top:0">{% endraw %}{{{{`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := New().Inline(c.source)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// TestRefused: what cannot be inlined without changing the mail is refused, with its line.
func TestRefused(t *testing.T) {
	t.Parallel()
	const css = "<style>p{top:0} .a{top:1px}</style>\n"
	for name, c := range map[string]struct{ source, want string }{
		"Liquid in style":            {"\n<style>{{ css }}</style>", "line 2: there is Liquid in <style>"},
		"style in a block":           {"{% if a %}<style>p{top:0}</style>{% endif %}", "line 1: <style> is inside of a block of Liquid"},
		"style in a comment":         {"<!--[if mso]>\n<style>{{ a }}</style><![endif]-->", "line 2: there is Liquid in <style>"},
		"attributes":                 {"<p" + manyAttributes() + ">", "<p> has more than 100 attributes"},
		"Liquid in script":           {"<script>{{ x }}</script>", "line 1: there is Liquid in <script>"},
		"name of an element":         {"{% comment %}\n{% endcomment %}<h{{ n }}>", "line 2: Liquid gives the name of an element"},
		"whole name":                 {"<{{ n }}>", "Liquid gives the name"},
		"between attributes":         {"<p {% if a %}class=a{% endif %}>", "line 1: there is Liquid between the attributes of <p>"},
		"value without quotes":       {"<p class={{ a }}>", "in a value of <p> without quotation marks"},
		"style without quotes":       {"<p style=top:0>", "the attribute style of <p> has no quotation marks"},
		"class":                      {css + "<p class='{{ a }}'>", "line 2: Liquid decides the class of <p>"},
		"id":                         {"<style>#a{top:0}</style><p id='a{{ a }}'>", "Liquid decides the id of <p>"},
		"raw":                        {css + "{{ a | raw }}<p>", "line 2: the filter raw puts in HTML"},
		"opened, and closed outside": {css + "{% if a %}<div class=a>{% endif %}<p></div>", "line 2: what is between {% if %} in line 2 and {% endif %}"},
		"not closed in a row":        {"<table>{% for i in a %}<tr><td>{% endfor %}</table>", "between {% for %} in line 1 and {% endfor %}"},
		"else":                       {"{% if a %}<i>{% else %}</i>{% endif %}", "and {% else %}"},
		"break inside of an element": {"{% for i in a %}<p>{% if i %}{% break %}{% endif %}</p>{% endfor %}", "and {% break %}"},
		"two attributes":             {`<p a="{% if a %}" b="{% endif %}">`, "or is in several attributes"},
		"order of ends":              {"<b><i></b></i>", "</b> is before the end of <i>"},
		"no place":                   {"<p><tr></p>", "<tr> has no place here"},
		"end tag":                    {"<p></p {{ a }}>", "there is Liquid in an end tag"},
		"open tag":                   {"a\n<p class=", "line 2: the HTML ends inside of a tag"},
		"doctype":                    {"<!doctype {{ a }}>", "Liquid in the doctype"},
		"control character":          {"\n\x01", "line 2: it has a control character"},
		"CSS without an end":         {"<style>\np{top:0", "line 2: the CSS is not closed"},
		"nested rules":               {"<style>p{top:0;a{b:c}}</style><p>", "braces inside of braces"},
		"no braces":                  {"<style>p;</style>", `no { after "p"`},
		"declaration":                {"<style>p{content:'{'}</style><p>", "cannot be put into attributes"},
		"formatting":                 {strings.Repeat("<b>", maxFormatting+1), "more than 10 elements like <b>"},
		"depth":                      {strings.Repeat("<div>", maxDepth+1), "more than 200 elements are open"},
		"elements":                   {strings.Repeat("<br>", maxTags+1), "more than 10000 elements"},
		"work": {
			"<style>div div div div div div a{b:c}</style>" + strings.Repeat("<div>", 90) + "<a></a>",
			"too much CSS for so many elements",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New().Inline(c.source)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func manyAttributes() (attrs string) {
	for i := range maxAttributes + 1 {
		attrs += fmt.Sprint(" a", i)
	}
	return attrs
}

// rendered renders HTML as a recipient gets it.
func rendered(source string, vars map[string]any) (string, error) {
	p, err := liquid.Compile(source, liquid.HTML, true)
	if err != nil {
		return "", err
	}
	values, err := p.Render(context.Background(), vars)
	if err != nil {
		return "", err
	}
	r := models.Recipient{Vars: map[string]string{}}
	for _, name := range p.Names {
		r.Vars[name] = "<"
	}
	for name, v := range vars {
		r.Vars[name] = fmt.Sprint(v)
	}
	for i, name := range p.Slots {
		r.Vars[name] = values[i]
	}
	return r.Fill(p.Fixed, models.EscapeHTML), nil
}

// withoutStyles returns a parsed document without style attributes and style elements.
func withoutStyles(t require.TestingT, source string) string {
	root, err := html.Parse(strings.NewReader(source))
	require.NoError(t, err)
	for n := range root.Descendants() {
		n.Attr = slices.DeleteFunc(n.Attr, func(a html.Attribute) bool { return a.Key == "style" })
		if n.Data == "style" && n.FirstChild != nil {
			n.RemoveChild(n.FirstChild)
		}
	}
	var b strings.Builder
	require.NoError(t, html.Render(&b, root))
	return b.String()
}

// hues returns what the property color is for each element, by the rules of CSS for sheets,
// style attributes and !important.
func hues(t require.TestingT, source string) (out []string) {
	root, err := html.Parse(strings.NewReader(source))
	require.NoError(t, err)
	type declared struct {
		sel   cascadia.Sel
		value string
	}
	var rules []declared
	for n := range root.Descendants() {
		if n.Data != "style" || n.FirstChild == nil {
			continue
		}
		for _, m := range regexp.MustCompile(`([^{}]+)\{color:\s*([^;}]*)[^}]*\}`).FindAllStringSubmatch(n.FirstChild.Data, -1) {
			list, err := cascadia.ParseGroup(strings.TrimSpace(m[1]))
			require.NoError(t, err, m[1])
			for _, sel := range list {
				rules = append(rules, declared{sel, m[2]})
			}
		}
	}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode || n.Data == "style" {
			continue
		}
		best, value := cascadia.Specificity{}, ""
		strong := false
		for _, r := range rules {
			isStrong := strings.Contains(r.value, "!important")
			if r.sel.Match(n) && (isStrong && !strong || isStrong == strong && !r.sel.Specificity().Less(best)) {
				best, value, strong = r.sel.Specificity(), r.value, isStrong
			}
		}
		for _, a := range n.Attr {
			if m := regexp.MustCompile(`.*color:\s*([^;]*)`).FindStringSubmatch(a.Val); a.Key == "style" && m != nil && !strong {
				value = m[1]
			}
		}
		out = append(out, n.Data+" "+strings.TrimSuffix(value, " !important"))
	}
	return out
}

// drawHTML draws elements and Liquid. Some elements are not closed, or in the wrong place.
func drawHTML(t *rapid.T, depth int) string {
	var b strings.Builder
	for range rapid.IntRange(1, 3).Draw(t, "n") {
		name := rapid.SampledFrom([]string{"p", "div", "b", "ul", "li", "span", "section"}).Draw(t, "name")
		attrs := rapid.SampledFrom([]string{
			"", " class=a", ` class="b a"`, " id='i'", ` style="color:{{ x }}"`, ` style='top:0'`,
			` title="{% if y %}>{% endif %}"`,
		}).Draw(t, "attributes")
		inside := ""
		if depth > 0 {
			inside = drawHTML(t, depth-1)
		}
		switch rapid.IntRange(0, 20).Draw(t, "kind") {
		case 0:
			b.WriteString("{% if y %}<" + name + attrs + ">{% endif %}" + inside)
		case 1:
			b.WriteString("<" + name + attrs + ">{{ x }}" + inside)
		case 2:
			b.WriteString("text {{x}} </" + name + ">" + inside)
		case 3, 4, 5:
			b.WriteString("{% if y %}" + inside + "{% else %}<" + name + attrs + ">t</" + name + ">{% endif %}")
		case 6, 7, 8:
			b.WriteString("{% for i in list %}<" + name + attrs + ">" + inside + "</" + name + ">{% endfor %}")
		case 9, 10, 11:
			b.WriteString("<table>{% for i in list %}<tr" + attrs + "><td>" + inside + "</td><td>{{ i }}</tr>{% endfor %}</table>")
		default:
			b.WriteString("<" + name + attrs + ">" + inside + "</" + name + ">")
		}
	}
	return b.String()
}

// TestInlineChangesNothingElse: what a recipient gets is the same but for style attributes and
// style elements, each element has the color that it had, and the style attributes are those that
// inlining the rendered mail would give. Style elements are not changed either.
func TestInlineChangesNothingElse(t *testing.T) {
	t.Parallel()
	inlined := 0
	rapid.Check(t, func(t *rapid.T) {
		css := strings.Builder{}
		for i := range rapid.IntRange(1, 5).Draw(t, "rules") {
			sel := rapid.SampledFrom([]string{
				"p", "div", "td", "table td", "div > p", ".a", "p.a", "#i", ".a .b", "div p", "b", "tr", "ul li", "tbody", "p, .b",
				"*", "p:first-child", "[title]", "div + p", ".a > *", "p:not(.a)", "span, [class~=a]", "li:nth-child(2n)",
			}).Draw(t, "selector")
			strong := rapid.SampledFrom([]string{"", "", "", " !important"}).Draw(t, "important")
			fmt.Fprintf(&css, "%s{color:#%d%s}\n", sel, i, strong)
		}
		source := "<style>" + css.String() + "</style>" + drawHTML(t, 2)
		if _, err := liquid.Compile(source, liquid.HTML, true); err != nil {
			t.Skip(err)
		}
		got, err := New().Inline(source)
		if err != nil {
			var e *liquid.Error
			require.ErrorAs(t, err, &e)
			return
		}
		inlined++
		require.Contains(t, got, css.String())
		for _, vars := range []map[string]any{
			{"x": "red", "y": true, "list": []any{1, 2}}, {"x": "<b>", "y": false, "list": []any{}},
		} {
			before, err := rendered(source, vars)
			require.NoError(t, err)
			after, err := rendered(got, vars)
			require.NoError(t, err)
			require.Equal(t, withoutStyles(t, before), withoutStyles(t, after))
			require.Equal(t, hues(t, before), hues(t, after), "%s\n%s", before, after)
			if again, err := New().Inline(before); err == nil {
				require.Equal(t, again, after)
			}
		}
	})
	require.Positive(t, inlined)
}

// FuzzInline: whatever the template, nothing but style attributes and style elements differs.
func FuzzInline(f *testing.F) {
	f.Add("<style>p{a:b}</style><p>{{x}}{% if x %}<p style='a'>{% endif %}")
	f.Add("<style>@media x{p,*{a:b}}p>a{b:c}</style><table>{% for i in x %}<tr><td class=\"a\">{% endfor %}")
	f.Add("<style>p{a:\"b\"}</style><P/title='{{ \"<\" }}'id=x><svg><p/></svg><!--[if mso]><p><![endif]-->")
	f.Fuzz(func(t *testing.T, source string) {
		before, err := rendered(source, nil)
		if err != nil {
			return
		}
		got, err := New().Inline(source)
		if err != nil {
			return
		}
		after, err := rendered(got, nil)
		require.NoError(t, err)
		if _, err := html.Parse(strings.NewReader(before)); err == nil {
			require.Equal(t, withoutStyles(t, before), withoutStyles(t, after))
		}
	})
}
