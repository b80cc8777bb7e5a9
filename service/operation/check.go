package operation

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Valid returns an error if a JSON object, to which v points, is not valid by the tags of its struct.
func Valid(v any) error {
	var f problem.Form
	Check(v, &f)
	return f.Err()
}

// Check adds to f what is wrong with a JSON object by the tags of its struct, to which v points. It leaves out fields
// that have a mistake in f already.
func Check(v any, f *problem.Form) {
	object := reflect.ValueOf(v).Elem()
	for _, field := range Fields(object.Type()) {
		field.check(object.FieldByIndex(field.index), f)
	}
}

func (m *Field) check(v reflect.Value, f *problem.Form) {
	at, name := "/"+m.Name, m.Name
	switch {
	case f.At(at):
		return
	case v.IsZero():
		if m.Required {
			f.Wrong(at, "required", "Add %s.", name)
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		m.checkString(at, v.String(), f)
	case reflect.Int, reflect.Int64:
		switch {
		case v.Int() >= int64(m.min) && (m.max == 0 || v.Int() <= int64(m.max)):
		case m.max == 0:
			f.Wrong(at, "invalid_value", "%s is a whole number from %d.", name, m.min)
		default:
			f.Wrong(at, "invalid_value", "%s is a whole number from %d to %d.", name, m.min, m.max)
		}
	case reflect.Slice, reflect.Map:
		if m.max > 0 && v.Len() > m.max {
			f.Wrong(at, "too_many", "%s may have %d values.", name, m.max)
			return
		}
		checkEach(at, name, m.each, v, f)
	default:
	}
}

func (m *Field) checkString(at, text string, f *problem.Form) {
	switch {
	case len(m.enum) > 0:
		if !slices.Contains(m.enum, text) {
			f.Wrong(at, "invalid_value", "%s is one of %s, or left out.", m.Name, strings.Join(m.enum, ", "))
		}
	case m.lines:
		if !utf8.ValidString(text) {
			f.Wrong(at, "invalid_text", "%s is not valid Unicode text.", m.Name)
		}
	case m.pattern != nil && !m.pattern.MatchString(text):
		f.Wrong(at, "invalid_name", "%s does not match %s.", m.Name, m.pattern)
	default:
		checkText(at, m.Name, m.max, text, f)
	}
}

// checkEach checks the texts of a list, or of an object.
func checkEach(at, name string, most int, v reflect.Value, f *problem.Form) {
	if most == 0 {
		return
	}
	if v.Kind() == reflect.Map {
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int {
			return strings.Compare(a.String(), b.String())
		}) {
			checkText(at+problem.Pointer(key.String()), key.String(), most, v.MapIndex(key).String(), f)
		}
		return
	}
	for i := range v.Len() {
		at := fmt.Sprintf("%s/%d", at, i)
		if v.Index(i).IsZero() {
			f.Wrong(at, "invalid_value", "A value of %s is empty.", name)
			continue
		}
		checkText(at, "A value of "+name, most, v.Index(i).String(), f)
	}
}

// checkText checks a text that is one line of at most so many characters; 0: any number.
func checkText(at, name string, most int, text string, f *problem.Form) {
	switch {
	case !utf8.ValidString(text):
		f.Wrong(at, "invalid_text", "%s is not valid Unicode text.", name)
	case most > 0 && utf8.RuneCountInString(text) > most:
		f.Wrong(at, "too_long", "%s may have at most %d characters.", name, most)
	case strings.ContainsFunc(text, models.BreaksLine):
		f.Wrong(at, "invalid_value", "%s must be one line without control characters.", name)
	}
}
