package liquid

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/osteele/liquid/values"
)

var (
	errConcat = errors.New("concat needs a list")
	errSort   = errors.New("cannot sort values of different types")
)

// lists is a filter of the elements of a list. It must not change the list.
func lists(least, most int, do func(list, args []any) (any, error)) filter {
	return filter{least, most, func(v any, args []any) (any, error) { return do(listOf(v), args) }}
}

var listFilters = map[string]filter{
	"join": lists(0, 1, join),
	"concat": lists(1, 1, func(list, args []any) (any, error) {
		other, ok := args[0].([]any)
		if !ok {
			return nil, errConcat
		}
		if len(list)+len(other) > maxList {
			return nil, errLongList
		}
		return slices.Concat(list, other), nil
	}),
	"reverse": lists(0, 0, func(list, _ []any) (any, error) {
		list = slices.Clone(list)
		slices.Reverse(list)
		return list, nil
	}),
	"map":          lists(1, 1, func(list, args []any) (any, error) { return propertiesOf(list, args) }),
	"compact":      lists(0, 1, compact),
	"uniq":         lists(0, 1, uniq),
	"sort":         lists(0, 1, sorted),
	"sort_natural": lists(0, 1, sortedNaturally),
	"where":        lists(1, 2, where),
	"sum":          lists(0, 1, sum),
	"first":        {0, 0, func(v any, _ []any) (any, error) { return element0(v, false), nil }},
	"last":         {0, 0, func(v any, _ []any) (any, error) { return element0(v, true), nil }},
	"slice":        {1, 2, slice},
}

// listOf returns a value as a list without lists in it. A value that is no list is a list of one element.
func listOf(v any) []any {
	switch v := v.(type) {
	case nil:
		return []any{}
	case []any:
		return flat(v)
	}
	return []any{v}
}

// flat returns a list with the elements of the lists in it. It may be the list itself.
func flat(list []any) []any {
	isList := func(v any) bool { _, ok := v.([]any); return ok }
	if !slices.ContainsFunc(list, isList) {
		return list
	}
	var out []any
	var add func(list []any)
	add = func(list []any) {
		for _, v := range list {
			if inner, ok := v.([]any); ok {
				add(inner)
			} else {
				out = append(out, v)
			}
		}
	}
	add(list)
	return out
}

// propertyOf returns a property of a value. Only objects have properties; text and nil have nil.
func propertyOf(v any, name string) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		return v[name], nil
	case nil, string:
		return nil, nil //nolint:nilnil // nil is a value
	}
	return nil, fmt.Errorf("cannot select the property %s", name)
}

// propertiesOf returns the property of each element that the first argument names; without one, the elements.
func propertiesOf(list, args []any) ([]any, error) {
	if len(args) == 0 || args[0] == nil {
		return list, nil
	}
	name, err := textOf(args[0])
	if err != nil {
		return nil, err
	}
	out := make([]any, len(list))
	for i, v := range list {
		if out[i], err = propertyOf(v, name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func join(list, args []any) (any, error) {
	glue, err := textOf(optional(args, 0, " "))
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteString(glue)
		}
		s, err := textOf(v)
		if err != nil {
			return nil, err
		}
		if b.WriteString(s); b.Len() > maxValue {
			return nil, errLongValue
		}
	}
	return b.String(), nil
}

// compact returns a list without nil, or without elements whose property is nil.
func compact(list, args []any) (any, error) {
	keys, err := propertiesOf(list, args)
	out := []any{}
	for i, v := range list {
		if err == nil && keys[i] != nil {
			out = append(out, v)
		}
	}
	return out, err
}

// uniq returns a list without repeated elements, or without elements whose property is repeated, in linear time.
func uniq(list, args []any) (any, error) {
	keys, err := propertiesOf(list, args)
	if err != nil {
		return nil, err
	}
	seen, out := map[string]bool{}, []any{}
	for i, v := range list {
		key, err := json.Marshal(keys[i])
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

// sorted sorts numbers or text; nil is the last.
func sorted(list, args []any) (any, error) {
	return sortedBy(list, args, func(v any) (any, error) { return v, nil })
}

// sortedNaturally sorts by the text of values, whether their letters are large or small.
func sortedNaturally(list, args []any) (any, error) {
	return sortedBy(list, args, func(v any) (any, error) {
		s, err := textOf(v)
		return strings.ToLower(s), err
	})
}

func sortedBy(list, args []any, keyOf func(any) (any, error)) (any, error) {
	type pair struct{ v, key any }
	keys, err := propertiesOf(list, args)
	if err != nil {
		return nil, err
	}
	pairs := make([]pair, len(list))
	for i, v := range list {
		if pairs[i].v = v; keys[i] == nil {
			continue
		}
		if pairs[i].key, err = keyOf(keys[i]); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		c, wrong := compare(a.key, b.key)
		if wrong != nil {
			err = wrong
		}
		return c
	})
	out := make([]any, len(pairs))
	for i := range pairs {
		out[i] = pairs[i].v
	}
	return out, err
}

// compare compares two numbers or two texts; nil is after all others.
func compare(a, b any) (int, error) {
	x, isText := a.(string)
	y, isToo := b.(string)
	switch {
	case a == nil && b == nil:
		return 0, nil
	case a == nil:
		return 1, nil
	case b == nil:
		return -1, nil
	case isText && isToo:
		return strings.Compare(x, y), nil
	case !isNumber(a) || !isNumber(b):
		return 0, errSort
	}
	n, err := numberOf(a)
	if err != nil {
		return 0, err
	}
	m, err := numberOf(b)
	return n.d.Cmp(m.d), err
}

// where returns the elements whose property is a value, or without a value those that have it.
func where(list, args []any) (any, error) {
	keys, err := propertiesOf(list, args[:1])
	out := []any{}
	want := optional(args, 1, nil)
	for i, v := range list {
		if err != nil {
			break
		}
		switch got := keys[i]; {
		case want == nil && got != nil && got != false, want != nil && values.Equal(got, want):
			out = append(out, v)
		}
	}
	return out, err
}

// sum adds up the numbers of a list, or those that a property of its elements has.
func sum(list, args []any) (any, error) {
	keys, err := propertiesOf(list, args)
	total := numeral{whole: true}
	for _, v := range keys {
		n, wrong := numberOf(v)
		if wrong != nil {
			return nil, wrong
		}
		total = numeral{total.d.Add(n.d), total.whole && n.whole}
	}
	if err != nil {
		return nil, err
	}
	return total.value()
}

// element0 returns the first or last element of a list, or character of a text.
func element0(v any, last bool) any {
	at := func(n int) int {
		if last {
			return n - 1
		}
		return 0
	}
	switch v := v.(type) {
	case string:
		if r := []rune(v); len(r) > 0 {
			return string(r[at(len(r))])
		}
		return ""
	case []any:
		if len(v) > 0 {
			return v[at(len(v))]
		}
	}
	return nil
}

// slice returns a part of a text or a list.
func slice(v any, args []any) (any, error) {
	start, err := integer(args[0])
	if err != nil {
		return nil, err
	}
	n := 1
	if len(args) > 1 {
		if n, err = integer(args[1]); err != nil {
			return nil, err
		}
	}
	part := func(length int) (from, to int) {
		if start < 0 {
			start += length
		}
		if start < 0 || start >= length || n <= 0 {
			return 0, 0
		}
		return start, start + min(n, length-start)
	}
	if list, ok := v.([]any); ok {
		from, to := part(len(list))
		return slices.Clone(list[from:to]), nil
	}
	s, err := textOf(v)
	if err != nil {
		return nil, err
	}
	r := []rune(s)
	from, to := part(len(r))
	return string(r[from:to]), nil
}

// integer returns a whole number, also as text. One that is too large counts as the largest.
func integer(v any) (int, error) {
	switch v := plain(v).(type) {
	case int:
		return v, nil
	case float:
		if f := float64(v); f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return int(f), nil
		}
	case string:
		return parsedInteger(v)
	case json.Number:
		return parsedInteger(v.String())
	}
	return 0, errInteger
}

func parsedInteger(s string) (int, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, errInteger
	}
	return int(min(max(n, math.MinInt32), math.MaxInt32)), nil // no text is longer
}
