package templates

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/store/memory"
)

// always says that there is room.
func always(context.Context, string) error { return nil }

func newLibrary(t *testing.T) (*Library, string) {
	t.Helper()
	return New(memory.Open(t), always), models.NewUserID()
}

func create(
	ctx context.Context, l *Library, user, name string, src client.TemplateSource, publish bool,
) (client.Template, error) {
	in := client.NewTemplateVersion{TemplateSource: src, Publish: publish}
	return l.Create(ctx, user, &client.NewTemplate{Name: name, NewTemplateVersion: in})
}

func addVersion(
	ctx context.Context, l *Library, user, name string, src client.TemplateSource, publish bool,
) (client.Template, error) {
	return l.AddVersion(ctx, user, name, &client.NewTemplateVersion{TemplateSource: src, Publish: publish})
}

func hello(subject string) client.TemplateSource {
	return client.TemplateSource{TemplateContent: client.TemplateContent{Subject: subject, Text: "Hello {{name}}"}}
}

// code returns the code of an error, or of its first field with the pointer.
func code(t *testing.T, err error) string {
	t.Helper()
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	if len(e.Fields) > 0 {
		return e.Fields[0].Pointer + " " + e.Fields[0].Code
	}
	return e.Code
}

// TestLife: a template is a draft, is published, rolled back, archived and published again.
func TestLife(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	ctx := t.Context()
	used := func() string {
		f, err := l.Use(ctx, user, "welcome", "")
		if err != nil {
			return code(t, err)
		}
		var c models.Content
		f.Content(&c)
		return fmt.Sprint(f.Use.Version, " ", c.Subject)
	}
	require.Equal(t, "/template unknown_template", used())
	v, err := create(ctx, l, user, "welcome", hello("one"), false)
	require.NoError(t, err)
	require.Equal(t, client.TemplateDraft, v.State)
	require.Equal(t, 1, v.Version)
	require.Equal(t, "/template template_not_published", used())
	f, err := l.Use(ctx, user, "welcome@1", "")
	require.NoError(t, err, "a number needs no publication")
	require.Equal(t, 1, f.Use.Version)

	again, err := create(ctx, l, user, "welcome", hello("one"), false)
	require.NoError(t, err)
	require.Equal(t, v, again, "a repeat changes nothing")
	_, err = create(ctx, l, user, "welcome", hello("two"), false)
	require.Equal(t, "template_exists", code(t, err))

	_, err = l.Publish(ctx, user, "welcome", 1)
	require.NoError(t, err)
	require.Equal(t, "1 one", used())
	v, err = addVersion(ctx, l, user, "welcome", hello("two"), false)
	require.NoError(t, err)
	require.Equal(t, 2, v.Version)
	require.Equal(t, "1 one", used(), "a draft is not used")
	v, err = addVersion(ctx, l, user, "welcome", hello("two"), true)
	require.NoError(t, err)
	require.Equal(t, 2, v.Version, "it is the same")
	require.Equal(t, "2 two", used())
	_, err = l.Publish(ctx, user, "welcome", 1)
	require.NoError(t, err)
	require.Equal(t, "1 one", used(), "rolled back")
	_, err = l.Publish(ctx, user, "welcome", 3)
	require.Equal(t, "/version unknown_version", code(t, err))

	info, err := l.Archive(ctx, user, "welcome")
	require.NoError(t, err)
	require.Equal(t, client.TemplateArchived, info.State)
	require.Equal(t, "/template template_archived", used())
	_, err = l.Publish(ctx, user, "welcome", 2)
	require.NoError(t, err)
	require.Equal(t, "2 two", used())

	old, err := l.Get(ctx, user, "welcome", 1)
	require.NoError(t, err)
	require.Equal(t, hello("one"), old.TemplateSource, "a version never changes")
	for _, other := range []func() error{
		func() error { _, err := l.Get(ctx, models.NewUserID(), "welcome", 0); return err },
		func() error { _, err := l.Get(ctx, user, "welcome", 9); return err },
		func() error { _, err := addVersion(ctx, l, user, "nothing", hello("x"), false); return err },
		func() error { _, err := l.Archive(ctx, user, "a/b"); return err },
	} {
		require.Equal(t, "not_found", code(t, other()))
	}
	for _, ref := range []string{"welcome@", "welcome@0", "welcome@x", "a b", "@1"} {
		_, err := l.Use(ctx, user, ref, "")
		require.Equal(t, "/template invalid_value", code(t, err), ref)
	}
}

// TestRace: of versions that are added at the same time, none is lost.
func TestRace(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	_, err := create(t.Context(), l, user, "a", hello("0"), true)
	require.NoError(t, err)
	var all sync.WaitGroup
	var mu sync.Mutex
	numbers := map[int]string{}
	for i := range 6 {
		all.Go(func() {
			subject := fmt.Sprint("s", i)
			v, err := addVersion(t.Context(), l, user, "a", hello(subject), false)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				numbers[v.Version] = subject
			} else if code(t, err) != "changed_meanwhile" {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.NotEmpty(t, numbers)
	for n, subject := range numbers {
		v, err := l.Get(t.Context(), user, "a", n)
		require.NoError(t, err)
		require.Equal(t, subject, v.Subject)
	}
}

// cutStore fails the writes of heads.
type cutStore struct {
	models.DocumentStore
	cut bool
}

func (s *cutStore) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	if s.cut && kind == headKind {
		return models.ErrUnavailable
	}
	return s.DocumentStore.PutDocument(ctx, owner, kind, d)
}

// TestCutOff: a request that was cut off between its two writes leaves nothing that can be
// seen, and others work on.
func TestCutOff(t *testing.T) {
	t.Parallel()
	s := &cutStore{DocumentStore: memory.Open(t)}
	l, user, ctx := New(s, always), models.NewUserID(), t.Context()
	s.cut = true
	_, err := create(ctx, l, user, "a", hello("lost"), true)
	require.Error(t, err)
	s.cut = false
	_, err = l.Get(ctx, user, "a", 0)
	require.Equal(t, "not_found", code(t, err))
	v, err := create(ctx, l, user, "a", hello("other"), true)
	require.NoError(t, err)
	got, err := l.Get(ctx, user, "a", 0)
	require.NoError(t, err)
	require.Equal(t, "other", got.Subject)
	require.Equal(t, v.Version, got.Version)
}

// TestManyAndMuch: a template has at most 1,000 versions, and those of all templates of a user at most 1 GiB. What
// is stored already stays usable, and other users have a gigabyte of their own.
func TestManyAndMuch(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	ctx := t.Context()
	v, err := create(ctx, l, user, "a", hello("first"), true)
	require.NoError(t, err)
	_, err = l.change(ctx, user, "a", false, func(h *head) error {
		for n := 2; n <= maxVersions; n++ {
			h.Versions = append(h.Versions, version{Number: n})
		}
		return nil
	})
	require.NoError(t, err)
	_, err = addVersion(ctx, l, user, "a", hello("next"), true)
	require.Equal(t, "too_many_versions", code(t, err))

	add := func(user string) error {
		_, err := create(ctx, l, user, "b", hello("second"), true)
		return err
	}
	_, _, err = models.ChangeDocument(ctx, l.store, user, sizeKind, sizeKey, func(total *int, _ int) error {
		require.Greater(t, *total, len("first"))
		*total = MaxTotal - 10
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "too_many_templates", code(t, add(user)))
	_, err = create(ctx, l, user, "a", v.TemplateSource, true)
	require.Equal(t, "template_exists", code(t, err), "it is not the newest version")
	got, err := l.Get(ctx, user, "a", 1)
	require.NoError(t, err)
	require.Equal(t, "first", got.Subject)
	require.NoError(t, add(models.NewUserID()))
}

func TestLists(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	ctx := t.Context()
	for _, name := range []string{"b", "a", "c"} {
		_, err := create(ctx, l, user, name, hello(name), false)
		require.NoError(t, err)
	}
	for i := 2; i <= 5; i++ {
		_, err := addVersion(ctx, l, user, "a", hello(fmt.Sprint(i)), i == 3)
		require.NoError(t, err)
	}
	var names []string
	for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
		list, next, err := l.List(ctx, user, 2, cursor)
		require.NoError(t, err)
		for _, i := range list {
			names = append(names, i.Name)
		}
		cursor = next
	}
	require.Equal(t, []string{"a", "b", "c"}, names)
	var numbers []string
	for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
		list, next, err := l.Versions(ctx, user, "a", 2, cursor)
		require.NoError(t, err)
		for _, v := range list {
			numbers = append(numbers, fmt.Sprint(v.Version, v.Published))
		}
		cursor = next
	}
	require.Equal(t, []string{"5 false", "4 false", "3 true", "2 false", "1 false"}, numbers)
	for _, p := range []struct {
		limit  int
		cursor string
	}{{-1, ""}, {501, ""}, {0, "x"}} {
		_, _, err := l.List(ctx, user, p.limit, p.cursor)
		require.Equal(t, "invalid_query", errCode(err))
	}
}

func errCode(err error) string {
	var e *problem.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// TestMistakes: all mistakes in a source are reported together, with pointers and lines.
func TestMistakes(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	_, err := create(t.Context(), l, user, "a b", client.TemplateSource{
		TemplateContent: client.TemplateContent{Subject: "two\nlines", HTML: "a\n{% if x %}"},
		Sender:          "none",
		Category:        "a b",
		Defaults:        map[string]any{"_slot.h0": "x", "1": "y"},
		Schema:          json.RawMessage(`{"type": 7}`),
		Languages:       map[string]client.TemplateContent{"de": {Text: "{{ x | nope }}"}, "x y": {Text: "t"}, "fr": {}},
	}, false)
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	var got []string
	for _, f := range e.Fields {
		got = append(got, f.Pointer+" "+f.Code)
	}
	require.Equal(t, []string{
		"/name invalid_name", "/sender invalid_address", "/category invalid_name", "/defaults/1 invalid_name",
		"/defaults/_slot.h0 invalid_name", "/schema invalid_schema", "/html invalid_template", "/subject invalid_header",
		"/languages/de/text invalid_template", "/languages/fr required", "/languages/x y invalid_name",
	}, got)
	require.Contains(t, e.Fields[6].Detail, "Line 2: {% if %} has no {% endif %}.")
}

// TestSchemaLoadsNothing: a schema reads no file and no address.
func TestSchemaLoadsNothing(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		`{"$ref": "https://example.com/schema.json"}`, `{"$ref": "file:///etc/passwd"}`,
		`{"properties": {"a": {"$ref": "#"}}}`,
		`{"$schema": "https://example.com/meta.json"}`, `{"$schema": "file:///etc/passwd"}`,
		`{"allOf": [{"$dynamicRef": "#x"}]}`, `[]`, `{`, `{"pattern": "("}`,
	} {
		_, err := compileSchema(json.RawMessage(schema))
		require.Error(t, err, schema)
	}
	_, err := compileSchema(
		json.RawMessage(`{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}`),
	)
	require.NoError(t, err)
}

// fill fills a source for a recipient whose variables are JSON.
func fill(t *testing.T, src client.TemplateSource, lang, vars string) []problem.FieldError {
	t.Helper()
	f, err := newFiller(&src, lang)
	require.NoError(t, err)
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(vars), &raw))
	r := models.Recipient{Email: "ann@example.com", Name: "Ann", Vars: map[string]string{}}
	var names []string
	for name, v := range raw {
		var s string
		if json.Unmarshal(v, &s) != nil {
			names, s = append(names, name), string(v)
		}
		r.Vars[name] = s
	}
	wrong, err := f.Fill(t.Context(), &r, names, nil)
	require.NoError(t, err)
	var c models.Content
	f.Content(&c)
	return append(wrong, problem.FieldError{
		Code: "=", Detail: r.Fill(c.Subject, nil) + "/" + r.Fill(c.Text, nil) + "/" + r.Fill(c.HTML, models.EscapeHTML),
	})
}

func TestFill(t *testing.T) {
	t.Parallel()
	src := client.TemplateSource{
		TemplateContent: client.TemplateContent{
			Subject: "Hi {{name}} {{ n | plus: 1 }}",
			Text:    "{% for i in items %}{{ i.title }},{% endfor %}{{city}}",
			HTML:    "<p>{{ email }}{% if vip %} {{ city | upcase }}{% endif %}</p>",
		},
		Defaults:  map[string]any{"city": "B & B", "n": 1},
		Schema:    json.RawMessage(`{"properties": {"n": {"type": "integer", "maximum": 9}, "city": {"minLength": 2}}}`),
		Languages: map[string]client.TemplateContent{"de": {Subject: "Hallo {{name}}"}, "de-AT": {Text: "Servus {{name}}"}},
	}
	for _, c := range []struct{ lang, vars, want string }{
		{"", `{"items": [{"title": "<a>"}, {"title": "b"}], "vip": true}`, "Hi Ann 2/<a>,b,B & B/<p>ann@example.com B &amp; B</p>"},
		{"", `{"vip": false, "n": 3, "city": "X<Y"}`, "Hi Ann 4/X<Y/<p>ann@example.com</p>"},
		{"de", `{}`, "Hallo Ann/B & B/<p>ann@example.com</p>"},
		{"de-CH", `{}`, "Hallo Ann/B & B/<p>ann@example.com</p>"},
		{"de-AT", `{}`, "Hallo Ann/Servus Ann/"},
		{"fr", `{}`, "Hi Ann 2/B & B/<p>ann@example.com</p>"},
	} {
		got := fill(t, src, c.lang, c.vars)
		require.Equal(t, []problem.FieldError{{Code: "=", Detail: c.want}}, got, c.lang)
	}
	for vars, want := range map[string]string{
		`{"n": 10}`:           "/vars/n schema_mismatch",
		`{"n": "x"}`:          "/vars/n schema_mismatch",
		`{"city": "x"}`:       "/vars/city schema_mismatch",
		`{"city": ["a","b"]}`: "/vars/city wrong_type",
	} {
		got := fill(t, src, "", vars)
		require.Equal(t, want, got[0].Pointer+" "+got[0].Code, vars)
	}
	src = client.TemplateSource{TemplateContent: client.TemplateContent{Subject: "s", Text: "a\n{{ 1 | divided_by: n }}"}}
	got := fill(t, src, "", `{"n": 0}`)
	require.Equal(t, "template_failed", got[0].Code)
	require.True(t, strings.HasPrefix(got[0].Detail, "text of the template in the request, line 2: "), got[0].Detail)
}
