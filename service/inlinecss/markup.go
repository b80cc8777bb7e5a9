package inlinecss

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/html"

	"github.com/safedelivr/safedelivr/service/liquid"
)

// Bounds of the HTML of a template.
const (
	maxTags       = 10_000
	maxAttributes = 100 // of a tag
	maxDepth      = 200
	maxFormatting = 10 // formatting elements in one another, which the parser may open again for each tag
)

// The attribute and the comments by which what was marked is found again.
const (
	markAttr    = "data-safedelivr-mark"
	markComment = "safedelivr-piece "
)

// tag is a start tag of the source.
type tag struct {
	name      string
	start     int    // in the source
	at        int    // where the CSS is written
	before    string // what is written before it, and behind it
	after     string
	class, id bool // they depend on Liquid
	node      *html.Node
	reserved  map[string]bool // families of properties that are not put into the attribute
}

// sheet is the text of a style element.
type sheet struct {
	at    int // in the source
	text  string
	media bool // it applies under a condition
}

// markup is the HTML of a template.
type markup struct {
	original string
	source   string // the number of each piece of Liquid in its place, between two control characters
	pieces   []liquid.Piece
	starts   []int // of each piece in source
	places   []int // of each piece: a block begins and ends at the same place
	tags     []tag
	sheets   []sheet

	marked strings.Builder // the HTML for the parser
	pos    int             // of the token in the source
	raw    string          // the element whose text is no HTML, or ""
	style  *sheet          // of the element style that is open
	open   []string        // elements
	values int             // places that are no elements

	passed, blocksOpen int // pieces before the last style element, and blocks that are open there

	root       *html.Node
	depth      int // of the tree
	styleNodes []*html.Node
	index      map[string]int // how many elements have a name, a class or an id, in small letters
}

// nowhere is the place of a piece that was not found.
const nowhere = math.MinInt

var (
	// attribute matches an attribute as HTML defines it.
	attribute = regexp.MustCompile(`^[\s/]*([^\s/>][^\s/>=]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"'][^\s>]*)))?`)
	number    = regexp.MustCompile("\x01(\\d+)\x02")
)

// readMarkup reads the HTML of a template.
func readMarkup(original string) (*markup, error) {
	m := &markup{original: original, index: map[string]int{}}
	if i := strings.IndexAny(original, "\x01\x02"); i >= 0 {
		return nil, &liquid.Error{Line: 1 + strings.Count(original[:i], "\n"), Text: "it has a control character"}
	}
	var err error
	if m.pieces, err = liquid.Pieces(original); err != nil {
		return nil, err
	}
	var b strings.Builder
	end := 0
	for i := range m.pieces {
		b.WriteString(original[end:m.pieces[i].Start])
		m.starts = append(m.starts, b.Len())
		fmt.Fprintf(&b, "\x01%d\x02", i)
		end = m.pieces[i].End
		m.places = append(m.places, nowhere)
	}
	b.WriteString(original[end:])
	m.source = b.String()
	if err := m.read(); err != nil {
		return nil, err
	}
	return m, m.parse()
}

// restore puts the Liquid back into a text of the source.
func (m *markup) restore(s string) string {
	return number.ReplaceAllStringFunc(s, func(found string) string {
		p := m.pieces[pieceOf(found)]
		return m.original[p.Start:p.End]
	})
}

func pieceOf(found string) int {
	i, _ := strconv.Atoi(found[1 : len(found)-1]) // number matches only digits
	return i
}

// wrong returns an error about a place in the source.
func (m *markup) wrong(at int, format string, args ...any) error {
	return &liquid.Error{Line: 1 + strings.Count(m.restore(m.source[:at]), "\n"), Text: fmt.Sprintf(format, args...)}
}

// read reads the tokens of the source, and writes the HTML for the parser.
func (m *markup) read() error {
	z := html.NewTokenizer(strings.NewReader(m.source))
	for {
		kind := z.Next()
		text := m.source[m.pos : m.pos+len(z.Raw())]
		var err error
		switch kind {
		case html.ErrorToken:
			if m.pos < len(m.source) {
				return m.wrong(m.pos, "the HTML ends inside of a tag")
			}
			return nil
		case html.TextToken:
			err = m.text(text)
		case html.StartTagToken, html.SelfClosingTagToken:
			err = m.startTag(text, z.Token())
		case html.EndTagToken:
			err = m.endTag(text, z.Token().Data)
		case html.CommentToken:
			err = m.comment(text)
		case html.DoctypeToken:
			m.marked.WriteString(text)
			if number.MatchString(text) {
				err = m.wrong(m.pos, "there is Liquid in the doctype")
			}
		}
		if err != nil {
			return err
		}
		m.pos += len(text)
	}
}

// value gives the pieces of Liquid in a text without elements a place of their own.
func (m *markup) value(text string) {
	m.values++
	for _, found := range number.FindAllString(text, -1) {
		m.places[pieceOf(found)] = -1 - m.values
	}
}

// styleElement matches a style element in a conditional comment, which only some programs read.
var styleElement = regexp.MustCompile(`(?is)<style\b[^>]*>(.*?)</style`)

// comment reads a comment.
func (m *markup) comment(text string) error {
	m.value(text)
	for _, at := range styleElement.FindAllStringSubmatchIndex(text, -1) {
		css := text[at[2]:at[3]]
		if number.MatchString(css) {
			return m.wrong(m.pos+at[2], "there is Liquid in <style>")
		}
		m.sheets = append(m.sheets, sheet{at: m.pos + at[2], text: css, media: true})
	}
	return nil
}

// inBlock reports whether the token is inside of a block of Liquid.
func (m *markup) inBlock() bool {
	for ; m.passed < len(m.pieces) && m.starts[m.passed] < m.pos; m.passed++ {
		switch t := m.pieces[m.passed].Tag; {
		case opens(t):
			m.blocksOpen++
		case strings.HasPrefix(t, "end"):
			m.blocksOpen--
		}
	}
	return m.blocksOpen > 0
}

// opens reports whether a tag of Liquid begins a block.
func opens(tag string) bool { return tag == "if" || tag == "unless" || tag == "case" || tag == "for" }

// text reads text between tags.
func (m *markup) text(text string) error {
	switch {
	case (m.raw == "style" || m.raw == "script") && number.MatchString(text):
		return m.wrong(m.pos, "there is Liquid in <%s>", m.raw)
	case m.style != nil && m.inBlock():
		return m.wrong(m.pos, "<style> is inside of a block of Liquid")
	case m.style != nil:
		m.style.at, m.style.text = m.pos, text
		m.sheets = append(m.sheets, *m.style)
		return nil
	case m.raw != "":
		m.value(text)
		m.marked.WriteString(text)
		return nil
	case strings.Contains(text, "<\x01") || strings.Contains(text, "</\x01"):
		return m.wrong(m.pos, "Liquid gives the name of an element")
	}
	m.marked.WriteString(number.ReplaceAllStringFunc(text, func(found string) string {
		switch p := m.pieces[pieceOf(found)]; {
		case p.Tag != "":
			return "<!--" + markComment + strconv.Itoa(pieceOf(found)) + "-->"
		case p.Output:
			return "x"
		}
		return ""
	}))
	return nil
}

// Elements that have no end, those whose text is no HTML, and those that the parser opens
// again where they were not closed.
var (
	void = words("area base basefont bgsound br col embed frame hr image img input keygen link meta param source " +
		"track wbr")
	raw  = words("iframe noembed noframes noscript plaintext script style textarea title xmp")
	bold = words("a b big code em font i nobr s small strike strong tt u")
)

func words(list string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(list) {
		set[w] = true
	}
	return set
}

// startTag reads a start tag.
func (m *markup) startTag(text string, tok html.Token) error {
	t := tag{name: tok.Data, start: m.pos}
	end := 1 + strings.IndexAny(text[1:], " \t\r\n\f/>")
	if number.MatchString(text[:end]) {
		return m.wrong(m.pos, "Liquid gives the name of an element")
	}
	t.at, t.before, t.after = m.pos+end, ` style="`, `"`
	if err := m.attributes(&t, text, end, tok.Attr); err != nil {
		return err
	}
	m.writeTag(&t, tok.Attr, tok.Type == html.SelfClosingTagToken)
	m.tags = append(m.tags, t)
	m.raw, m.style = "", nil
	if raw[t.name] {
		m.raw = t.name
	}
	if t.name == "style" {
		m.style = styleOf(tok.Attr)
	}
	if !void[t.name] {
		m.open = append(m.open, t.name)
	}
	formatting := 0
	for _, name := range m.open {
		if bold[name] {
			formatting++
		}
	}
	switch {
	case len(m.tags) > maxTags:
		return m.wrong(m.pos, "the HTML has more than %d elements", maxTags)
	case len(m.open) > maxDepth:
		return m.wrong(m.pos, "more than %d elements are open: some have no end tag, or they are nested too deep", maxDepth)
	case formatting > maxFormatting:
		return m.wrong(m.pos, "more than %d elements like <%s> are open: some have no end tag, or they are nested too deep",
			maxFormatting, t.name)
	}
	return nil
}

// styleOf returns the sheet of an element style; nil if it is not CSS.
func styleOf(attrs []html.Attribute) *sheet {
	s := &sheet{}
	for _, a := range attrs {
		switch {
		case a.Key == "type" && a.Val != "" && !strings.EqualFold(a.Val, "text/css"):
			return nil
		case a.Key == "media":
			s.media = s.media || a.Val != "" && !strings.EqualFold(a.Val, "all")
		}
	}
	return s
}

// attributes finds out where the CSS of a tag is written. end is where its name ends.
func (m *markup) attributes(t *tag, text string, end int, attrs []html.Attribute) error {
	if len(attrs) > maxAttributes {
		return m.wrong(m.pos, "<%s> has more than %d attributes", t.name, maxAttributes)
	}
	styled := false
	for i := 0; ; i++ {
		at := attribute.FindStringSubmatchIndex(text[end:])
		if at == nil {
			if i != len(attrs) {
				return m.wrong(m.pos, "the attributes of <%s> cannot be read", t.name)
			}
			return nil
		}
		name := text[end+at[2] : end+at[3]]
		if number.MatchString(name) {
			return m.wrong(m.pos, "there is Liquid between the attributes of <%s>; it can be inside of quoted values", t.name)
		}
		if i >= len(attrs) || !strings.EqualFold(name, attrs[i].Key) {
			return m.wrong(m.pos, "the attributes of <%s> cannot be read", t.name)
		}
		if at[8] >= 0 && number.MatchString(text[end+at[8]:end+at[9]]) {
			return m.wrong(m.pos, "there is Liquid in a value of <%s> without quotation marks", t.name)
		}
		if value := text[end+at[3] : end+at[1]]; number.MatchString(value) {
			t.class = t.class || attrs[i].Key == "class"
			t.id = t.id || attrs[i].Key == "id"
			m.value(value)
		}
		if attrs[i].Key == "style" && !styled {
			styled = true
			if err := m.styleAt(t, text, end, at); err != nil {
				return err
			}
		}
		end += at[1]
	}
}

// styleAt has the CSS of a tag written before the value of its attribute style.
func (m *markup) styleAt(t *tag, text string, end int, at []int) error {
	switch {
	case at[4] >= 0:
		t.at, t.before, t.after = m.pos+end+at[4], "", ";"
	case at[6] >= 0:
		t.at, t.before, t.after = m.pos+end+at[6], "", ";"
	default:
		return m.wrong(m.pos, "the attribute style of <%s> has no quotation marks", t.name)
	}
	return nil
}

// writeTag writes a start tag for the parser.
func (m *markup) writeTag(t *tag, attrs []html.Attribute, selfClosing bool) {
	fmt.Fprintf(&m.marked, `<%s %s="%d"`, t.name, markAttr, len(m.tags))
	for i, a := range attrs {
		first := slices.IndexFunc(attrs, func(b html.Attribute) bool { return b.Key == a.Key }) == i
		if first && t.name != "style" && a.Key != "style" && a.Key != markAttr && a.Key != "pr-el-id" {
			fmt.Fprintf(&m.marked, ` %s="%s"`, a.Key, html.EscapeString(a.Val))
		}
	}
	if selfClosing {
		m.marked.WriteString("/")
	}
	m.marked.WriteString(">")
}

// endTag reads an end tag.
func (m *markup) endTag(text, name string) error {
	m.raw, m.style = "", nil
	if number.MatchString(text) {
		return m.wrong(m.pos, "there is Liquid in an end tag")
	}
	m.marked.WriteString("</" + name + ">")
	for i, open := range slices.Backward(m.open) {
		if open != name {
			continue
		}
		for _, inner := range m.open[i+1:] {
			if bold[inner] || bold[name] {
				return m.wrong(m.pos, "</%s> is before the end of <%s>", name, inner)
			}
		}
		m.open = m.open[:i]
		break
	}
	return nil
}
