package testkit

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Shown checks that a page shows each field of a T: if the field is empty, the page is another one. That must be so in
// one of the cases, which change a T whose fields are all filled. hidden has the fields that are not shown, and why.
func Shown[T any](t *testing.T, page func(v *T) string, hidden map[string]string, cases ...func(v *T)) {
	t.Helper()
	filled := func(change func(*T)) (*T, reflect.Value) {
		v, n := new(T), 0
		fill(reflect.ValueOf(v).Elem(), "", &n)
		change(v)
		return v, reflect.ValueOf(v).Elem()
	}
	known := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		shown := false
		for _, change := range cases {
			v, fields := filled(change)
			before := page(v)
			fields.FieldByIndex(f.Index).SetZero()
			shown = shown || page(v) != before
		}
		known[f.Name] = true
		if why := hidden[f.Name]; shown == (why != "") {
			t.Errorf("%T: shows the page %s? %t; why not: %q", *new(T), f.Name, shown, why)
		}
	}
	for name := range hidden {
		if !known[name] {
			t.Errorf("%T has no field %s", *new(T), name)
		}
	}
}

// fill fills a value and what is in it, each part with another value. enum lists the values that a text may have.
func fill(v reflect.Value, enum string, n *int) {
	*n++
	if at, ok := v.Addr().Interface().(*time.Time); ok {
		*at = time.Date(2026, 1, *n, 12, 0, 0, 0, time.UTC)
		return
	}
	switch v.Kind() {
	case reflect.String:
		text, _, _ := strings.Cut(enum, ",")
		if v.SetString(text); text == "" {
			v.SetString(fmt.Sprint("text", *n))
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n)) //nolint:gosec // it is small
	case reflect.Float64:
		v.SetFloat(1 / float64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), enum, n)
	case reflect.Interface:
		v.Set(reflect.ValueOf("text"))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), enum, n)
	case reflect.Array:
		fill(v.Index(0), enum, n)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, "", n)
		fill(value, enum, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				fill(v.Field(i), f.Tag.Get("enum"), n)
			}
		}
	default:
	}
}
