package sendgrid

import (
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/service/intake"
)

// substitutes turns the keys of substitutions, which are any texts, into placeholders whose values stand as they are.
type substitutes struct {
	keys     []string // the longest first
	replacer *strings.Replacer
}

// newSubstitutes returns the substitutes of some personalizations.
func newSubstitutes(q *request, parts []int) *substitutes {
	s := &substitutes{}
	seen := map[string]bool{}
	for _, i := range parts {
		for key := range substitutions(q.parts[i]) {
			if !seen[key] && key != "" {
				seen[key], s.keys = true, append(s.keys, key)
			}
		}
	}
	slices.SortFunc(s.keys, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	var pairs []string
	for i, key := range s.keys { // a brace before a placeholder would belong to it
		pairs = append(pairs, "{"+key, intake.Raw(2*i+1), key, intake.Raw(2*i))
	}
	s.replacer = strings.NewReplacer(append(pairs, "{{", "{{{{")...)
	return s
}

func substitutions(p dialect.Object) dialect.Object {
	out, _ := p.Object("substitutions") // no object: there are none
	return out
}

// text returns a text with placeholders.
func (s *substitutes) text(text string) string { return s.replacer.Replace(text) }

// values returns the values of the placeholders for a personalization. A key without a value stays.
func (s *substitutes) values(p dialect.Object) []string {
	own, out := substitutions(p), make([]string, 0, 2*len(s.keys))
	for _, key := range s.keys {
		value := key
		if _, ok := own[key]; ok {
			value = own.Text(key)
		}
		out = append(out, value, "{"+value)
	}
	return out
}
