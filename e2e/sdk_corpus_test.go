//go:build full

package e2e

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSDKCorpus sends the corpus with the libraries for JavaScript, Python and Go, and then a thousand mails with a
// value each.
func TestSDKCorpus(t *testing.T) {
	for _, way := range []struct {
		client, program string
		packages        []string
		refused         string // what a wrong key is answered with
		without         []string
	}{
		{client: "mailgun.js", packages: []string{"mailgun.js@14.0.1", "form-data@4.0.4"}, refused: "401"},
		{client: "resend", packages: []string{"resend@6.38.0"}, refused: "403"},
		{client: "postmark", packages: []string{"postmark@5.1.0"}, refused: "401", without: []string{"scheduled"}},
		{client: "@sendgrid/mail", packages: []string{"@sendgrid/mail@8.1.6", "@sendgrid/client@8.1.6"}, refused: "401"},
		{client: "nodemailer", packages: []string{"nodemailer@10.6.1"}, refused: "535"},
		{client: "resend-go", program: "sdk", refused: "[ERROR]: This API key does not exist."},
		{client: "mailgun-go", program: "sdk", refused: "401"},
		{client: "sendgrid-go", program: "sdk", refused: "Unauthorized"},
		{client: "resend", program: "clients.py", packages: []string{"resend==2.52.0", "requests"}, refused: "403"},
		{client: "sendgrid", program: "clients.py", packages: []string{"sendgrid==6.12.5"}, refused: "401"},
		{client: "mailgun", program: "clients.py", packages: []string{"mailgun==1.10.0"}, refused: "401"},
		{client: "smtplib", program: "clients.py", refused: "535"},
	} {
		t.Run(way.client+" "+way.program, func(t *testing.T) {
			f, s := newMailer(t)
			f.rig.env = append(f.rig.env, "SAFEDELIVR_DIALECTS=mailgun,sendgrid,postmark,resend")
			s.start(s.addr, nil, "serve")
			letters := slices.DeleteFunc(corpus(), func(l letter) bool { return slices.Contains(way.without, l.Subject) })
			if way.client == "mailgun-go" { // a file has the type of its name, and an inline file the name of its content id
				for i := range letters {
					letters[i].HTML = strings.ReplaceAll(letters[i].HTML, "cid:logo@app.test", "cid:logo.png")
					for k := range letters[i].Files {
						file := &letters[i].Files[k]
						file.Params, file.ContentID = nil, strings.ReplaceAll(file.ContentID, "@app.test", ".png")
					}
				}
			}
			f.writeCorpus(letters)
			f.env = append(f.env, "CLIENT="+way.client, "URL=http://"+f.addr,
				"KEY="+strings.TrimSpace(f.command("key", "add", "tester"))) // it may read, too
			var out string
			switch {
			case way.program == "":
				out = f.node("clients.mjs", way.packages...)
			case way.program == "sdk":
				f.env = append(f.env, "RESEND_BASE_URL=http://"+f.addr+"/")
				out = f.do("go", "run", "-C", "sdk", ".")
			case way.packages == nil:
				out = f.do("python3", way.program)
			default:
				out = f.python(way.program, way.packages...)
			}
			require.Regexp(t, `(?m)^refused .*`+regexp.QuoteMeta(way.refused), out)
			require.Equal(t, len(letters), strings.Count("\n"+out, "\nsent "), out)
			f.arrived(letters, "many")
			texts := map[string]bool{}
			for _, c := range f.sent(len(way.without) ^ 1)["many"] {
				texts[c.Text] = true
			}
			require.Len(t, texts, 1000)
			require.True(t, texts["Hi P<999>"])
		})
	}
}
