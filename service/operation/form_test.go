package operation

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/problem"
)

type window struct {
	From string   `json:"from"`
	To   string   `json:"to"`
	Days []string `json:"days"`
}

type content struct {
	Subject string `json:"subject,omitempty"`
	HTML    string `json:"html,omitempty" lines:"any"`
}

// everyKind has a member of each kind that forms have.
type everyKind struct {
	content
	On        bool               `json:"on,omitempty"`
	Count     int                `json:"count,omitempty" min:"1" max:"5"`
	Most      *int64             `json:"most,omitempty"`
	List      []string           `json:"list,omitempty"`
	At        time.Time          `json:"at,omitzero"`
	Schema    json.RawMessage    `json:"schema,omitempty"`
	Values    map[string]any     `json:"values,omitempty"`
	Window    *window            `json:"window,omitempty"`
	Languages map[string]content `json:"languages,omitempty" max:"3"`
}

// pointers returns the mistakes that an error lists.
func pointers(t *testing.T, err error) (out []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	for _, f := range e.Fields {
		out = append(out, f.Pointer+" "+f.Code+" "+f.Detail)
	}
	return out
}

// TestReadForm: a form has each kind of a value, and a form with these values reads the same.
func TestReadForm(t *testing.T) {
	t.Parallel()
	most := int64(0)
	want := everyKind{
		content: content{"Hi", "a\nb\n"}, On: true, Count: 3, Most: &most, List: []string{"x", "y", "Ann, <a@x>"},
		At:     time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC),
		Schema: json.RawMessage(`{"a": 1}`), Values: map[string]any{"b": "c"},
		Window: &window{From: "09:00", To: "17:00", Days: []string{"monday", "friday"}},
		Languages: map[string]content{
			"de-AT": {Subject: "Servus"}, "fr": {},
		},
	}
	form := url.Values{
		"subject": {" Hi "}, "html": {"a\r\nb\r\n"}, "on": {"yes"}, "count": {" 3 "}, "most": {"0"},
		"list": {"x,y;x", "y\r\n\"Ann, \"<a@x>"}, "at": {"2031-01-02T03:04:05Z"}, "schema": {`{"a": 1}`},
		"values": {`{"b": "c"}`}, "window/from": {"09:00"}, "window/to": {"17:00"}, "window/days": {"monday", "friday"},
		"languages/de-AT/subject": {"Servus"}, "languages/fr/subject": {""}, "languages/fr/html": {""}, "do": {"save"},
	}
	want.List[2] = `"Ann, "<a@x>`
	var got everyKind
	require.NoError(t, ReadForm(&got, form, "do"))
	require.Equal(t, want, got)

	delete(want.Languages, "fr") // it says nothing
	shown := FormOf(&want)
	require.Equal(t, url.Values{
		"subject": {"Hi"}, "html": {"a\nb\n"}, "on": {"yes"}, "count": {"3"}, "most": {"0"}, "list": want.List,
		"at": {"2031-01-02T03:04:05Z"}, "schema": {"{\n  \"a\": 1\n}"}, "values": {"{\n  \"b\": \"c\"\n}"},
		"window/from": {"09:00"}, "window/to": {"17:00"}, "window/days": {"monday", "friday"},
		"languages/de-AT/subject": {"Servus"},
	}, shown)
	shown.Set("schema", form.Get("schema"))
	again := everyKind{}
	require.NoError(t, ReadForm(&again, shown))
	require.Equal(t, want, again)
}

// TestReadEmptyForm: empty fields are absent. An empty list is there, so that a form can clear one.
func TestReadEmptyForm(t *testing.T) {
	t.Parallel()
	form := url.Values{}
	for _, name := range []string{"subject", "html", "on", "count", "most", "list", "at", "schema", "values",
		"window/from", "window/to"} {
		form.Set(name, "")
	}
	var got everyKind
	require.NoError(t, ReadForm(&got, form))
	require.Equal(t, everyKind{List: []string{}}, got)
}

// TestReadFormSpans: a time may be a span from now.
func TestReadFormSpans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for text, span := range map[string]time.Duration{"720h": 720 * time.Hour, "-24h": -24 * time.Hour} {
			var got everyKind
			require.NoError(t, ReadForm(&got, url.Values{"at": {text}}))
			require.Equal(t, time.Now().Add(span).UTC(), got.At)
		}
	})
}

// TestReadFormMistakes: a mistake has the pointer, the code and the text that it has in JSON.
func TestReadFormMistakes(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]struct{ text, want string }{
		"count":        {"few", "/count wrong_type count must be a whole number."},
		"most":         {"1.5", "/most wrong_type most must be a whole number."},
		"at":           {"soon", "/at invalid_value at must be an RFC 3339 time with a zone, like 2026-01-31T12:00:00Z."},
		"schema":       {"{", "/schema wrong_type schema must be an object."},
		"values":       {"{} {}", "/values wrong_type values must be an object."},
		"subject":      {"a\xff", "/subject invalid_text subject is not valid Unicode text."},
		"window/from":  {"\xff", "/window/from invalid_text from is not valid Unicode text."},
		"window/form":  {"9", "/window/form unknown_field There is no field with this name. Did you mean window/from?"},
		"cuont":        {"", "/cuont unknown_field There is no field with this name. Did you mean count?"},
		"languages/de": {"x", "/languages/de unknown_field There is no field with this name."},
	} {
		require.Equal(t, []string{c.want}, pointers(t, ReadForm(new(everyKind), url.Values{field: {c.text}})), field)
	}
}

// TestReadFormWithTooMany: only as many objects are read as the limit of their field allows.
func TestReadFormWithTooMany(t *testing.T) {
	t.Parallel()
	values := url.Values{}
	for _, name := range []string{"de", "en", "fr", "it"} {
		values.Set("languages/"+name+"/subject", "x")
	}
	in := new(everyKind)
	require.Equal(t, "/languages too_many languages may have 3 values.", pointers(t, ReadForm(in, values))[0])
	require.Len(t, in.Languages, 3)
}

// TestReadFormOfOperation: parts of the path come only from there, and so do switches of the query. A form that names
// them gets nothing that its page does not give.
func TestReadFormOfOperation(t *testing.T) {
	t.Parallel()
	type request struct {
		ByID
		All  bool   `query:"everyone"`
		Why  string `query:"why"`
		Body content
	}
	o := Reading(Operation{Name: "change", Route: "PUT /v1/things/{id}"},
		func(context.Context, caller.Caller, *request) (Nothing, error) { return Nothing{}, nil })
	require.Equal(t, http.StatusNoContent, o.Status)
	path := map[string]string{"id": "mine"}
	form := url.Values{"id": {"yours"}, "why": {" so "}, "subject": {"Hi"}}
	in := o.New()
	require.NoError(t, o.ReadForm(in, form, func(name string) string { return path[name] }))
	require.Equal(t, &request{ByID: ByID{"mine"}, Why: "so", Body: content{Subject: "Hi"}}, in)
	path["everyone"] = "true"
	require.NoError(t, o.ReadForm(in, form, func(name string) string { return path[name] }))
	require.True(t, in.(*request).All)
	form.Set("everyone", "true")
	require.Equal(t, []string{"/everyone unknown_field There is no field with this name."},
		pointers(t, o.ReadForm(in, form, func(name string) string { return path[name] })))
}

// FuzzReadForm: a form that can be read is shown as one that can be read.
func FuzzReadForm(f *testing.F) {
	f.Add("subject=Hi&on=yes&count=3&list=a,b&at=-24h&schema={}&values={}")
	f.Add("window/from=09:00&window/days=monday&languages/de/html=x&languages//html=")
	f.Add("count=few&at=soon&list=%ff&languages=x&window=x&nothing")
	f.Fuzz(func(t *testing.T, query string) {
		form, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		var got, again everyKind
		if ReadForm(&got, form) == nil {
			require.Empty(t, pointers(t, ReadForm(&again, FormOf(&got))), "%v", FormOf(&got))
		}
	})
}
