package liquid

import (
	"fmt"
	"regexp"
	"strings"
)

// kind is the kind of a token.
type kind int

const (
	text   kind = iota
	object      // {{ … }}
	tag         // {% … %}
)

// token is a part of the source of a template.
type token struct {
	kind        kind
	line        int
	source      string // text, or what is between the braces without surrounding space
	name        string // of a tag
	left, right bool   // white space before or after it is removed: {%- … -%}
	start, end  int    // where it is in the source
	block       *block // that it begins, and that compares values
}

// maxToken is the size in bytes of the largest tag or output.
const maxToken = 2000

// scanner cuts a source into tokens. The contents of {% raw %} and the literal {{{{ are
// text, and {% comment %} is left out.
type scanner struct {
	size   int // of the source
	rest   string
	line   int
	tokens []token
}

func scan(source string) ([]token, error) {
	s := scanner{size: len(source), rest: source, line: 1}
	for s.rest != "" {
		i := strings.IndexByte(s.rest, '{')
		for i >= 0 && !strings.HasPrefix(s.rest[i+1:], "{") && !strings.HasPrefix(s.rest[i+1:], "%") {
			next := strings.IndexByte(s.rest[i+1:], '{')
			if next < 0 {
				i = -1
				break
			}
			i += 1 + next
		}
		if i < 0 {
			i = len(s.rest)
		}
		if i > 0 {
			s.add(token{source: s.rest[:i]}, i)
			continue
		}
		if strings.HasPrefix(s.rest, "{{{{") {
			s.add(token{source: "{{"}, 4)
			continue
		}
		if err := s.braces(); err != nil {
			return nil, err
		}
	}
	return s.tokens, nil
}

// add adds a token that takes n bytes of the source.
func (s *scanner) add(t token, n int) {
	t.line = s.line
	t.start = s.size - len(s.rest)
	t.end = t.start + n
	s.line += strings.Count(s.rest[:n], "\n")
	s.rest = s.rest[n:]
	s.tokens = append(s.tokens, t)
}

// wrong returns an error at the present line.
func (s *scanner) wrong(format string, args ...any) error {
	return &Error{Line: s.line, Text: fmt.Sprintf(format, args...)}
}

// braces reads a tag or an output.
func (s *scanner) braces() error {
	t, end := token{kind: object}, "}}"
	if s.rest[1] == '%' {
		t.kind, end = tag, "%}"
	}
	n := strings.Index(s.rest[2:min(len(s.rest), 2+maxToken)], end)
	if n < 0 {
		return s.wrong("%s is not closed by %s within %d bytes", s.rest[:2], end, maxToken)
	}
	inner := s.rest[2 : 2+n]
	inner, t.left = strings.CutPrefix(inner, "-")
	inner, t.right = strings.CutSuffix(inner, "-")
	if strings.Contains(inner, "{{") || strings.Contains(inner, "{%") || strings.Contains(inner, "%}") {
		return s.wrong("braces inside of braces: close the first ones with %s", end)
	}
	t.source = strings.Join(
		strings.FieldsFunc(strings.TrimSpace(inner), func(r rune) bool { return r == '\n' || r == '\r' }),
		" ",
	)
	if t.source == "" {
		return s.wrong("%s%s is empty", s.rest[:2], end)
	}
	if t.kind == tag {
		t.name, t.source, _ = strings.Cut(t.source, " ")
		t.source = strings.TrimSpace(t.source)
		if t.name == "raw" || t.name == "comment" {
			return s.verbatim(t, n+4)
		}
	}
	s.add(t, n+4)
	return nil
}

var endVerbatim = map[string]*regexp.Regexp{
	"raw":     regexp.MustCompile(`\{%(-?)\s*endraw\s*(-?)%\}`),
	"comment": regexp.MustCompile(`\{%(-?)\s*endcomment\s*(-?)%\}`),
}

// verbatim reads {% raw %} or {% comment %} up to its end. n is the length of the tag.
func (s *scanner) verbatim(t token, n int) error {
	at := endVerbatim[t.name].FindStringSubmatchIndex(s.rest[n:])
	if at == nil {
		return s.wrong("{%% %s %%} has no {%% end%s %%}", t.name, t.name)
	}
	out := token{kind: text, source: s.rest[n : n+at[0]]}
	if t.right {
		out.source = strings.TrimLeft(out.source, space)
	}
	if at[2] < at[3] {
		out.source = strings.TrimRight(out.source, space)
	}
	// Empty outputs carry the trimming to the text around it.
	s.add(token{kind: tag, left: t.left}, n)
	if t.name == "raw" {
		s.add(out, at[0])
	} else {
		s.line += strings.Count(s.rest[:at[0]], "\n")
		s.rest = s.rest[at[0]:]
	}
	s.add(token{kind: tag, right: at[4] < at[5]}, at[1]-at[0])
	return nil
}

const space = " \t\r\n\v\f"

var filterName = regexp.MustCompile(`^\s*(\w+)\s*(:|$)`)

// pipeline splits an expression into its value and its filters, and checks their names.
func pipeline(expr string) (parts []string, err error) {
	quote, from := byte(0), 0
	for i := 0; i < len(expr); i++ {
		switch c := expr[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '|':
			parts, from = append(parts, expr[from:i]), i+1
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quotation mark %c is not closed", quote)
	}
	parts = append(parts, expr[from:])
	for i, p := range parts[1:] {
		m := filterName.FindStringSubmatch(p)
		if m == nil {
			return nil, fmt.Errorf("%q is not a filter", strings.TrimSpace(p))
		}
		if _, ok := filters[m[1]]; !ok && m[1] != "raw" {
			return nil, fmt.Errorf("there is no filter %s; there are %s", m[1], strings.Join(filterNames(), ", "))
		}
		if m[1] == "raw" && i < len(parts)-2 {
			return nil, fmt.Errorf("raw must be the last filter")
		}
	}
	return parts, nil
}

// withoutStrings returns an expression with quotation marks in place of its quoted strings, so that all else keeps its
// place.
func withoutStrings(expr string) string {
	return quoted.ReplaceAllStringFunc(expr, func(s string) string { return strings.Repeat(`"`, len(s)) })
}

var (
	quoted = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	root   = regexp.MustCompile(`(?:^|[^\w.\-])([A-Za-z_][\w\-]*)`)
)

// roots returns the names of the variables in an expression without filters.
func roots(expr string) (names []string) {
	for _, m := range root.FindAllStringSubmatch(withoutStrings(expr), -1) {
		switch m[1] {
		case "and", "or", "contains", "in", "true", "false", "nil", "empty", "blank", "forloop":
		default:
			names = append(names, m[1])
		}
	}
	return names
}
