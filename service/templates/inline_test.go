package templates

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// TestInlineCSS: mail is made from HTML with its CSS in style attributes, which the version keeps;
// what a user reads and compares is the HTML as it was written.
func TestInlineCSS(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	ctx := t.Context()
	const written = "<style>p{color:red}</style><p>{% if vip %}<b>{{name}}</b>{% endif %}</p>"
	const inlined = "<style>p{color:red}</style><p style=\"color:red\">"
	src := Source{
		Content: Content{Subject: "s", HTML: written}, InlineCSS: true,
		Languages: map[string]Content{"de": {HTML: "<style>p{color:blue}</style><p>"}, "fr": {Subject: "S"}},
	}
	given := maps.Clone(src.Languages)
	v, err := l.Create(ctx, user, "welcome", src, true)
	require.NoError(t, err)
	require.Equal(t, written, v.HTML)
	require.Equal(t, given, src.Languages, "what the caller gave is not changed")
	again, err := l.AddVersion(ctx, user, "welcome", src, true)
	require.NoError(t, err)
	require.Equal(t, 1, again.Version, "it is the same")
	read, err := l.Get(ctx, user, "welcome", 1)
	require.NoError(t, err)
	require.Equal(t, written, read.HTML)
	require.True(t, read.InlineCSS)

	for lang, want := range map[string]string{
		"": inlined + "{{_slot.h0}}</p>", "fr": inlined + "{{_slot.h0}}</p>",
		"de-AT": `<style>p{color:blue}</style><p style="color:blue">`,
	} {
		f, err := l.Use(ctx, user, "welcome", lang)
		require.NoError(t, err)
		var c models.Content
		f.Content(&c)
		require.Equal(t, want, c.HTML, lang)
	}
	to := models.Recipient{Email: "a@b.de", Name: "Ann", Vars: map[string]string{"vip": "1"}}
	sample := Sample{Source: src, Language: "fr", To: to}
	p, err := l.Preview(ctx, user, sample)
	require.NoError(t, err)
	require.Equal(t, inlined+"<b>Ann</b></p>", p.HTML)

	src.InlineCSS = false
	plain, err := l.AddVersion(ctx, user, "welcome", src, true)
	require.NoError(t, err)
	require.Equal(t, 2, plain.Version)
	f, err := l.Use(ctx, user, "welcome", "de")
	require.NoError(t, err)
	var c models.Content
	f.Content(&c)
	require.Equal(t, "<style>p{color:blue}</style><p>", c.HTML)
}

// TestInlineCSSRefused: a version whose CSS cannot be inlined is not stored, and the error has its place.
func TestInlineCSSRefused(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	_, err := l.Create(t.Context(), user, "welcome", Source{
		Content:   Content{Subject: "s", HTML: "\n<style>{{ css }}</style>"},
		Languages: map[string]Content{"de": {HTML: "{% if a %}<p>{% endif %}"}, "fr": {HTML: "{{"}},
		InlineCSS: true,
	}, false)
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	var got []string
	for _, f := range e.Fields {
		got = append(got, f.Pointer+" "+f.Code)
	}
	require.Equal(t, []string{
		"/html css_not_inlined", "/languages/de/html css_not_inlined", "/languages/fr/html invalid_template",
	}, got)
	require.Equal(t, "Line 2: there is Liquid in <style>. Change that, or leave out inline_css.", e.Fields[0].Detail)
	list, _, err := l.List(t.Context(), user, 0, "")
	require.NoError(t, err)
	require.Empty(t, list)
}
