package liquid

import (
	"errors"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	upstream "github.com/osteele/liquid"
	"github.com/osteele/tuesday"
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
	htmlTag   = regexp.MustCompile(`<.*?>`)
	longWidth = regexp.MustCompile(`%[^A-Za-z%]*\d{3}`)
)

// addFilters replaces the filters whose results can grow, and those that panic on some
// values.
func addFilters(e *upstream.Engine) {
	e.RegisterFilter(escapeFilter, func(s string) string { return html.EscapeString(s) })
	e.RegisterFilter(listFilter, func(v any) any {
		if v == nil {
			return []any{}
		}
		return v
	})
	e.RegisterFilter("append", func(s, suffix string) (string, error) { return short(s, suffix) })
	e.RegisterFilter("prepend", func(s, prefix string) (string, error) { return short(prefix, s) })
	e.RegisterFilter("replace", func(s, old, with string) (string, error) { return replace(s, old, with, -1) })
	e.RegisterFilter("replace_first", func(s, old, with string) (string, error) { return replace(s, old, with, 1) })
	e.RegisterFilter("remove", func(s, old string) (string, error) { return replace(s, old, "", -1) })
	e.RegisterFilter("remove_first", func(s, old string) (string, error) { return replace(s, old, "", 1) })
	e.RegisterFilter("newline_to_br", func(s string) (string, error) { return replace(s, "\n", "<br>\n", -1) })
	e.RegisterFilter("url_encode", func(s string) (string, error) { return short(url.QueryEscape(s)) })
	e.RegisterFilter("escape", func(s string) (string, error) { return short(html.EscapeString(s)) })
	e.RegisterFilter("strip_html", func(s string) string { return htmlTag.ReplaceAllString(s, "") })
	e.RegisterFilter("capitalize", func(s string) string {
		r, n := utf8.DecodeRuneInString(s)
		if n == 0 || r == utf8.RuneError {
			return s
		}
		return string(unicode.ToUpper(r)) + s[n:]
	})
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
	e.RegisterFilter("date", func(t time.Time, format func(string) string) (string, error) {
		f := format("%a, %b %d, %y")
		if len(f) > 100 || longWidth.MatchString(f) {
			return "", errDate
		}
		return tuesday.Strftime(f, t)
	})
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
			_, _ = fmt.Fprint(&b, v) // a Builder never fails
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
