package jsontext

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// Decode reads a whole document into v, a pointer, as json.Unmarshal does, but for names of members: their case counts.
// It reports whether the document is valid and fits. Values may hold strings, booleans, integers, structs, slices,
// pointers, [Pairs], [Texts] and [Raw].
func Decode(document string, v any) bool {
	r := &reader{text: document}
	r.value(reflect.ValueOf(v).Elem())
	return r.ok()
}

// List returns the elements of a document: those of a list, or the whole document if it is one element.
func List[T any](document string, one bool) (list []T, ok bool) {
	if one {
		list = make([]T, 1)
		return list, Decode(document, &list[0])
	}
	ok = Decode(document, &list)
	return list, ok
}

// Raw is the text of a value, which is a part of the document.
type Raw string

// Texts is the Raw text of an object of strings.
type Texts string

// Pairs are the members of an object of strings, in their order.
type Pairs []message.Pair

var (
	typeRaw   = reflect.TypeFor[Raw]()
	typeTexts = reflect.TypeFor[Texts]()
	typePairs = reflect.TypeFor[Pairs]()
)

func (r *reader) value(v reflect.Value) {
	if r.peek() == 'n' {
		r.skip()
		return
	}
	switch v.Type() {
	case typeRaw:
		v.SetString(r.skip())
		return
	case typeTexts:
		v.SetString(r.part(func() {
			r.object(func(string) {
				r.bad = r.bad || r.peek() != '"'
				r.skip()
			})
		}))
		return
	case typePairs:
		list := v.Addr().Interface().(*Pairs)
		r.object(func(key string) { *list = append(*list, message.Pair{Key: key, Value: r.string()}) })
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(r.string())
	case reflect.Bool:
		text := r.skip()
		v.SetBool(text == "true")
		r.bad = r.bad || text != "true" && text != "false"
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(r.skip(), 10, 64)
		v.SetInt(n)
		r.bad = r.bad || err != nil
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.value(v.Elem())
	case reflect.Slice:
		begin := r.pos
		v.SetLen(0)
		r.list('[', ']', func() {
			if v.Len() == 8 { // elements of a long list are about equally long
				v.Grow(8 * (len(r.text) - r.pos) / (r.pos - begin))
			}
			v.Grow(1)
			v.SetLen(v.Len() + 1)
			r.value(v.Index(v.Len() - 1))
		})
	case reflect.Struct:
		fields := r.fields(v.Type())
		r.object(func(key string) {
			if i, ok := fields[key]; ok {
				r.value(v.Field(i))
			} else {
				r.skip()
			}
		})
	default:
		panic("jsontext: cannot decode " + v.Type().String())
	}
}

// fields returns the fields of a type of struct by the names of their members.
func (r *reader) fields(t reflect.Type) map[string]int {
	m, ok := r.types[t]
	if !ok {
		m = map[string]int{}
		for i := range t.NumField() {
			m[t.Field(i).Tag.Get("json")] = i
		}
		if r.types == nil {
			r.types = map[reflect.Type]map[string]int{}
		}
		r.types[t] = m
	}
	return m
}

// Members calls f for each member of an object. It reports whether the document is valid.
func (object Raw) Members(f func(key string, value Raw)) bool {
	r := &reader{text: string(object)}
	r.object(func(key string) { f(key, Raw(r.skip())) })
	return r.ok()
}

// Member returns the member of an object with the name as text. ok is false if there is none, or if it is an object, a
// list or null.
func (object Raw) Member(name string) (text string, ok bool) {
	object.Members(func(key string, value Raw) {
		if ok || key != name || value == "" || strings.IndexByte("{[n", value[0]) >= 0 {
			return
		}
		if text, ok = string(value), true; text[0] == '"' {
			text = (&reader{text: text}).string()
		}
	})
	return text, ok
}

// Strings returns the texts of a list, or the one text. ok is false if the value is neither.
func (object Raw) Strings() (list []string, ok bool) {
	text := ""
	if Decode(string(object), &text) && text != "" {
		return []string{text}, true
	}
	return list, object == "" || Decode(string(object), &list)
}
