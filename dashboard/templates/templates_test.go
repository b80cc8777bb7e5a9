package templates

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/service/operation"
)

func TestChanges(t *testing.T) {
	t.Parallel()
	require.Equal(t, []change{{"", "a"}, {"-", "b"}, {"+", "x"}, {"", "c"}, {"+", "d"}}, changes("a\nb\nc", "a\nx\nc\nd"))
	require.Equal(t, []change{{"", "a"}}, changes("a", "a"))
	require.Len(t, changes(strings.Repeat("\n", 3000), "a"), 1)
}

// TestTemplateIsShown: the page of a template shows each of its fields.
func TestTemplateIsShown(t *testing.T) {
	t.Parallel()
	page := func(of *client.Template) string {
		form := web.NewForm(operation.FormOf(&of.TemplateSource))
		view := &templateView{Name: of.Name, Form: form, Version: of.Version, Info: &of.TemplateInfo}
		parts, err := views.Parts("template", web.Page{Data: view}, "content")
		require.NoError(t, err)
		return string(parts["content"])
	}
	testkit.Shown(t, page, map[string]string{
		"ID": "templates have names", "Newest": "the versions are listed",
		"CreatedAt": "each version has its time", "UpdatedAt": "each version has its time",
	}, func(of *client.Template) { of.State, of.Schema = client.TemplatePublished, []byte("{}") },
		func(of *client.Template) { of.State = client.TemplateArchived })
}
