package operation

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/problem"
)

type inner struct {
	Name string `json:"name" required:"true" max:"3"`
}

type outer struct {
	Note string `json:"note,omitempty"`
}

type body struct {
	inner
	outer  `required:"note"`
	Kind   string            `json:"kind,omitempty" enum:"a,b"`
	Rate   int               `json:"rate,omitempty" min:"2" max:"5"`
	List   []string          `json:"list,omitempty" max:"2" each:"3"`
	Fields map[string]string `json:"fields,omitempty" max:"2" each:"3"`
	At     time.Time         `json:"at,omitzero"`
	Text   string            `json:"text,omitempty" lines:"any"`
	Tag    string            `json:"tag,omitempty" pattern:"^[a-z]{1,3}$"`
	Count  int               `json:"count,omitempty" min:"1"`
	Own    string            `json:"-"`
}

// TestCheck: each limit of a tag is kept, and names the field.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(b *body)
		want   []string
	}{
		"right":         {func(b *body) { b.Kind, b.Rate, b.List, b.At = "a", 5, []string{"äöü", "x"}, time.Now() }, nil},
		"right texts":   {func(b *body) { b.Text, b.Tag, b.Count = "a\nb", "abc", 1 }, nil},
		"embedded":      {func(b *body) { b.Note = "" }, []string{"/note required"}},
		"no lines":      {func(b *body) { b.Text = "\xff" }, []string{"/text invalid_text"}},
		"no match":      {func(b *body) { b.Tag = "ab-" }, []string{"/tag invalid_name"}},
		"no maximum":    {func(b *body) { b.Count = -1 }, []string{"/count invalid_value"}},
		"missing":       {func(b *body) { b.Name = "" }, []string{"/name required"}},
		"long":          {func(b *body) { b.Name = "abcd" }, []string{"/name too_long"}},
		"two lines":     {func(b *body) { b.Name = "a\nb" }, []string{"/name invalid_value"}},
		"no text":       {func(b *body) { b.Name = "\xff" }, []string{"/name invalid_text"}},
		"not listed":    {func(b *body) { b.Kind = "c" }, []string{"/kind invalid_value"}},
		"small":         {func(b *body) { b.Rate = 1 }, []string{"/rate invalid_value"}},
		"large":         {func(b *body) { b.Rate = 6 }, []string{"/rate invalid_value"}},
		"many":          {func(b *body) { b.List = []string{"a", "b", "c"} }, []string{"/list too_many"}},
		"empty element": {func(b *body) { b.List = []string{"a", ""} }, []string{"/list/1 invalid_value"}},
		"long element":  {func(b *body) { b.List = []string{"abcd"} }, []string{"/list/0 too_long"}},
		"members": {
			func(b *body) { b.Fields = map[string]string{"a/b": "abcd", "c": "\x00"} },
			[]string{"/fields/a~1b too_long", "/fields/c invalid_value"},
		},
		"several": {func(b *body) { b.Kind, b.Rate = "c", 9 }, []string{"/kind invalid_value", "/rate invalid_value"}},
	} {
		b := body{inner: inner{"abc"}, outer: outer{"x"}}
		c.change(&b)
		var f problem.Form
		Check(&b, &f)
		var got []string
		if e, ok := f.Err().(*problem.Error); ok { //nolint:errorlint // Form returns this type
			for _, m := range e.Fields {
				got = append(got, m.Pointer+" "+m.Code)
			}
		}
		require.Equal(t, c.want, got, name)
	}
}

// TestCheckOnce: a field that has a mistake gets no other one.
func TestCheckOnce(t *testing.T) {
	t.Parallel()
	var f problem.Form
	f.Wrong("/name", "invalid_name", "A name has three letters.")
	Check(&body{inner: inner{"abcd"}, outer: outer{"x"}}, &f)
	require.Equal(t, 1, f.Found())
}

// TestFields: embedded structs add their members, and pointers lead to all of them.
func TestFields(t *testing.T) {
	t.Parallel()
	var names []string
	for _, f := range Fields(reflect.TypeFor[body]()) {
		names = append(names, f.Name)
	}
	require.Equal(t, "name note kind rate list fields at text tag count", strings.Join(names, " "))
	b := body{}
	pointers := Pointers(reflect.ValueOf(&b))
	*(pointers["name"].(*string)) = "x"
	*(pointers["rate"].(*int)) = 7
	require.Equal(t, body{inner: inner{"x"}, Rate: 7}, b)
	require.NotContains(t, pointers, "-")
}

// TestVerb: a route that does something with a thing has a verb, and others have none.
func TestVerb(t *testing.T) {
	t.Parallel()
	for route, want := range map[string][2]string{
		"POST /v1/batches/{id}/stop":         {"batches", "stop"},
		"POST /v1/templates/{name}/archive":  {"templates", "archive"},
		"GET /v1/batches/{id}/logs":          {},
		"POST /v1/batches":                   {},
		"POST /v1/batches/bulk/stop":         {},
		"POST /v1/users/{id}/keys/{key}/end": {},
	} {
		o := Operation{Route: route}
		things, verb := o.Verb()
		require.Equal(t, want, [2]string{things, verb}, route)
	}
	o := Operation{Route: "POST /v1/users/{id}/keys", Status: http.StatusCreated}
	things, _ := o.Verb()
	require.Empty(t, things)
}
