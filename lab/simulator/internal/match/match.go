// Package match selects recipients by pattern and events by name.
package match

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Pattern selects recipient addresses, ignoring case. The nil Pattern selects
// all.
type Pattern struct{ re *regexp.Regexp }

// Compile reads a glob (* any text, ? one character), or a regular
// expression if text begins with ^ or is between slashes.
func Compile(text string) (*Pattern, error) {
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
	return &Pattern{re}, nil
}

// Match reports whether the address is selected.
func (p *Pattern) Match(addr string) bool { return p == nil || p.re.MatchString(addr) }

// Names selects events by their names, ignoring case. The empty list selects all.
type Names []string

// ParseNames reads names that are separated by commas or spaces.
func ParseNames(list string) Names {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// Has reports whether any of the names is selected.
func (n Names) Has(any ...string) bool {
	if len(n) == 0 {
		return true
	}
	for _, name := range any {
		if name != "" && slices.ContainsFunc(n, func(s string) bool { return strings.EqualFold(s, name) }) {
			return true
		}
	}
	return false
}
