package settings

import (
	"fmt"
	"reflect"
	"strings"
)

// Default returns a T with the defaults of its settings.
func Default[T any]() T {
	var c T
	each(&c, func(_ reflect.StructField, field, value reflect.Value) { field.Set(value) })
	return c
}

// Fill sets the fields of *c that are 0 and have a default, unless 0 is in their range.
func Fill[T any](c *T) {
	each(c, func(f reflect.StructField, field, value reflect.Value) {
		if field.IsZero() && !strings.HasPrefix(f.Tag.Get("range"), "0") {
			field.Set(value)
		}
	})
}

// each calls do with each field of *c that has a default, also in embedded structs and in sections.
func each(c any, do func(f reflect.StructField, field, value reflect.Value)) {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		text, has := f.Tag.Lookup("default")
		switch {
		case !f.IsExported():
		case has:
			do(f, v.Field(i), defaultOf(f, text))
		case f.Type.Kind() == reflect.Struct && (f.Anonymous || f.Tag.Get("koanf") != ""):
			each(v.Field(i).Addr().Interface(), do)
		}
	}
}

// defaultOf returns the default of a setting. It panics if the tag is wrong.
func defaultOf(f reflect.StructField, text string) reflect.Value {
	value, err := Parse(f.Type, text)
	if err == nil {
		err = Check(f, value)
	}
	if err != nil {
		panic(fmt.Sprintf("settings: the default of %s: %v", f.Name, err))
	}
	return reflect.ValueOf(value).Convert(f.Type)
}
