package liquid

import (
	"errors"
	"fmt"
	"html"
	"maps"
	"slices"
	"strings"

	upstream "github.com/osteele/liquid"
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
	errArguments = errors.New("wrong number of arguments")
	errInteger   = errors.New("invalid integer")
)

// filter is a filter of the reference implementation (Shopify/liquid, standardfilters.rb).
type filter struct {
	least, most int // number of arguments
	do          func(v any, args []any) (any, error)
}

// call calls the filter.
func (f filter) call(v any, args ...any) (any, error) {
	if len(args) < f.least || len(args) > f.most {
		return nil, errArguments
	}
	out, err := f.do(v, args)
	switch out := out.(type) {
	case string:
		if len(out) > maxValue {
			return nil, errLongValue
		}
	case []any:
		if len(out) > maxList && err == nil {
			return nil, errLongList
		}
	}
	return out, err
}

// filters are those that a template may use, besides raw, by their names.
var filters = func() map[string]filter {
	all := map[string]filter{
		"default": {0, 1, func(v any, args []any) (any, error) {
			if !isEmpty(v) {
				return v, nil
			}
			return optional(args, 0, ""), nil
		}},
		"size": {0, 0, func(v any, _ []any) (any, error) { return length(v), nil }},
		"date": {0, 1, date},
	}
	maps.Copy(all, textFilters)
	maps.Copy(all, listFilters)
	maps.Copy(all, numberFilters)
	return all
}()

// filterNames returns the names of all filters, in order.
func filterNames() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range filters {
			if !yield(name) {
				return
			}
		}
		yield("raw")
	})
}

// addFilters adds all filters to an engine, and those that Compile writes.
func addFilters(e *upstream.Engine) {
	for name, f := range filters {
		e.RegisterFilter(name, f.call)
	}
	show := func(v any, p payer) (string, error) {
		if err := p[""].pay(v); err != nil {
			return "", err
		}
		return shownOf(v)
	}
	e.RegisterFilter(showFilter, show)
	e.RegisterFilter(escapeFilter, func(v any, p payer) (string, error) {
		s, err := show(v, p)
		return html.EscapeString(s), err
	})
	e.RegisterFilter(blankFilter, func(v any, want bool) bool { return isBlank(v) == want })
	e.RegisterFilter(emptyFilter, func(v any, want bool) bool { return hasNothing(v) == want })
	e.RegisterFilter(payFilter, func(v any, p payer) (any, error) { return plain(v), p[""].pay(v) })
	e.RegisterFilter(listFilter, func(v any, p payer) (any, error) {
		switch v := v.(type) {
		case nil:
			return []any{}, nil
		case map[string]any:
			if err := p[""].spend(4 * element * len(v)); err != nil {
				return nil, err
			}
			pairs := make([]any, 0, len(v)) // in order, so that each rendering is the same
			for _, key := range slices.Sorted(maps.Keys(v)) {
				pairs = append(pairs, []any{key, v[key]})
			}
			return pairs, nil
		}
		return v, nil
	})
}

// optional returns an argument, or a value if it is not given or nil.
func optional(args []any, n int, otherwise any) any {
	if n < len(args) && args[n] != nil {
		return args[n]
	}
	return otherwise
}

// isEmpty reports whether a value is one that the filter default replaces.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// length returns the number of characters, elements or members of a value.
func length(v any) int {
	switch v := v.(type) {
	case string:
		return len([]rune(v))
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

// shownOf returns what an output shows of a value: of a list, its elements without anything between them.
func shownOf(v any) (string, error) {
	list, ok := v.([]any)
	if !ok {
		return textOf(v)
	}
	var b strings.Builder
	for _, e := range flat(list) {
		s, err := textOf(e)
		if err != nil {
			return "", err
		}
		if b.WriteString(s); b.Len() > maxValue {
			return "", errLongValue
		}
	}
	return b.String(), nil
}

// textOf returns the text of a value. The error is that it is too long.
func textOf(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case []any, map[string]any:
		var b strings.Builder
		inspect(&b, v)
		if b.Len() > maxValue {
			return "", errLongValue
		}
		return b.String(), nil
	}
	return fmt.Sprint(plain(v)), nil
}

// inspect writes a list or an object as Ruby does, until it is longer than a value may be.
func inspect(b *strings.Builder, v any) {
	if b.Len() > maxValue {
		return
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("nil")
	case string:
		b.WriteString(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(v) + `"`)
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if b.Len() > maxValue {
				return
			}
			if i > 0 {
				b.WriteString(", ")
			}
			inspect(b, e)
		}
		b.WriteByte(']')
	case map[string]any:
		b.WriteByte('{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if b.Len() > maxValue {
				return
			}
			if i > 0 {
				b.WriteString(", ")
			}
			inspect(b, key)
			b.WriteString("=>")
			inspect(b, v[key])
		}
		b.WriteByte('}')
	default:
		_, _ = fmt.Fprint(b, plain(v)) // a Builder never fails
	}
}
