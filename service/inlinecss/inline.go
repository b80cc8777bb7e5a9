// Package inlinecss copies the CSS of a template into the style attributes of its elements,
// because some programs that show mail read no style elements.
//
// It changes nothing but style attributes: all else stays as it is, byte by byte, style elements
// too. A program that reads them shows the mail as before. What cannot be done so is refused.
package inlinecss

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/PuerkitoBio/goquery"
	"github.com/vanng822/go-premailer/premailer"
	"golang.org/x/net/html"

	"github.com/safedelivr/safedelivr/service/liquid"
)

// Inliner inlines the CSS of the parts of one template, which share its bound of work.
type Inliner struct{ left int }

// maxWork bounds how often selectors are compared with elements, and how many bytes of CSS are
// read and copied, for a template. It is about a second at most.
const maxWork = 5_000_000

// New returns an inliner for a template.
func New() *Inliner { return &Inliner{left: maxWork} }

// edit is a text that is put into the source.
type edit struct {
	at   int
	text string
}

// Inline returns the HTML of a template with its CSS in style attributes. The template must
// compile. The error is a *liquid.Error.
func (in *Inliner) Inline(source string) (string, error) {
	m, err := readMarkup(source)
	if err != nil {
		return "", err
	}
	var inlined, all []rule
	for i := range m.sheets {
		s := &m.sheets[i]
		p := sheetParser{s: s.text}
		if err := p.parse(0); err != nil {
			return "", m.wrong(s.at+min(p.i, len(s.text)), "%s", err)
		}
		for k := range p.rules {
			r := &p.rules[k]
			r.group = r.group || s.media
			r.start += s.at
			if !r.group && len(r.decls) > 0 && slices.ContainsFunc(r.selectors, inlinable) {
				inlined = append(inlined, *r)
			}
		}
		all = append(all, p.rules...)
	}
	if len(inlined) == 0 {
		return source, nil
	}
	if err := m.known(inlined); err != nil {
		return "", err
	}
	if err := in.apply(m, inlined); err != nil {
		return "", err
	}
	if err := in.reserve(m, all); err != nil {
		return "", err
	}
	return m.edited(m.styles()), nil
}

// known returns an error if Liquid decides which elements the rules select.
func (m *markup) known(rules []rule) error {
	for i := range m.pieces {
		if m.pieces[i].Raw {
			return &liquid.Error{Line: m.pieces[i].Line, Text: "the filter raw puts in HTML that is not known yet"}
		}
	}
	class, id := false, false
	for i := range rules {
		for _, s := range rules[i].selectors {
			class = class || inlinable(s) && strings.Contains(s, ".")
			id = id || inlinable(s) && strings.Contains(s, "#")
		}
	}
	for i := range m.tags {
		switch t := &m.tags[i]; {
		case t.class && class:
			return m.wrong(t.start, "Liquid decides the class of <%s>, and the CSS selects by class", t.name)
		case t.id && id:
			return m.wrong(t.start, "Liquid decides the id of <%s>, and the CSS selects by id", t.name)
		}
	}
	return nil
}

// apply sets the style attributes of the elements in the tree.
func (in *Inliner) apply(m *markup, rules []rule) error {
	var sheet strings.Builder
	for i := range rules {
		r := &rules[i]
		var body strings.Builder
		for _, d := range r.decls {
			if !d.clear() {
				return m.wrong(r.start, "the CSS declaration %q cannot be put into attributes",
					shortened(d.name+": "+d.value))
			}
			fmt.Fprintf(&body, "%s:%s", d.name, d.value)
			if d.important {
				body.WriteString(" !important")
			}
			body.WriteByte(';')
		}
		for _, sel := range r.selectors {
			if !inlinable(sel) {
				continue
			}
			fmt.Fprintf(&sheet, "%s{%s}\n", child.ReplaceAllString(sel, " > "), body.String())
			if in.left -= m.work(sel, body.Len()); in.left < 0 {
				return m.wrong(r.start, "the template has too much CSS for so many elements")
			}
		}
	}
	// The library panics if it meets a style element in some places, so it gets only this one.
	for _, n := range m.styleNodes {
		n.Parent.RemoveChild(n)
	}
	style := &html.Node{Type: html.ElementNode, Data: "style"}
	style.AppendChild(&html.Node{Type: html.TextNode, Data: sheet.String()})
	top := m.root.FirstChild
	for top.Type != html.ElementNode { // the parser always adds <html>
		top = top.NextSibling
	}
	top.AppendChild(style)
	options := premailer.NewOptions(premailer.WithCssToAttributes(false))
	if _, err := premailer.NewPremailer(goquery.NewDocumentFromNode(m.root), options).Transform(); err != nil {
		return m.wrong(0, "the CSS cannot be put into attributes: %v", err)
	}
	return nil
}

var named = regexp.MustCompile(`[.#]?[\w-]+`)

// work returns at most how many comparisons it takes to find the elements of a selector, and
// how many bytes are copied to them. Reading the CSS takes as long as so many of either.
func (m *markup) work(selector string, size int) int {
	parts := strings.Fields(child.ReplaceAllString(selector, " > "))
	last := len(parts) - 1
	found := len(m.tags)
	for _, name := range named.FindAllString(parts[last], -1) {
		found = min(found, m.index[strings.ToLower(name)])
	}
	// Each ancestor may be the one that is meant, and for each of them those above it.
	ways, above := 1, 0
	for i := last - 1; i >= 0; i-- {
		if parts[i] == ">" {
			i--
			continue
		}
		above++
		if ways = max(ways*(m.depth-above+1)/above, ways); ways > maxWork {
			break
		}
	}
	return 100 + 4*size + len(m.tags) + found*(ways+size)
}

// styles returns the changes that write the style attributes of the tree.
func (m *markup) styles() (edits []edit) {
	for i := range m.tags {
		t := &m.tags[i]
		for _, a := range t.node.Attr {
			if a.Key != "style" {
				continue
			}
			if a.Val = t.without(a.Val); a.Val != "" {
				edits = append(edits, edit{t.at, t.before + html.EscapeString(a.Val) + t.after})
			}
		}
	}
	return edits
}

// edited returns the source with changes in their order, and with its Liquid.
func (m *markup) edited(edits []edit) string {
	var out strings.Builder
	end := 0
	for _, e := range edits {
		out.WriteString(m.source[end:e.at])
		out.WriteString(e.text)
		end = e.at
	}
	out.WriteString(m.source[end:])
	return m.restore(out.String())
}
