package liquid

import (
	"regexp"
	"strings"
)

// compared are the variables, like user.orders, that are compared with each other. The library compares lists element
// by element, without asking for the bounds.
type compared []string

var (
	comparison = regexp.MustCompile(`==|!=|>=|<=|<|>|\bcontains\b`)
	joined     = regexp.MustCompile(`\b(?:and|or)\b|,`)
	path       = regexp.MustCompile(`(?:^|[^\w.\-])([A-Za-z_][\w\-]*(?:\.[A-Za-z_][\w\-]*)*)`)
)

// comparisonsOf returns what a tag compares.
func comparisonsOf(t *token) (out []compared) {
	for _, part := range joined.Split(withoutStrings(t.source), -1) {
		if t.name == "when" || comparison.MatchString(part) {
			out = append(out, pathsOf(part))
		}
	}
	return out
}

// pathsOf returns the variables in an expression.
func pathsOf(expr string) (out compared) {
	for _, m := range path.FindAllStringSubmatch(expr, -1) {
		out = append(out, m[1])
	}
	return out
}

// block is an if, unless or case with its clauses.
type block struct {
	subject compared // of a case: each when compares it
	all     []compared
}

// weigh counts the values that a block compares in the worst case, before it does.
func (b *budget) weigh(in *block, get func(name string) any) error {
	weight := func(c compared) (n int) {
		for _, p := range c {
			n += weightOf(valueAt(p, get), maxWork, 0)
		}
		return n
	}
	subject := weight(in.subject)
	for _, c := range in.all {
		if err := b.spend(subject + weight(c)); err != nil {
			return err
		}
	}
	return b.tick()
}

// valueAt returns the value of a path, or the list or text in it that ends it.
func valueAt(p string, get func(name string) any) any {
	name, rest, more := strings.Cut(p, ".")
	v := get(name)
	for more {
		object, ok := v.(map[string]any)
		if !ok {
			if rest == "size" {
				return nil // a number
			}
			return v
		}
		name, rest, more = strings.Cut(rest, ".")
		inner, ok := object[name]
		if !ok && name == "size" {
			return nil
		}
		v = inner
	}
	return v
}

// weightOf returns what it costs to compare a value, as a number of bytes. It stops when that is more than most.
func weightOf(v any, most, depth int) int {
	n := element / 4
	switch v := v.(type) {
	case string:
		n += len(v) / 16 // a processor compares many bytes at once
	case []any:
		n += element * len(v)
		for i := 0; i < len(v) && n <= most && depth < maxDepth; i++ {
			n += weightOf(v[i], most-n, depth+1)
		}
	case map[string]any:
		n += element * len(v)
		if depth == maxDepth {
			break
		}
		for _, inner := range v {
			if n > most {
				break
			}
			n += weightOf(inner, most-n, depth+1)
		}
	}
	return n
}
