package inlinecss

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/vanng822/css"
)

// rule is a rule of a style sheet.
type rule struct {
	selectors []string
	decls     []decl
	start     int  // in the sheet
	group     bool // it is inside of @media or another group
}

// decl is a declaration.
type decl struct {
	name, value string
	important   bool
}

// maxGroups is how deep groups of rules may be nested.
const maxGroups = 8

// groups are the rules whose blocks hold rules that apply under a condition.
var groups = []string{"@media", "@supports", "@container", "@layer", "@scope"}

var atRule = regexp.MustCompile(`^@[\w-]*`)

var errNotClosed = errors.New("the CSS is not closed: a brace, a bracket, a quotation mark or a comment has no end")

// sheetParser splits a style sheet into rules. Each byte is read a bounded number of times.
type sheetParser struct {
	s     string
	i     int
	rules []rule
}

// until advances to the first of some bytes outside of strings, comments and brackets, or to
// the end. It returns what it passed, without comments.
func (p *sheetParser) until(stops string) (passed string, err error) {
	var out strings.Builder
	var open []byte
	for p.i < len(p.s) {
		c, from := p.s[p.i], p.i
		switch {
		case len(open) == 0 && strings.IndexByte(stops, c) >= 0:
			return out.String(), nil
		case strings.HasPrefix(p.s[p.i:], "/*"):
			if err := p.skip("*/", 2); err != nil {
				return "", err
			}
			out.WriteByte(' ')
			continue
		case c == '"' || c == '\'':
			err = p.quoted(c)
		case c == '\\':
			p.i = min(p.i+2, len(p.s))
		case c == '(' || c == '[':
			open = append(open, map[byte]byte{'(': ')', '[': ']'}[c])
			p.i++
			if strings.HasSuffix(strings.ToLower(p.s[max(0, from-3):from]), "url") {
				err = p.address()
			}
		case len(open) > 0 && c == open[len(open)-1]:
			open = open[:len(open)-1]
			p.i++
		case c == ')' || c == ']' || len(open) > 0 && strings.IndexByte("{};", c) >= 0:
			return "", errNotClosed
		default:
			p.i++
		}
		if err != nil {
			return "", err
		}
		out.WriteString(p.s[from:p.i])
	}
	if len(open) > 0 {
		return "", errNotClosed
	}
	return out.String(), nil
}

// skip advances behind the next end, which is looked for from n bytes on.
func (p *sheetParser) skip(end string, n int) error {
	at := strings.Index(p.s[p.i+n:], end)
	if at < 0 {
		return errNotClosed
	}
	p.i += n + at + len(end)
	return nil
}

// quoted advances behind a string.
func (p *sheetParser) quoted(quote byte) error {
	for p.i++; p.i < len(p.s); p.i++ {
		switch p.s[p.i] {
		case '\\':
			p.i++
		case '\n':
			return errNotClosed
		case quote:
			p.i++
			return nil
		}
	}
	return errNotClosed
}

// address advances to the end of the address of url(…), if it has no quotation marks.
func (p *sheetParser) address() error {
	rest := strings.TrimLeft(p.s[p.i:], space)
	if rest != "" && (rest[0] == '"' || rest[0] == '\'') {
		return nil
	}
	at := strings.IndexByte(p.s[p.i:], ')')
	if at < 0 {
		return errNotClosed
	}
	p.i += at
	return nil
}

const space = " \t\r\n\f"

// blank advances over space, comments, the marks of HTML comments, and semicolons.
func (p *sheetParser) blank() error {
	for p.i < len(p.s) {
		rest := p.s[p.i:]
		switch {
		case strings.IndexByte(space+";", rest[0]) >= 0:
			p.i++
		case strings.HasPrefix(rest, "<!--"):
			p.i += len("<!--")
		case strings.HasPrefix(rest, "-->"):
			p.i += len("-->")
		case strings.HasPrefix(rest, "/*"):
			if err := p.skip("*/", 2); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

// parse reads rules up to the end, or in a group up to its brace.
func (p *sheetParser) parse(depth int) error {
	if depth > maxGroups {
		return errors.New("groups of CSS rules are nested too deep")
	}
	for {
		if err := p.blank(); err != nil {
			return err
		}
		switch {
		case p.i == len(p.s) && depth > 0:
			return errNotClosed
		case p.i == len(p.s):
			return nil
		case p.s[p.i] == '}' && depth > 0:
			p.i++
			return nil
		}
		if err := p.rule(depth); err != nil {
			return err
		}
	}
}

// rule reads a rule.
func (p *sheetParser) rule(depth int) error {
	start := p.i
	prelude, err := p.until("{};")
	if err != nil {
		return err
	}
	opens := p.i < len(p.s) && p.s[p.i] == '{'
	name := atRule.FindString(prelude)
	switch {
	case name != "" && !opens: // like @import
		return nil
	case !opens:
		return fmt.Errorf("the CSS has no { after %q", shortened(strings.TrimSpace(prelude)))
	case slices.Contains(groups, strings.ToLower(name)):
		p.i++
		return p.parse(depth + 1)
	case name != "":
		return p.block()
	}
	p.i++
	r := rule{start: start, group: depth > 0}
	if r.selectors, err = selectors(prelude); err != nil {
		return err
	}
	if err := p.declarations(&r); err != nil {
		return err
	}
	p.rules = append(p.rules, r)
	return nil
}

// block advances behind a block with blocks in it.
func (p *sheetParser) block() error {
	for depth := 0; ; {
		if _, err := p.until("{}"); err != nil {
			return err
		}
		if p.i == len(p.s) {
			return errNotClosed
		}
		p.i++
		if p.s[p.i-1] == '{' {
			depth++
		} else if depth--; depth == 0 {
			return nil
		}
	}
}

// declarations reads the declarations of a rule, and its brace.
func (p *sheetParser) declarations(r *rule) error {
	for {
		if err := p.blank(); err != nil {
			return err
		}
		text, err := p.until("{};")
		switch {
		case err != nil:
			return err
		case p.i == len(p.s):
			return errNotClosed
		case p.s[p.i] == '{':
			return errors.New("the CSS has braces inside of braces")
		}
		if d := declaration(text); d.name != "" {
			r.decls = append(r.decls, d)
		}
		if p.s[p.i] == '}' {
			p.i++
			return nil
		}
	}
}

var (
	property  = regexp.MustCompile(`^-?[A-Za-z_][A-Za-z0-9_-]*$`)
	important = regexp.MustCompile(`(?i)\s*!\s*important$`)
)

// declaration parses a declaration. What is none, like a hack for one program or the
// definition of a variable, has no name.
func declaration(text string) decl {
	name, value, ok := strings.Cut(strings.TrimSpace(text), ":")
	d := decl{name: strings.TrimSpace(name), value: strings.ReplaceAll(strings.TrimSpace(value), "\r\n", "\n")}
	if !ok || !property.MatchString(d.name) || d.value == "" {
		return decl{}
	}
	if at := important.FindStringIndex(d.value); at != nil {
		d.value, d.important = d.value[:at[0]], true
	}
	return d
}

// clear reports whether the library that puts a declaration into attributes reads it as it is meant.
func (d *decl) clear() bool {
	read := css.ParseBlock(d.name + ":" + d.value)
	return len(read) == 1 && read[0].Property == d.name && read[0].Value.Text() == d.value && !read[0].Important &&
		!strings.ContainsAny(d.value, "{}<>")
}

// shortened returns the beginning of a text for an error.
func shortened(s string) string {
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// selectors splits a list of selectors.
func selectors(list string) (out []string, err error) {
	for p := (sheetParser{s: list}); ; p.i++ {
		one, err := p.until(",")
		if err != nil {
			return nil, err
		}
		one = strings.Join(strings.Fields(one), " ")
		if one == "" {
			return nil, errors.New("a selector in the CSS is empty")
		}
		if out = append(out, one); p.i == len(list) {
			return out, nil
		}
	}
}

var (
	compound = `(?:[A-Za-z][A-Za-z0-9]*(?:[.#]-?[A-Za-z_][\w-]*)*|(?:[.#]-?[A-Za-z_][\w-]*)+)`
	simple   = regexp.MustCompile(`^` + compound + `(?:(?: | ?> ?)` + compound + `)*$`)
	child    = regexp.MustCompile(` ?> ?`)
)

// inlinable reports whether the elements that a selector selects are known from the template
// alone: it has only names, classes, ids, descendants and children.
func inlinable(selector string) bool { return simple.MatchString(selector) }
