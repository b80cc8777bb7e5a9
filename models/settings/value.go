package settings

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Parse gives a value from a file, a variable or a tag the type of its setting. It returns nil for an empty value
// that is no text: the setting is then not set.
func Parse(t reflect.Type, value any) (any, error) {
	if list, ok := value.([]any); ok && t.Kind() != reflect.Slice {
		return nil, fmt.Errorf("must be one value, and not %d", len(list))
	}
	if _, ok := value.(map[string]any); ok {
		return nil, errors.New("must be a value, and not a section")
	}
	text := strings.TrimSpace(fmt.Sprint(value))
	if t.Kind() != reflect.String && t.Kind() != reflect.Slice && (value == nil || text == "") {
		return nil, nil
	}
	switch {
	case value == nil:
		return nil, nil
	case t == reflect.TypeFor[time.Duration]():
		if d, err := time.ParseDuration(text); err == nil {
			return d, nil
		}
		return nil, fmt.Errorf("%q is not a duration: a number with its unit, like 90s, 15m or 168h", text)
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
		return nil, fmt.Errorf("%q is not a whole number", text)
	case t.Kind() == reflect.Float64:
		if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
			return n, nil
		}
		return nil, fmt.Errorf("%q is not a number", text)
	case t.Kind() == reflect.Bool:
		if b, err := strconv.ParseBool(text); err == nil {
			return b, nil
		}
		return nil, fmt.Errorf("%q is neither true nor false", text)
	case t.Kind() == reflect.Slice:
		return list(value), nil
	}
	return fmt.Sprint(value), nil
}

// list returns the values of a setting that has several: a list, or a text in which commas separate them.
func list(value any) []string {
	values, ok := value.([]any)
	if !ok {
		for v := range strings.SplitSeq(fmt.Sprint(value), ",") {
			values = append(values, v)
		}
	}
	var out []string
	for _, v := range values {
		if text := strings.TrimSpace(fmt.Sprint(v)); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// Check checks a value against the tags range and oneof of its setting.
func Check(f reflect.StructField, value any) error {
	if words := f.Tag.Get("oneof"); words != "" {
		values, ok := value.([]string)
		if !ok {
			values = []string{value.(string)} //nolint:forcetypeassert // only texts have words
		}
		for _, v := range values {
			if !slices.Contains(strings.Split(words, ","), v) {
				return fmt.Errorf("%q must be one of %s", v, strings.ReplaceAll(words, ",", ", "))
			}
		}
	}
	limits := f.Tag.Get("range")
	if limits == "" {
		return nil
	}
	n, _ := strconv.ParseFloat(fmt.Sprint(reflect.ValueOf(value)), 64)
	if d, ok := value.(time.Duration); ok {
		n = d.Seconds()
	}
	least, most, _ := strings.Cut(limits, "..")
	switch from, _ := strconv.ParseFloat(least, 64); {
	case limits == ">0" && n <= 0:
		return errors.New("must be more than 0")
	case most == "" && n < from:
		return fmt.Errorf("must be %s or more", least)
	}
	if to, err := strconv.ParseFloat(most, 64); err == nil {
		if from, _ := strconv.ParseFloat(least, 64); n < from || n > to {
			return fmt.Errorf("must be from %s to %s", least, most)
		}
	}
	return nil
}
