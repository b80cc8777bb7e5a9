package operation

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/service/problem"
)

// ReadForm decodes a form into a request that New returned, as the API decodes its body. part returns a part of the
// path, or "". Switches of the query are read only from there, and its texts from the form, too. own are the fields of
// the page itself.
func (o *Operation) ReadForm(in any, values url.Values, part func(name string) string, own ...string) error {
	v, body := reflect.ValueOf(in).Elem(), any(&struct{}{})
	own = slices.Clone(own)
	for _, p := range o.params {
		switch field, text := v.FieldByIndex(p.Field.Index), part(p.Name); field.Kind() {
		case reflect.Bool:
			field.SetBool(text == "true")
			continue
		case reflect.String:
			field.SetString(cmp.Or(text, strings.TrimSpace(values.Get(p.Name))))
		default:
		}
		own = append(own, p.Name)
	}
	if b := v.FieldByName("Body"); b.IsValid() {
		body = b.Addr().Interface()
	}
	return ReadForm(body, values, own...)
}

// ReadForm decodes the fields of a form into the JSON object that v points to. The pointer of a member is a slash and
// the name of its field: a window has the fields send_window/from and send_window/to. Only a text may be empty; any
// other empty field is absent. These are the forms of values:
//
//   - a switch is on if its field has any text, so that it is a check box;
//   - a list has the Words of all fields with its name, so that it is a line, a text area or several check boxes;
//   - a time is RFC 3339, or a span from now like 720h or -24h;
//   - what is none of these, nor a text, a number or an object with fields of its own, is JSON.
//
// Fields that the object lacks are mistakes, unless they are named in own.
func ReadForm(v any, values url.Values, own ...string) error {
	r := formReader{values: values, known: slices.Clone(own)}
	r.object("", reflect.ValueOf(v).Elem())
	slices.Sort(r.known)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, known := slices.BinarySearch(r.known, name); !known {
			r.form.Wrong("/"+name, "unknown_field", "There is no field with this name.%s", nearest.Meant(name, r.known))
		}
	}
	return r.form.Err()
}

// formReader decodes the fields of a form.
type formReader struct {
	values url.Values
	known  []string
	form   problem.Form
}

// object decodes the fields whose names begin with a prefix.
func (r *formReader) object(prefix string, v reflect.Value) {
	for _, f := range Fields(v.Type()) {
		at, field := prefix+f.Name, v.FieldByIndex(f.index)
		below := at + "/"
		switch t := field.Type(); {
		case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct:
			names := Below(r.values, at)
			if f.max > 0 && len(names) > f.max { // each takes time with the size of the form
				r.form.Wrong("/"+at, "too_many", "%s may have %d values.", f.Name, f.max)
				names = names[:f.max]
			}
			for _, name := range names {
				if field.IsNil() {
					field.Set(reflect.MakeMap(t))
				}
				element := reflect.New(t.Elem()).Elem()
				r.object(below+name+"/", element)
				field.SetMapIndex(reflect.ValueOf(name), element)
			}
		case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
			element := reflect.New(t.Elem())
			if r.object(below, element.Elem()); r.filled(below) {
				field.Set(element)
			}
		default:
			r.known = append(r.known, at)
			if texts := r.values[at]; len(texts) > 0 {
				r.value(at, &f, field, texts)
			}
		}
	}
}

// filled reports whether a field is not empty whose name begins with a prefix.
func (r *formReader) filled(prefix string) bool {
	for name, texts := range r.values {
		if strings.HasPrefix(name, prefix) && strings.TrimSpace(strings.Join(texts, "")) != "" {
			return true
		}
	}
	return false
}

// value decodes a field that is no object.
func (r *formReader) value(at string, f *Field, v reflect.Value, texts []string) {
	text := strings.TrimSpace(texts[0])
	if !utf8.ValidString(strings.Join(texts, "")) {
		r.form.Wrong("/"+at, "invalid_text", "%s is not valid Unicode text.", f.Name)
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.SetString(text); f.lines {
			v.SetString(strings.ReplaceAll(texts[0], "\r\n", "\n"))
		}
		return
	case reflect.Bool:
		v.SetBool(text != "")
		return
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[[]string]() {
			v.Set(reflect.ValueOf(Words(texts...)))
			return
		}
	default:
	}
	if text == "" {
		return
	}
	field := v.Addr().Interface()
	into, isTime := field.(*time.Time)
	if !isTime {
		if !json.Valid([]byte(text)) || !DecodeJSON(field, []byte(text)) {
			r.form.Wrong("/"+at, "wrong_type", "%s must be %s.", f.Name, KindOf(field))
		}
		return
	}
	span, err := time.ParseDuration(text)
	if *into = time.Now().Add(span).UTC().Truncate(time.Second); err != nil {
		*into, err = time.Parse(time.RFC3339, text)
	}
	if err != nil {
		r.form.Wrong("/"+at, "invalid_value", "%s must be %s.", f.Name, ATime)
	}
}

// Words returns the elements of lists that were typed, each once: lines are split at commas and semicolons, and at
// spaces unless it is an address with a name.
func Words(texts ...string) []string {
	out, found := []string{}, map[string]bool{}
	for line := range strings.Lines(strings.Join(texts, "\n")) {
		for _, part := range Split(line) {
			words := []string{part}
			if !strings.ContainsAny(part, `<"(`) {
				words = strings.Fields(part)
			}
			for _, word := range words {
				if !found[word] {
					found[word] = true
					out = append(out, word)
				}
			}
		}
	}
	return out
}

// Split splits a line at commas and semicolons outside of quotes, comments and angle brackets.
func Split(line string) []string {
	var out []string
	begin, comments, quoted, angled := 0, 0, false, false
	add := func(end int) {
		if one := strings.TrimSpace(line[begin:end]); one != "" {
			out = append(out, one)
		}
		begin = end + 1
	}
	for i, c := range line {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			comments++
		case c == ')' && comments > 0:
			comments--
		case comments > 0:
		case c == '<' || c == '>':
			angled = c == '<'
		case (c == ',' || c == ';') && !angled:
			add(i)
		}
	}
	add(len(line))
	return out
}

// Below returns the names of the objects within the object that a name leads to, as the fields of a form have them.
func Below(values url.Values, at string) []string {
	found := map[string]bool{}
	for name := range values {
		if rest, ok := strings.CutPrefix(name, at+"/"); ok {
			rest, _, _ = strings.Cut(rest, "/")
			found[rest] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// FormOf returns the fields of a form from which ReadForm reads the JSON object that v points to. Members that are
// empty have no field.
func FormOf(v any) url.Values {
	out := url.Values{}
	writeForm(out, "", reflect.ValueOf(v).Elem())
	return out
}

func writeForm(out url.Values, prefix string, v reflect.Value) {
	for _, f := range Fields(v.Type()) {
		at, field := prefix+f.Name, v.FieldByIndex(f.index)
		switch t := field.Type(); {
		case field.IsZero():
		case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct:
			for _, key := range field.MapKeys() {
				writeForm(out, at+"/"+key.String()+"/", field.MapIndex(key))
			}
		case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
			writeForm(out, at+"/", field.Elem())
		case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Int64:
			out.Set(at, strconv.FormatInt(field.Elem().Int(), 10))
		case t.Kind() == reflect.Bool:
			out.Set(at, "yes")
		case t.Kind() == reflect.String:
			out.Set(at, field.String())
		case t == reflect.TypeFor[time.Time]():
			out.Set(at, field.Interface().(time.Time).Format(time.RFC3339)) //nolint:forcetypeassert // it is one
		case t == reflect.TypeFor[[]string]():
			out[at] = field.Interface().([]string) //nolint:forcetypeassert // it is one
		default:
			out.Set(at, indented(field.Interface()))
		}
	}
}

// indented returns a value as JSON for people.
func indented(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // it was decoded from JSON
	return strings.TrimSpace(b.String())
}
