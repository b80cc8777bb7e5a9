//go:build browser

package dashboard

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
)

// editorTab opens Compose in a new browser.
func editorTab(t *testing.T) (*rig, *browserTab) {
	t.Helper()
	f := newRig(t, nil)
	b := openTab(t, f.url)
	link, err := f.board.LoginLink(t.Context(), login.LocalUser())
	require.NoError(t, err)
	b.open(link)
	b.sees("Overview")
	b.open("/compose?new=yes")
	b.until(richText)
	return f, b
}

const (
	richText   = `document.querySelector(".rich-text")?.checkVisibility()`
	htmlSource = `document.getElementById("html").checkVisibility()`
)

// keys types text into what has the focus, with some modifier keys held.
func (b *browserTab) keys(text string, held ...chromedp.Modifier) {
	b.Helper()
	b.do(chromedp.KeyEvent(text, chromedp.KeyModifiers(held...)))
}

func (b *browserTab) html() string { return eval[string](b, `document.getElementById("html").value`) }

// tool presses a tool of the editor.
func (b *browserTab) tool(name string) {
	b.Helper()
	eval[bool](b, `(document.querySelector("[data-tool=`+name+`], .rich-link [value=`+name+`]").click(), true)`)
}

// TestBrowserRichText: rich text is written as HTML for mail, by keys and by tools. Placeholders and Liquid tags are
// written as they are typed.
func TestBrowserRichText(t *testing.T) {
	t.Parallel()
	_, b := editorTab(t)
	b.typeInto("to", "email,first,order no\nann@example.com,Ann,17")
	b.until(`document.querySelector("#columns select")`)
	eval[bool](b, `(document.querySelector(".rich-text").focus(), true)`)
	b.keys("Spring")
	b.tool("heading")
	b.keys("\r")
	b.keys(`{% if age > 18 and city != "a & b" %}`)
	b.keys("\rDear ")
	eval[bool](b, `((s) => { s.focus(); s.value = "first"; return true; })(document.querySelector("[data-tool=names]"))`)
	b.tool("insert")
	for range "{{first}}" {
		b.keys(kb.ArrowLeft, chromedp.ModifierShift)
	}
	b.keys("b", chromedp.ModifierCtrl)
	b.keys(kb.ArrowRight)
	b.keys("b", chromedp.ModifierCtrl)
	b.keys(`, {{ total | times: 2 }} < 3 & more`)
	b.keys("\r{% endif %}\r")
	b.tool("list")
	b.keys("one\rtwo")
	b.keys("\r")
	b.keys("\r")
	b.tool("link")
	b.keys("{{ link }}")
	b.tool("set") // Enter does the same
	require.Equal(t, `<h2>Spring</h2>
{% if age > 18 and city != "a & b" %}
<p>Dear <b>{{first}}</b>, {{ total | times: 2 }} &lt; 3 &amp; more</p>
{% endif %}
<ul>
<li>one</li>
<li>two</li>
</ul>
<p><a href="{{ link }}">{{ link }}</a></p>`, b.html())
	b.press("Write plain text from rich text")
	require.Equal(t, `Spring

{% if age > 18 and city != "a & b" %}

Dear {{first}}, {{ total | times: 2 }} < 3 & more

{% endif %}

- one
- two

{{ link }}`, eval[string](b, `document.getElementById("text").value`))
	// The plain text follows the rich text until it is changed itself.
	eval[bool](b, `(document.querySelector(".rich-text").focus(), true)`)
	b.keys(" now")
	b.until(`document.getElementById("text").value.includes("now")`)
	was := b.html()
	b.sees("Draft saved at") // which it does not say of older changes
	b.open(eval[string](b, "location.pathname + location.search"))
	b.until(richText)
	require.Equal(t, was, b.html(), "opened again, it is the same")
	require.Empty(t, b.complaints())
}

// TestBrowserRichTextKeys: the tools are one stop of the Tab key, arrows lead from one to the next, and Tab leaves the
// text. The editor has no violations of accessibility, and fits narrow screens.
func TestBrowserRichTextKeys(t *testing.T) {
	t.Parallel()
	_, b := editorTab(t)
	focused := func() string {
		return eval[string](b, `document.activeElement.dataset.tool ??
			(document.activeElement.className || document.activeElement.id)`)
	}
	eval[bool](b, `(document.querySelector("[data-tool=bold]").focus(), true)`)
	b.keys(kb.ArrowRight)
	b.keys(kb.ArrowRight)
	require.Equal(t, "heading", focused())
	b.keys(kb.Tab)
	require.Equal(t, "rich-text", focused())
	b.keys("Hello")
	b.keys(kb.Tab)
	require.NotEqual(t, "rich-text", focused())
	b.keys(kb.Tab, chromedp.ModifierShift)
	require.Equal(t, "rich-text", focused())
	b.keys(kb.Tab, chromedp.ModifierShift)
	require.Equal(t, "heading", focused(), "the tool that was used last")
	eval[bool](b, `(document.querySelector("label[for=html]").click(), true)`)
	require.Equal(t, "rich-text", focused())
	require.Equal(t, "<p>Hello</p>", b.html())
	b.tool("link")
	b.lookAround("compose-editor", "")
	b.emulate(1280, "light")
	require.Empty(t, b.complaints())
}

// TestBrowserHTMLSource: HTML that rich text cannot keep opens as HTML, stays as it is, and says why. It changes only
// if the user converts it.
func TestBrowserHTMLSource(t *testing.T) {
	t.Parallel()
	_, b := editorTab(t)
	for source, word := range map[string]string{
		`<table><tr><td>{{first}}</td></tr></table>`:                            "tables",
		"<style>p { color: red }</style>\n<p>Hi</p>":                            "styles",
		`<p style="margin:0">Hi</p>`:                                            "styles",
		`<!doctype html><html><body><p>Hi {{first}}</p></body></html>`:          "whole pages",
		`<p>Hi <img src="data:,"></p>`:                                          "images",
		"<p>Hi <!-- mso --></p>":                                                "comments",
		`<ul>{% for o in orders %}<li>{{o.no}}</li>{% endfor %}</ul>`:           "everything in it",
		`<p class="x">Hi</p>`:                                                   "everything in it",
		"<p>two\nlines</p>":                                                     "everything in it",
		`<p>{{#if first}}<b>Hi</b> &uuml;{{/if}} {% if a <b %}x{% endif %}</p>`: "everything in it",
	} {
		b.typeInto("html", source)
		b.until(htmlSource)
		eval[bool](b, `document.getElementById("html").dispatchEvent(new Event("change", { bubbles: true }))`)
		require.Equal(t, source, b.html())
		require.Contains(t, eval[string](b, `document.querySelector("[data-rich-why]").innerText`), word, source)
		b.press("Rich text")
		require.Equal(t, source, b.html(), "asking for rich text changes nothing")
		require.True(t, eval[bool](b, htmlSource))
	}
	b.lookAround("compose-html", "")
	b.emulate(1280, "light")
	b.typeInto("html", `<table><tr><td style="x">Hi {{ first }}</td></tr></table><p onclick="x()">Bye <a `+
		`href="javascript:x()">now</a></p>`)
	b.press("Convert to rich text")
	b.until(richText)
	require.Equal(t, "<p>Hi {{ first }}</p>\n<p>Bye now</p>", b.html())
	for _, source := range []string{
		"", "<p>Dear <b>{{first}}</b></p>", "<p>Dear <strong>{{ first }}</strong> &amp; <em>all</em></p>",
		"<h1>A</h1>\n\n<p>b&nbsp;c<br>d</p>\n<ol>\n  <li>e</li>\n  <li>f <a " +
			"href=\"{{url}}?a=1&amp;b={{b}}\">g</a></li>\n</ol>",
		"{% if a < b and c > d %}\n<p>x</p>\n{% else %}\n<p>{{ \"y & z\" | upcase }}</p>\n{% endif %}",
	} {
		b.typeInto("html", source)
		require.True(t, eval[bool](b, richText), source)
		require.Equal(t, source, b.html())
	}
	// The plain text can be written from it while it is empty. Placeholders are offered as soon as there are columns.
	require.True(t, eval[bool](b, `document.querySelector("[data-from-rich]").checkVisibility()`))
	b.typeInto("to", "email,first\nann@example.com,Ann")
	b.until(`document.querySelector("[data-tool=names]").options[0].value === "first"`)
	// A switch to HTML by choice needs no reason, and is kept in this tab.
	b.press("HTML")
	require.True(t, eval[bool](b, htmlSource))
	require.False(t, eval[bool](b, `document.querySelector("[data-rich-why]").checkVisibility()`))
	b.open("/compose?new=yes")
	b.until(htmlSource)
	b.press("Rich text")
	b.until(richText)
	require.Empty(t, b.complaints())
}

// TestBrowserPaste: of pasted HTML only what mail needs is kept.
func TestBrowserPaste(t *testing.T) {
	t.Parallel()
	_, b := editorTab(t)
	eval[bool](b, `(() => {
		const text = document.querySelector(".rich-text"), data = new DataTransfer();
		text.focus();
		data.setData("text/html", "<style>x</style><h4 class=a>T</h4><p style='color:red' onclick='x()'>One <span>two</span> <a href='https://a.example/?x=1&amp;y'>three</a></p><script>x()</script><img src=x>");
		return text.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })), true;
	})()`)
	b.until(`document.getElementById("html").value`)
	require.Equal(t, "<h3>T</h3>\n<p>One two <a href=\"https://a.example/?x=1&amp;y\">three</a></p>", b.html())
	require.Empty(t, b.complaints())
}

// TestBrowserRichTextIsSent: the message that is sent has the HTML and the plain text that were written as rich text.
func TestBrowserRichTextIsSent(t *testing.T) {
	t.Parallel()
	f, b := editorTab(t)
	b.fill("from", "shop@example.com")
	b.fill("subject", "Hello {{first}}")
	b.typeInto("to", "email,first\nann@example.com,Ann")
	eval[bool](b, `(document.querySelector(".rich-text").focus(), true)`)
	b.keys("Dear {{first}}\rthe ")
	b.keys("b", chromedp.ModifierCtrl)
	b.keys("order")
	b.press("Write plain text")
	b.press("Send to all")
	b.at("/batches/")
	id, err := models.ParseBatchID(eval[string](b, `location.pathname.split("/")[2]`))
	require.NoError(t, err)
	batch, err := f.store.Batch(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, "<p>Dear {{first}}</p>\n<p>the <b>order</b></p>", batch.Content.HTML)
	require.Equal(t, "Dear {{first}}\n\nthe order", batch.Content.Text)
}
