//go:build full

package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recipe returns the settings of an application in docs/switch.md, one a line, with the addresses of the product. If the
// page has several rows of the application, has is in the right one.
func (f *foreign) recipe(s *submission, application, has string) string {
	f.t.Helper()
	page, err := os.ReadFile("../docs/switch.md")
	require.NoError(f.t, err)
	for line := range strings.Lines(string(page)) {
		row, found := strings.CutPrefix(line, "| "+application+" |")
		if !found || !strings.Contains(row, has) {
			continue
		}
		var settings []string
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
			settings = append(settings, code[1])
		}
		host, port, _ := strings.Cut(s.plain, ":")
		return strings.NewReplacer("https://mail.example.com", "http://"+f.addr, "mail.example.com", host, "587", port).
			Replace(strings.Join(settings, "\n") + "\n")
	}
	require.Fail(f.t, "docs/switch.md has no row", "%s %s", application, has)
	return ""
}

// TestDjangoCorpus sends the corpus with Django, by SMTP and by the APIs that anymail speaks, with the settings of
// docs/switch.md.
func TestDjangoCorpus(t *testing.T) {
	for _, way := range []struct {
		backend, application, has string
		refused                   string
		without                   []string
	}{
		{backend: "smtp", application: "Django", refused: "535"},
		{backend: "mailgun", application: "Django, anymail", has: "MAILGUN_API_URL", refused: "401"},
		{backend: "sendgrid", application: "Django, anymail", has: "SENDGRID_API_URL", refused: "401"},
		{backend: "postmark", application: "Django, anymail", has: "POSTMARK_API_URL", refused: "401",
			without: []string{"scheduled"}},
		{backend: "resend", application: "Django, anymail", has: "RESEND_API_URL", refused: "403"},
	} {
		t.Run(way.backend, func(t *testing.T) {
			f, s := newMailer(t)
			f.rig.env = append(f.rig.env, "SAFEDELIVR_DIALECTS=mailgun,sendgrid,postmark,resend")
			s.start(s.addr, nil, "serve")
			letters := slices.DeleteFunc(corpus(), func(l letter) bool { return slices.Contains(way.without, l.Subject) })
			f.writeCorpus(letters)
			f.write("recipe.py", f.recipe(s, way.application, way.has))
			f.env = append(f.env, "BACKEND="+way.backend, "SSL_CERT_FILE="+s.ca.File)
			out := f.python("django_mail.py", "django-anymail==15.2", "Django==5.2.19")
			require.Contains(t, out, "refused "+way.refused+"\n")
			require.Equal(t, len(letters), strings.Count("\n"+out, "\nsent"), out)
			besides := []string{}
			if strings.Contains(out, "many 1000\n") {
				besides = append(besides, "many")
				texts := map[string]bool{}
				for _, c := range f.sent(1)["many"] {
					texts[c.Text] = true
				}
				require.Len(t, texts, 1000)
				require.True(t, texts["Hi P<7>"])
			}
			require.Equal(t, way.backend == "mailgun" || way.backend == "sendgrid", len(besides) == 1, out)
			f.arrived(letters, besides...)
		})
	}
}
