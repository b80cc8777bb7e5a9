// Package match selects recipients by pattern.
package match

import (
	"fmt"
	"regexp"
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
