//go:build full

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
			f.write("recipe.py", f.recipe(way.application, way.has))
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
