package inlinecss

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/html"

	"github.com/safedelivr/safedelivr/service/liquid"
)

// parse makes the tree of the elements, and finds what was marked.
func (m *markup) parse() error {
	root, err := html.Parse(strings.NewReader(m.marked.String()))
	if err != nil {
		return m.wrong(0, "the HTML cannot be read: %v", err)
	}
	if err := m.find(root, -1, 0); err != nil {
		return err
	}
	for i := range m.tags {
		if m.tags[i].node == nil {
			return m.wrong(m.tags[i].start, "<%s> has no place here in HTML", m.tags[i].name)
		}
	}
	m.root = root
	return m.blocks()
}

// find finds the marks in a part of the tree. inside is the tag that it is inside of.
func (m *markup) find(n *html.Node, inside, depth int) error {
	m.depth = max(m.depth, depth)
	if n.Type == html.CommentNode {
		if text, ok := strings.CutPrefix(n.Data, markComment); ok {
			i, _ := strconv.Atoi(text) // the comments of the source were left out
			m.places[i] = inside
		}
	}
	if at := slices.IndexFunc(n.Attr, func(a html.Attribute) bool { return a.Key == markAttr }); at >= 0 {
		i, _ := strconv.Atoi(n.Attr[at].Val) // written by writeTag
		t := &m.tags[i]
		if t.node != nil {
			return m.wrong(t.start, "<%s> is not closed where its parent is", t.name)
		}
		t.node, inside = n, i
		n.Attr = slices.Delete(n.Attr, at, at+1)
	}
	m.count(n)
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		if err := m.find(c, inside, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// count counts an element by its name, its classes and its id.
func (m *markup) count(n *html.Node) {
	if n.Type != html.ElementNode {
		return
	}
	m.index[strings.ToLower(n.Data)]++
	if n.Data == "style" {
		m.styleNodes = append(m.styleNodes, n)
	}
	for _, a := range n.Attr {
		if a.Key == "class" || a.Key == "id" {
			kind := "."
			if a.Key == "id" {
				kind = "#"
			}
			for _, name := range strings.Fields(strings.ToLower(a.Val)) {
				m.index[kind+name]++
			}
		}
	}
}

// blocks checks that what is inside of each block of Liquid is complete HTML, so that the
// elements around an element are the same for all recipients.
func (m *markup) blocks() error {
	var open []int // pieces that begin blocks
	for i := range m.pieces {
		p, begin := &m.pieces[i], len(open)-1
		switch {
		case p.Tag == "" || p.Tag == "assign":
			continue
		case m.places[i] == nowhere:
			return &liquid.Error{Line: p.Line, Text: fmt.Sprintf("{%% %s %%} has no place here in HTML", p.Tag)}
		case opens(p.Tag):
			open = append(open, i)
			continue
		case p.Tag == "break" || p.Tag == "continue":
			for begin >= 0 && m.pieces[open[begin]].Tag != "for" {
				begin--
			}
		case strings.HasPrefix(p.Tag, "end"):
			open = open[:max(begin, 0)]
		}
		if begin < 0 {
			return &liquid.Error{Line: p.Line, Text: fmt.Sprintf("{%% %s %%} is in no block", p.Tag)}
		}
		if from := open[:begin+1][begin]; m.places[from] != m.places[i] {
			return &liquid.Error{Line: p.Line, Text: fmt.Sprintf(
				"what is between {%% %s %%} in line %d and {%% %s %%} opens or closes elements that are outside of it, "+
					"or is in several attributes or comments", m.pieces[from].Tag, m.pieces[from].Line, p.Tag)}
		}
	}
	return nil
}
