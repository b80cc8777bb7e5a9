package liquid

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	upstream "github.com/osteele/liquid"
	"github.com/osteele/liquid/values"
	"github.com/shopspring/decimal"
)

// maxValue is the size in bytes of the largest result of a filter, and maxList the number of
// elements of the longest list.
const (
	maxValue = 64 << 10
	maxList  = 10_000
)

var (
	errLongValue = fmt.Errorf("the result of a filter has more than %d bytes", maxValue)
	errLongList  = fmt.Errorf("a list has more than %d elements", maxList)
	errDate      = errors.New("a date format has at most 100 characters and no number with more than two digits")
)

var (
	lineEnd   = regexp.MustCompile(`\r?\n`)
	entity    = regexp.MustCompile(`&(?:[A-Za-z][A-Za-z0-9]*|#\d+|#[xX][0-9A-Fa-f]+);`)
	longWidth = regexp.MustCompile(`%[^A-Za-z%]*\d{3}`)
)

// addFilters replaces the filters whose results can grow, and those that panic on some
// values.
func addFilters(e *upstream.Engine) {
	e.RegisterFilter(escapeFilter, func(v any) string { return html.EscapeString(textOf(v)) })
	e.RegisterFilter(payFilter, func(v any, p payer) (any, error) { return plain(v), p[""].pay(v) })
	e.RegisterFilter(listFilter, func(v any) any {
		if v == nil {
			return []any{}
		}
		return v
	})
	addNumbers(e)
	addTexts(e)
	e.RegisterFilter("uniq", uniq)
	e.RegisterFilter("join", join)
	e.RegisterFilter("concat", func(a, b []any) ([]any, error) {
		if len(a)+len(b) > maxList {
			return nil, errLongList
		}
		return append(append(make([]any, 0, len(a)+len(b)), a...), b...), nil
	})
	e.RegisterFilter("split", func(s, sep string) ([]string, error) {
		parts := strings.Split(s, sep)
		if sep == " " {
			parts = strings.Fields(s)
		}
		for len(parts) > 0 && parts[len(parts)-1] == "" {
			parts = parts[:len(parts)-1]
		}
		if len(parts) > maxList {
			return nil, errLongList
		}
		return parts, nil
	})
	e.RegisterFilter("slice", slice)
	e.RegisterFilter("truncate", truncate)
	e.RegisterFilter("truncatewords", truncateWords)
	e.RegisterFilter("date", date)
	e.RegisterFilter("sum", sum)
	e.RegisterFilter("where", where)
}

// addNumbers adds the filters of numbers.
func addNumbers(e *upstream.Engine) {
	for name, c := range map[string]calculation{
		"plus":       exact(decimal.Decimal.Add),
		"minus":      exact(decimal.Decimal.Sub),
		"times":      exact(decimal.Decimal.Mul),
		"divided_by": divide,
		"modulo":     modulo,
		"at_least":   pick(decimal.Decimal.GreaterThanOrEqual),
		"at_most":    pick(decimal.Decimal.LessThanOrEqual),
	} {
		e.RegisterFilter(name, c.filter)
	}
	e.RegisterFilter("ceil", rounded(decimal.Decimal.Ceil))
	e.RegisterFilter("floor", rounded(decimal.Decimal.Floor))
	e.RegisterFilter("round", round)
	e.RegisterFilter("abs", absolute)
}

// addTexts adds the filters of text.
func addTexts(e *upstream.Engine) {
	e.RegisterFilter("append", func(s, suffix any) (string, error) { return short(textOf(s), textOf(suffix)) })
	e.RegisterFilter("prepend", func(s, prefix any) (string, error) { return short(textOf(prefix), textOf(s)) })
	e.RegisterFilter("replace", func(s, old, with any) (string, error) {
		return replace(textOf(s), textOf(old), textOf(with), -1)
	})
	e.RegisterFilter("replace_first", func(s, old, with any) (string, error) {
		return replace(textOf(s), textOf(old), textOf(with), 1)
	})
	e.RegisterFilter("replace_last", func(s, old, with any) (string, error) {
		return replaceLast(textOf(s), textOf(old), textOf(with))
	})
	e.RegisterFilter("remove", func(s, old any) (string, error) { return replace(textOf(s), textOf(old), "", -1) })
	e.RegisterFilter("remove_first", func(s, old any) (string, error) { return replace(textOf(s), textOf(old), "", 1) })
	e.RegisterFilter("remove_last", func(s, old any) (string, error) { return replaceLast(textOf(s), textOf(old), "") })
	e.RegisterFilter("strip_newlines", func(s string) string { return lineEnd.ReplaceAllString(s, "") })
	e.RegisterFilter("newline_to_br", func(s string) (string, error) {
		return short(lineEnd.ReplaceAllString(s, "<br />\n"))
	})
	e.RegisterFilter("url_encode", func(s string) (string, error) { return short(url.QueryEscape(s)) })
	e.RegisterFilter("escape", func(v any) (string, error) { return short(html.EscapeString(textOf(v))) })
	e.RegisterFilter("escape_once", func(v any) (string, error) { return escapeOnce(textOf(v)) })
	e.RegisterFilter("strip_html", stripHTML)
	e.RegisterFilter("capitalize", func(s string) string {
		r, n := utf8.DecodeRuneInString(s)
		if n == 0 || r == utf8.RuneError {
			return s
		}
		return string(unicode.ToUpper(r)) + strings.ToLower(s[n:])
	})
}

// escapeOnce escapes a text, but not the entities that it has.
func escapeOnce(s string) (string, error) {
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
	return short(b.String())
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

// replaceLast replaces the last occurrence of a text.
func replaceLast(s, old, with string) (string, error) {
	i := strings.LastIndex(s, old)
	if i < 0 || old == "" {
		return s, nil
	}
	return short(s[:i], with, s[i+len(old):])
}

// where returns the elements of a list whose property is a value, or without a value those that have it.
func where(list []any, property string, value func(any) any) (out []any) {
	want := value(nil)
	for _, v := range list {
		m, ok := v.(map[string]any)
		if !ok {
			continue
		}
		switch got := m[property]; {
		case want == nil && got != nil && got != false, want != nil && values.Equal(got, want):
			out = append(out, v)
		}
	}
	return out
}

// uniq returns a list without repeated elements, in linear time.
func uniq(list []any) (out []any, err error) {
	seen := map[string]bool{}
	for _, v := range list {
		key, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		if !seen[string(key)] {
			seen[string(key)] = true
			out = append(out, v)
		}
	}
	return out, nil
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

func join(list []any, sep func(string) string) (string, error) {
	s := sep(" ")
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteString(s)
		}
		if v != nil {
			b.WriteString(textOf(v))
		}
		if b.Len() > maxValue {
			return "", errLongValue
		}
	}
	return b.String(), nil
}

func slice(s string, start int, length func(int) int) string {
	r, n := []rune(s), length(1)
	if start < 0 {
		start += len(r)
	}
	if start < 0 || start >= len(r) || n <= 0 {
		return ""
	}
	return string(r[start : start+min(n, len(r)-start)])
}

func truncate(s string, length func(int) int, ellipsis func(string) string) string {
	r, n, end := []rune(s), length(50), []rune(ellipsis("..."))
	if len(r) <= n {
		return s
	}
	return string(r[:max(n-len(end), 0)]) + string(end)
}

func truncateWords(s string, length func(int) int, ellipsis func(string) string) string {
	words, n := strings.Fields(s), max(length(15), 1)
	if len(words) <= n {
		return s
	}
	return strings.Join(words[:n], " ") + ellipsis("...")
}
