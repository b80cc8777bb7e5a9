package templates

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

func TestPreview(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	_, err := create(t.Context(), l, user, "a", client.TemplateSource{
		TemplateContent: client.TemplateContent{Subject: "Hi {{name}}", HTML: "<p>{{ n | plus: 1 }}</p>", Text: "{{ n }}"},
		Languages:       map[string]client.TemplateContent{"de": {Subject: "Hallo {{name}}"}},
		Sender:          "Shop <shop@example.com>",
	}, true)
	require.NoError(t, err)
	to := models.Recipient{Email: "ann@example.com", Name: "Ann", Vars: map[string]string{"n": "1"}}
	p, missing, err := l.Preview(t.Context(), user, Sample{Template: "a", Language: "de-AT", To: to, JSON: []string{"n"}})
	require.NoError(t, err)
	require.Equal(t, client.Preview{
		Template: &client.TemplateUse{Name: "a", Version: 1, Language: "de"},
		Subject:  "Hallo Ann", HTML: "<p>2</p>", Text: "1",
		Headers: []client.PreviewHeader{
			{Name: "From", Value: "Shop <shop@example.com>"},
			{Name: "To", Value: `"Ann" <ann@example.com>`},
			{Name: "Subject", Value: "Hallo Ann"},
		},
		Warnings: []client.PreviewWarning{},
	}, p)
	require.Empty(t, missing)
	_, _, err = l.Preview(t.Context(), user, Sample{Template: "b", To: to})
	require.Equal(t, "/template unknown_template", code(t, err))
	_, _, err = l.Preview(t.Context(), user, Sample{Template: "a", Source: hello("x"), To: to})
	require.Equal(t, "/template conflict", code(t, err))
	_, _, err = l.Preview(t.Context(), user, Sample{To: to})
	require.Equal(t, "/subject required", code(t, err))
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	l, user := newLibrary(t)
	for _, c := range []struct {
		subject, html, text string
		want                string
	}{
		{"Hello", "<a href='https://example.com/{{name}}'>x</a><a href='#top'>x</a><a href=\"mailto:a@b.de\">x</a>", "x", ""},
		{"Hello", "{{unknown}} {{ other | upcase }} {{ third | default: 'x' }}", "x", "missing_variable missing_variable"},
		{"Hello", strings.Repeat("x", 103<<10), "x", "clipped"},
		{"Hello", "x", "", "no_text"},
		{"Hello", "<a href=''>x</a><img src=\"/logo.png\"><a href='https://'>x</a>", "x", "broken_link broken_link broken_link"},
		{"Hello", "<a href='{{url}}'>x</a>", "x", "link_from_variable"},
		{"Hello", "<a href='{{name}}'>x</a>", "x", "broken_link link_from_variable"},
		{"Re: your order", "x", "x", "subject_like_reply"},
		{"Buy now!!", "x", "x", "subject_like_spam"},
		{"FREE MONEY FOR YOU", "x", "x", "subject_like_spam"},
		{"{% if no %}x{% endif %}", "x", "x", "empty_subject"},
	} {
		p, missing, err := l.Preview(t.Context(), user, Sample{
			Source: client.TemplateSource{TemplateContent: client.TemplateContent{Subject: c.subject, HTML: c.html,
				Text: c.text}},
			To: models.Recipient{Email: "a@b.de", Name: "Ann", Vars: map[string]string{"url": "https://example.com"}},
		})
		require.NoError(t, err)
		var codes []string
		for _, w := range p.Warnings {
			codes = append(codes, w.Code)
		}
		require.Len(t, missing, strings.Count(c.want, "missing_variable"))
		require.Equal(t, c.want, strings.Join(codes, " "), c.subject+" "+c.html[:min(len(c.html), 40)])
	}
}
