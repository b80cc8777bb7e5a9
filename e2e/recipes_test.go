//go:build full

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestRecipes sends mail from the frameworks of docs/recipes with the code of their pages: one with an attachment and
// an inline image to an address, one in cc and one in bcc, and one to two addresses.
func TestRecipes(t *testing.T) {
	for name, recipe := range map[string]struct {
		page, language, file string // where the code is, and where it belongs
		program              string // sends the mail
		command              []string
	}{
		"Django":  {"django.md", "python", "myproject/safedelivr.py", "send.py", []string{"venv/bin/python", "send.py"}},
		"Rails":   {"rails.md", "ruby", "config/initializers/safedelivr.rb", "send.rb", []string{"ruby", "send.rb"}},
		"Laravel": {"laravel.md", "php", "app/Mail/SafedelivrTransport.php", "send.php", []string{"php", "send.php"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, testkit.Embedded(), simulator.Options{KeepContent: true})
			r.start(r.addr, nil, "serve")
			folder := t.TempDir()
			p := &clientPackage{t: t, rig: r, user: folder}
			page, err := os.ReadFile(filepath.Join("..", "docs", "recipes", recipe.page))
			require.NoError(t, err)
			code := regexp.MustCompile("(?s)```" + recipe.language + "\n(.*?)```").FindSubmatch(page)
			require.NotNil(t, code)
			p.write(recipe.file, code[1])
			program, err := os.ReadFile(filepath.Join("testdata", "recipes", recipe.program))
			require.NoError(t, err)
			p.write(recipe.program, program)
			if name == "Django" {
				p.run(folder, "python3", "-m", "venv", "venv")
				p.run(folder, "venv/bin/pip", "install", "--quiet", "django==5.2.19", "requests==2.32.5")
			}
			p.run(folder, recipe.command[0], recipe.command[1:]...)

			r.checkRecipe()
		})
	}
}

// checkRecipe requires the two batches of a recipe's program.
func (r *rig) checkRecipe() {
	r.t.Helper()
	batches := map[string]client.Batch{}
	for b, err := range r.client.Batches(r.t.Context(), client.ListOptions{}) {
		require.NoError(r.t, err)
		batches[b.Subject] = r.done(r.id(b.ID))
	}
	require.Len(r.t, batches, 2)
	require.EqualValues(r.t, 2, batches["To several"].Counts.Delivered)
	one := batches["Invoice {{{{x}}"]
	require.EqualValues(r.t, 3, one.Counts.Delivered)
	roles := map[string]string{}
	for _, l := range r.logs(r.id(one.ID), "delivered") {
		roles[l.Email] = l.Role
	}
	require.Equal(r.t, map[string]string{"ann@demo.test": "to", "cc@demo.test": "cc", "bcc@demo.test": "bcc"}, roles)
	copies := r.sim.Copies(r.id(one.ID).Log(1).String())
	require.Len(r.t, copies, 1)
	mail := copies[0]
	require.Equal(r.t, []string{"cc@demo.test"}, mail.Visible)
	require.Equal(r.t, "help@demo.test", mail.Headers["Reply-To"])
	require.Equal(r.t, "Invoice {{x}}", mail.Subject)
	require.Equal(r.t, "Dear {{x}}", strings.TrimSpace(mail.Text))
	require.Len(r.t, mail.Attachments, 2)
	files := map[string]simulator.Attachment{}
	for _, a := range mail.Attachments {
		files[a.Type] = a
	}
	require.Equal(r.t, "invoice.txt", files["text/plain"].Filename)
	require.Equal(r.t, len("42.00"), files["text/plain"].Size)
	require.Equal(r.t, len("GIF89a"), files["image/gif"].Size)
	require.Contains(r.t, mail.HTML, `src="cid:`+files["image/gif"].ContentID+`"`)
	require.NotEmpty(r.t, files["image/gif"].ContentID)
}

// write writes a file into the folder of the user.
func (p *clientPackage) write(name string, content []byte) {
	p.t.Helper()
	path := filepath.Join(p.user, name)
	require.NoError(p.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(p.t, os.WriteFile(path, content, 0o600))
}
