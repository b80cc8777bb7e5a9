//go:build browser

package dashboard

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// TestBrowserTemplates writes a template and sees it as a recipient gets it while it is typed, in two languages. It
// publishes it, changes it, compares the versions, publishes the new one and goes back, sends a test, which arrives,
// and archives it.
func TestBrowserTemplates(t *testing.T) {
	t.Parallel()
	sim, base, link := serveSimulated(t, buildProduct(t), nil)
	b := openTab(t, base)
	b.open(link)
	b.sees("Overview")
	b.open("/templates")
	b.sees("You have no templates yet.")
	b.fill("new", "welcome")
	b.press("Create template")
	b.at("/templates/welcome")
	b.sees("A new template")

	b.typeInto("subject", "Hi {{name}}")
	b.typeInto("html", "<p>{% if vip %}Thank you, {{name}} of {{city}}.{% endif %}</p>")
	b.typeInto("text", "Hello")
	b.typeInto("sender", "Shop <shop@demo.test>")
	b.typeInto("defaults", `{"city": "Vienna"}`)
	eval[bool](b, `(document.querySelector("label[for=shown-new]").click(), true)`)
	b.typeInto("new_language", "de")
	b.press("Add")
	b.until(`document.getElementById("shown-de")?.checked &&
		document.getElementById("languages/de/html").checkVisibility()`)
	b.typeInto("languages/de/subject", "Willkommen, {{name}}")
	b.previews("Subject: Willkommen, Ann")
	eval[bool](b, `(document.getElementById("shown-de").focus(), true)`)
	b.do(chromedp.KeyEvent(kb.ArrowLeft))
	b.until(`document.getElementById("subject").checkVisibility()`)
	require.False(t, eval[bool](b, `document.getElementById("languages/de/html").checkVisibility()`))
	b.previews("Subject: Hi Ann")
	b.typeInto("vars", `{"name": "Bo", "vip": true}`)
	b.previews("Subject: Hi Bo", "Thank you, Bo of Vienna.", "Hello")
	b.typeInto("language", "de-AT")
	b.previews("Subject: Willkommen, Bo", "Thank you, Bo of Vienna.")
	b.typeInto("html", "<p>{% if %}</p>")
	b.previews("html: Line 1: {% if %} has no condition.")
	b.press("Save as draft")
	b.until(`document.getElementById("html-wrong").innerText.includes("has no condition")`)
	b.typeInto("html", "<p>{% if vip %}Thank you, {{name}} of {{city}}.{% endif %}</p>")
	b.press("Save and publish")
	b.sees("Published: version 1 is used by batches that name no version")
	b.sees("No batch was made from it yet.")

	b.typeInto("subject", "Welcome, {{name}}")
	b.press("Save as draft")
	b.sees("Saved as a draft.")
	b.sees("Published: version 1 is used by batches")
	b.press("from 1 to 2")
	b.at("/templates/welcome?version=2&against=1")
	require.Equal(t, []string{"- Hi {{name}}", "+ Welcome, {{name}}"},
		eval[[]string](b, `[...document.querySelectorAll("#changes del, #changes ins")].map((e) => e.innerText)`))
	b.press("Publish 2")
	b.sees("Published: version 2 is used by batches")
	b.press("Publish 1") // back
	b.sees("Published: version 1 is used by batches")
	require.Equal(t, "Hi {{name}}", eval[string](b, `document.getElementById("subject").value`))

	b.open("/templates/welcome?version=2")
	b.typeInto("to", "ann@demo.test")
	b.typeInto("vars", `{"name": "Ann", "vip": true}`)
	b.typeInto("language", "de-AT")
	b.press("Save and send a test")
	b.at("/batches/")
	b.sees("Delivered by ")
	b.sees("welcome@2")
	copies := sim.Copies("ann@demo.test")
	require.Len(t, copies, 1)
	require.Equal(t, []string{"Willkommen, Ann", "Hello"}, []string{copies[0].Subject, strings.TrimSpace(copies[0].Text)})
	require.Contains(t, copies[0].HTML, "Thank you, Ann of Vienna.")
	b.press("welcome@2")
	b.at("/templates/welcome")
	b.sees("Used by 1 batch, last by")

	for name, path := range map[string]string{
		"templates": "/templates", "template": "/templates/welcome",
		"template-changes": "/templates/welcome?version=2&against=1",
	} {
		b.lookAround(name, path)
	}
	b.open("/templates/welcome")
	b.press("Archive the template")
	b.sees("Archived: batches cannot use it until a version is published.")
	b.open("/templates")
	b.until(`[...document.querySelectorAll("tr")].some((e) => /welcome\s+archived/.test(e.innerText))`)
	for _, c := range b.complaints() {
		require.Contains(t, c, "status of 422", "only that of the draft with a mistake")
	}
}

// previews waits until the preview of a message has some texts.
func (b *browserTab) previews(texts ...string) {
	b.Helper()
	shown := ""
	require.Eventually(b, func() bool {
		shown = b.preview()
		for _, text := range texts {
			if !strings.Contains(shown, text) {
				return false
			}
		}
		return true
	}, tabWait, 50*time.Millisecond, "%v", texts)
}

// preview returns the text in the frame of the preview, in which no script may run.
func (b *browserTab) preview() (text string) {
	ctx, cancel := context.WithTimeout(b.ctx, tabWait)
	defer cancel()
	page, err := chromedp.Call(ctx, dom.GetDocument, dom.GetDocumentParams{Depth: new(int64(-1)), Pierce: new(true)})
	require.NoError(b, err)
	var visit func(n *cdp.Node, inside bool)
	visit = func(n *cdp.Node, inside bool) {
		if inside && n.NodeName == "#text" {
			text += n.NodeValue
		}
		for _, c := range n.Children {
			visit(c, inside)
		}
		if n.ContentDocument != nil {
			visit(n.ContentDocument, true)
		}
	}
	visit(page.Root, false)
	return text
}
