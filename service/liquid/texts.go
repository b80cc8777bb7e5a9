package liquid

import (
	"errors"
	"html"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

var (
	lineEnd = regexp.MustCompile(`\r?\n`)
	entity  = regexp.MustCompile(`&(?:[A-Za-z][A-Za-z0-9]*|#\d+|#[xX][0-9A-Fa-f]+);`)
	escape  = regexp.MustCompile(`%[0-9A-Fa-f]{2}|\+`)
)

var errNotText = errors.New("the decoded text is not valid UTF-8")

// rubySpace are the characters that Ruby takes for space (String#strip).
const rubySpace = "\x00\t\n\v\f\r "

// texts is a filter of text, whose arguments are text, too.
func texts(least, most int, do func(s string, args []string) (string, error)) filter {
	return filter{least, most, func(v any, args []any) (any, error) {
		s, err := textOf(v)
		if err != nil {
			return nil, err
		}
		out := make([]string, len(args))
		for i, a := range args {
			if out[i], err = textOf(a); err != nil {
				return nil, err
			}
		}
		return do(s, out)
	}}
}

// changed is a filter of text without arguments.
func changed(do func(s string) string) filter {
	return texts(0, 0, func(s string, _ []string) (string, error) { return do(s), nil })
}

// replacing is a filter that replaces n occurrences of its argument by another one; -1: all, 0: the last.
func replacing(most, n int) filter {
	return texts(1, most, func(s string, args []string) (string, error) {
		with := ""
		if len(args) > 1 {
			with = args[1]
		}
		if n == 0 {
			return replaceLast(s, args[0], with)
		}
		return replace(s, args[0], with, n)
	})
}

var textFilters = map[string]filter{
	"append":         texts(1, 1, func(s string, args []string) (string, error) { return short(s, args[0]) }),
	"prepend":        texts(1, 1, func(s string, args []string) (string, error) { return short(args[0], s) }),
	"replace":        replacing(2, -1),
	"replace_first":  replacing(2, 1),
	"replace_last":   replacing(2, 0),
	"remove":         replacing(1, -1),
	"remove_first":   replacing(1, 1),
	"remove_last":    replacing(1, 0),
	"downcase":       changed(strings.ToLower),
	"upcase":         changed(func(s string) string { return cases.Upper(language.Und).String(s) }),
	"capitalize":     changed(capitalize),
	"escape":         changed(html.EscapeString),
	"escape_once":    changed(escapeOnce),
	"strip":          changed(func(s string) string { return strings.Trim(s, rubySpace) }),
	"lstrip":         changed(func(s string) string { return strings.TrimLeft(s, rubySpace) }),
	"rstrip":         changed(func(s string) string { return strings.TrimRight(s, rubySpace) }),
	"strip_html":     changed(stripHTML),
	"strip_newlines": changed(func(s string) string { return lineEnd.ReplaceAllString(s, "") }),
	"newline_to_br":  changed(func(s string) string { return lineEnd.ReplaceAllString(s, "<br />\n") }),
	"url_encode":     changed(url.QueryEscape),
	"url_decode": texts(0, 0, func(s string, _ []string) (string, error) {
		s = escape.ReplaceAllStringFunc(s, func(e string) string {
			c, _ := url.QueryUnescape(e) // it is a valid one
			return c
		})
		if !utf8.ValidString(s) {
			return "", errNotText
		}
		return strings.ReplaceAll(s, mark, ""), nil
	}),
	"truncate":      {0, 2, truncate},
	"truncatewords": {0, 2, truncateWords},
	"split":         {1, 1, split},
}

// short joins parts unless the result is too long.
func short(parts ...string) (string, error) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > maxValue {
		return "", errLongValue
	}
	return strings.Join(parts, ""), nil
}

func replace(s, old, with string, n int) (string, error) {
	count := strings.Count(s, old)
	if n >= 0 {
		count = min(count, n)
	}
	if len(s)+count*(len(with)-len(old)) > maxValue {
		return "", errLongValue
	}
	return strings.Replace(s, old, with, n), nil
}

// replaceLast replaces the last occurrence of a text.
func replaceLast(s, old, with string) (string, error) {
	i := strings.LastIndex(s, old)
	if i < 0 {
		return s, nil
	}
	return short(s[:i], with, s[i+len(old):])
}

// capitalize makes the first letter large and all others small.
func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 || r == utf8.RuneError {
		return s
	}
	return string(unicode.ToUpper(r)) + strings.ToLower(s[n:])
}

// escapeOnce escapes a text, but not the entities that it has.
func escapeOnce(s string) string {
	var b strings.Builder
	for s != "" {
		at := entity.FindStringIndex(s)
		if at == nil {
			b.WriteString(html.EscapeString(s))
			break
		}
		b.WriteString(html.EscapeString(s[:at[0]]) + s[at[0]:at[1]])
		s = s[at[1]:]
	}
	return b.String()
}

// stripHTML removes tags, comments, and the content of scripts and styles. It takes linear time: an end that was not
// found is not looked for again.
func stripHTML(s string) string {
	var b strings.Builder
	none := map[string]bool{} // ends that do not follow
	lower := strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.ToValidUTF8(s, "?") // of the same length
	cut := func(from int, end string) int {
		if none[end] {
			return -1
		}
		i := strings.Index(lower[from:], end)
		if i < 0 {
			none[end] = true
			return -1
		}
		return from + i + len(end)
	}
	for at := 0; at < len(s); {
		i := strings.IndexByte(s[at:], '<')
		if i < 0 {
			b.WriteString(s[at:])
			break
		}
		b.WriteString(s[at : at+i])
		at += i
		next := -1
		for _, block := range [...][2]string{{"<script", "</script>"}, {"<style", "</style>"}, {"<!--", "-->"}} {
			if strings.HasPrefix(lower[at:], block[0]) {
				next = cut(at, block[1])
			}
		}
		if next < 0 {
			next = cut(at, ">")
		}
		if next < 0 { // no tag ends any more
			b.WriteString(s[at:])
			break
		}
		at = next
	}
	return b.String()
}

// truncate cuts a text to a number of characters, those of the ellipsis among them.
func truncate(v any, args []any) (any, error) {
	n, err := integer(optional(args, 0, 50))
	if err != nil || v == nil {
		return nil, err
	}
	s, err := textOf(v)
	if err != nil {
		return nil, err
	}
	end, err := textOf(optional(args, 1, "..."))
	if err != nil {
		return nil, err
	}
	r := []rune(s)
	if len(r) <= n {
		return s, nil
	}
	return short(string(r[:min(max(n-utf8.RuneCountInString(end), 0), len(r))]), end)
}

// truncateWords cuts a text to a number of words.
func truncateWords(v any, args []any) (any, error) {
	n, err := integer(optional(args, 0, 15))
	if err != nil || v == nil {
		return nil, err
	}
	s, err := textOf(v)
	if err != nil {
		return nil, err
	}
	end, err := textOf(optional(args, 1, "..."))
	if err != nil {
		return nil, err
	}
	words := wordsOf(s)
	if n = max(n, 1); len(words) <= n {
		return s, nil
	}
	return short(strings.Join(words[:n], " "), end)
}

// wordsOf returns what stands between space.
func wordsOf(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(rubySpace, r) })
}

// split cuts a text at a separator, and leaves out empty parts at its end.
func split(v any, args []any) (any, error) {
	s, err := textOf(v)
	if err != nil {
		return nil, err
	}
	separator, err := textOf(args[0])
	if err != nil {
		return nil, err
	}
	if separator != " " && strings.Count(s, separator) > maxList+len(args) {
		return nil, errLongList
	}
	parts := strings.Split(s, separator)
	if separator == " " {
		parts = wordsOf(s)
	}
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	out := make([]any, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return out, nil
}
