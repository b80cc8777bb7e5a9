package liquid

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxMixed is how often a condition may change between and and or.
const maxMixed = 50

const (
	blankFilter = "_blank" // reports whether a value is blank, or with false whether it is not
	emptyFilter = "_empty"
)

var (
	junction = regexp.MustCompile(`\s(and|or)\s`)
	equality = regexp.MustCompile(`^\s*(.*?)\s*(==|!=)\s*(.*?)\s*$`)
	literal  = regexp.MustCompile(`(?:^|[^\w.\-])(?:blank|empty)(?:$|[^\w.\-])`)
)

// condition returns the condition of an if, elsif or unless in the words of the Liquid library. The library does not know
// the literals blank and empty, and reads and and or from the left. In Liquid the last one counts first.
func condition(source string) (string, error) {
	hidden := withoutStrings(source)
	if strings.ContainsAny(hidden, "()") {
		if literal.MatchString(hidden) {
			return "", errors.New("a condition with blank or empty has no parentheses")
		}
		return source, nil
	}
	var out strings.Builder
	before, from, open := "", 0, 0
	for _, at := range append(junction.FindAllStringSubmatchIndex(hidden, -1), nil) {
		to, word := len(source), ""
		if at != nil {
			to, word = at[0], source[at[2]:at[3]]
		}
		if before != "" && word != "" && word != before {
			out.WriteByte('(')
			open++
		}
		out.WriteString(literally(source[from:to], hidden[from:to]))
		if at != nil {
			out.WriteString(source[at[0]:at[1]])
			before, from = word, at[1]
		}
	}
	if open > maxMixed {
		return "", fmt.Errorf("a condition changes between and and or more than %d times", maxMixed)
	}
	return out.String() + strings.Repeat(")", open), nil
}

// alternatives returns the values of a when, with commas instead of or.
func alternatives(source string) string {
	hidden := withoutStrings(source)
	var out strings.Builder
	from := 0
	for _, at := range junction.FindAllStringSubmatchIndex(hidden, -1) {
		if source[at[2]:at[3]] == "or" {
			out.WriteString(source[from:at[0]] + ", ")
			from = at[1]
		}
	}
	return out.String() + source[from:]
}

// literally returns a comparison with blank or empty as a filter, and others as they are.
func literally(source, hidden string) string {
	m := equality.FindStringSubmatchIndex(hidden)
	if m == nil {
		return source
	}
	part := func(n int) string { return source[m[2*n]:m[2*n+1]] }
	value, with := part(1), part(3)
	if value == "blank" || value == "empty" {
		value, with = with, value
	}
	if with != "blank" && with != "empty" || value == "" || strings.Contains(value, "|") {
		return source
	}
	return fmt.Sprintf("%s | _%s: %t", value, with, part(2) == "==")
}

// isBlank reports whether a value is missing, false, or has nothing but white space.
func isBlank(v any) bool {
	text, ok := v.(string)
	return isEmpty(v) || ok && strings.TrimSpace(text) == ""
}

// hasNothing reports whether a value is a text, list or object with nothing in it.
func hasNothing(v any) bool {
	return v != nil && v != false && isEmpty(v)
}
