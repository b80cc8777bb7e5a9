package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestTemplates pushes templates from files, publishes and previews them.
func TestTemplates(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("welcome/subject.txt", "Hello {{name}}\n")
	write("welcome/body.html", "<style>p{top:0}</style><p>{% for i in items %}{{ i }}{% endfor %}{{city}}</p>")
	write("welcome/body.txt", "text")
	write(
		"welcome/template.yaml",
		"sender: shop@example.com\nallow_raw: true\ndefaults: {city: Wien}\nschema:\n  properties:\n    n: {type: integer}\n",
	)
	write("welcome/de/subject.txt", "Hallo {{name}}")
	write("README.md", "not a template")

	out, _ := d.run("template push " + dir)
	require.Equal(t, "welcome: version 1 is a draft\n", out)
	out, _ = d.run("template push " + dir + " --publish")
	require.Equal(t, "welcome: version 1 is published\n", out, "it is the same version")
	write("welcome/body.txt", "other text")
	out, _ = d.run("template push " + dir)
	require.Equal(t, "welcome: version 2 is a draft\n", out)
	out, _ = d.run("template list")
	require.Regexp(t, `(?m)^welcome +published +1 +2 +`, out)
	out, _ = d.run("template publish welcome 2")
	require.Equal(t, "welcome: version 2 is published\n", out)
	out, _ = d.run("template show welcome --user ada")
	require.Contains(t, out, `"text": "other text"`)
	require.Regexp(t, `(?m)^2 +\S+ +true\n1 +\S+ +false$`, out)
	out, _ = d.run("template show welcome --user ada --json")
	require.Regexp(t, `^{.*"version":2,.*"versions":\[{"version":2,.*{"version":1,.*}\]}\n$`, out)
	out, _ = d.run("template list --json")
	require.Regexp(t, `^{"name":"welcome","state":"published","published":2,"newest":2,"updated":"20.*Z"}\n$`, out)
	out, _ = d.run("template preview welcome --json --name Bob --language de")
	require.Regexp(t, `^{.*"subject":"Hallo Bob",.*}\n$`, out)
	out, _ = d.run(`template preview welcome --name Bob --language de-AT --vars {"items":["<a>",2]}`)
	require.Equal(t, "From: shop@example.com\nTo: \"Bob\" <ann@example.com>\nSubject: Hallo Bob\n\nother text\n\n"+
		"<style>p{top:0}</style><p>&lt;a&gt;2Wien</p>\n", out)
	out, _ = d.run(`template preview welcome@1`)
	require.Contains(t, out, "\ntext\n")

	write("bad/subject.txt", "x")
	write("bad/body.txt", "a\n{% if %}")
	_, err := readTemplate(os.DirFS(dir), "bad")
	require.NoError(t, err)
	for line, want := range map[string]string{
		"template push " + dir: "bad: The request is not valid; nothing was changed. See errors.\n  " +
			"text: Line 2: {% if %} has no condition.",
		"template show nothing":                  "there is no template nothing",
		"template publish welcome x":             "x is not the number of a version",
		"template preview welcome --vars x":      "--vars is not a JSON object",
		"template preview nothing":               "You have no template",
		"template push " + dir + "/welcome/body": "no such file",
	} {
		var o, e strings.Builder
		c := &cli{streams: streams{out: &o, err: &e}, args: strings.Fields(line), handler: d.api, by: "zoe"}
		require.NotZero(t, c.run(t.Context()), line)
		require.Contains(t, e.String(), want, line)
	}
	write("bad/template.yaml", "colour: red")
	_, err = readTemplate(os.DirFS(dir), "bad")
	require.ErrorContains(t, err, `bad/template.yaml: json: unknown field "colour"`)
	var src client.TemplateSource
	src, err = readTemplate(os.DirFS(dir), "welcome")
	require.NoError(t, err)
	require.Equal(t, map[string]client.TemplateContent{"de": {Subject: "Hallo {{name}}"}}, src.Languages)
}
