package simulator

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A pattern selects recipient addresses, without regard to case. The nil
// pattern selects all.
type pattern struct{ re *regexp.Regexp }

// compilePattern reads a glob (* any text, ? one character), or a regular
// expression if text begins with ^ or stands between slashes.
func compilePattern(text string) (*pattern, error) {
	if text == "" {
		return nil, nil
	}
	var expr string
	switch {
	case len(text) > 1 && text[0] == '/' && text[len(text)-1] == '/':
		expr = text[1 : len(text)-1]
	case text[0] == '^':
		expr = text
	default:
		expr = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(text))
		expr = "^" + expr + "$"
	}
	re, err := regexp.Compile("(?is)" + expr)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	return &pattern{re}, nil
}

func (p *pattern) match(addr []byte) bool { return p == nil || p.re.Match(addr) }

// names is a choice of event names; the empty choice means all of them.
type names []string

func parseNames(list string) names {
	return strings.FieldsFunc(strings.ToLower(list), func(r rune) bool { return r == ',' || r == ' ' })
}

func (n names) has(any ...string) bool {
	if len(n) == 0 {
		return true
	}
	for _, name := range any {
		if name != "" && slices.Contains(n, name) {
			return true
		}
	}
	return false
}
