package inlinecss

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/vanng822/css"
	"golang.org/x/net/html"
)

// A style attribute wins over all rules without !important. So a property is not put into the
// attribute of an element if a rule that cannot be put there sets it, too, and may select the
// element: one that applies under a condition, or whose selector is not simple. The property is
// reserved for style elements, which have all rules.

// reserve finds the properties that are reserved, for each tag.
func (in *Inliner) reserve(m *markup, rules []rule) error {
	for i := range rules {
		r := &rules[i]
		families := map[string]bool{}
		for _, d := range r.decls {
			if !d.important { // it wins over attributes, too
				families[family(d.name)] = true
			}
		}
		for _, sel := range r.selectors {
			// All that is in attributes has always won over a lone *.
			if len(families) == 0 || sel == "*" || !r.group && inlinable(sel) {
				continue
			}
			names := selected(sel)
			if in.left -= len(m.tags) * (1 + len(names) + len(families)); in.left < 0 {
				return m.wrong(r.start, "the template has too much CSS for so many elements")
			}
			for k := range m.tags {
				if t := &m.tags[k]; has(t.node, names) {
					t.reserve(families)
				}
			}
		}
	}
	return nil
}

func (t *tag) reserve(families map[string]bool) {
	if t.reserved == nil {
		t.reserved = map[string]bool{}
	}
	maps.Copy(t.reserved, families)
}

// without returns the declarations of a tag that are not reserved.
func (t *tag) without(text string) string {
	if len(t.reserved) == 0 {
		return text
	}
	if t.reserved["all"] {
		return ""
	}
	var kept []string
	for _, d := range css.ParseBlock(text) {
		if !t.reserved[family(d.Property)] {
			kept = append(kept, d.Property+":"+d.Value.Text())
		}
	}
	return strings.Join(kept, ";")
}

var vendor = regexp.MustCompile(`^-(webkit|moz|ms|o)-`)

// family returns the first word of a property, which a shorthand and what it sets have in common.
func family(property string) string {
	name := vendor.ReplaceAllString(strings.ToLower(property), "")
	if name == "line-height" {
		return "font"
	}
	name, _, _ = strings.Cut(name, "-")
	return name
}

var (
	conditions = regexp.MustCompile(`\[[^\]]*\]|::?[\w-]+(\(.*\))?`)
	plain      = regexp.MustCompile(`^[A-Za-z]?[\w-]*([.#][\w-]+)*$`)
)

// selected returns the name, classes and ids of which all elements that a selector selects have
// all; none if that is not known.
func selected(selector string) []string {
	p, last := sheetParser{s: selector}, ""
	for ; p.i < len(selector); p.i++ {
		one, err := p.until(" >+~")
		if err != nil {
			return nil
		}
		if one != "" {
			last = one
		}
	}
	last = strings.TrimPrefix(conditions.ReplaceAllString(last, ""), "*")
	if strings.Contains(selector, `\`) || !plain.MatchString(last) {
		return nil
	}
	return named.FindAllString(last, -1)
}

// has reports whether an element has a name, classes and ids. Some programs compare them without
// regard to capital letters.
func has(n *html.Node, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		if kind := name[0]; kind != '.' && kind != '#' {
			return !strings.EqualFold(n.Data, name)
		}
		return !slices.ContainsFunc(n.Attr, func(a html.Attribute) bool {
			same := func(s string) bool { return strings.EqualFold(s, name[1:]) }
			return name[0] == '.' && a.Key == "class" && slices.ContainsFunc(strings.Fields(a.Val), same) ||
				name[0] == '#' && a.Key == "id" && same(a.Val)
		})
	})
}
