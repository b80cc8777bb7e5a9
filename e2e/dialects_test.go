//go:build full

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// foreign is a program in another language that speaks a dialect with the library of its users.
type foreign struct {
	*rig
	folder   string
	env      []string
	smtpPort string
}

// newForeign returns a folder with the programs in testdata/dialects, and the product that speaks dialects.
func newForeign(t *testing.T, dialects string, settings ...string) *foreign {
	t.Helper()
	r := newRig(t, testkit.Embedded(), simulator.Options{KeepContent: true},
		append(settings, "SAFEDELIVR_DIALECTS="+dialects)...)
	r.start(r.addr, nil, "serve")
	f := &foreign{rig: r, folder: t.TempDir()}
	require.NoError(t, os.CopyFS(f.folder, os.DirFS("testdata/dialects")))
	key := strings.TrimSpace(r.command("key", "add", "tester"))
	f.env = append(os.Environ(), "URL=http://"+r.addr, "KEY="+key, "DOMAIN=demo.test", "NO_COLOR=1")
	return f
}

// do runs a command, which must succeed, and returns what it printed.
func (f *foreign) do(command string, args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), command, args...)
	cmd.Dir, cmd.Env = f.folder, f.env
	out, err := cmd.CombinedOutput()
	require.NoError(f.t, err, "%s %v: %s", command, args, out)
	return string(out)
}

// python installs packages and runs a program in Python.
func (f *foreign) python(program string, packages ...string) string {
	f.t.Helper()
	bin := filepath.Join(f.folder, "venv", "bin")
	f.do("python3", "-m", "venv", "venv")
	f.do(filepath.Join(bin, "pip"), append([]string{"install", "--quiet"}, packages...)...)
	return f.do(filepath.Join(bin, "python"), program)
}

// node installs packages and runs a program in JavaScript.
func (f *foreign) node(program string, packages ...string) string {
	f.t.Helper()
	f.do("npm", append([]string{"install", "--prefer-offline", "--no-audit", "--no-fund"}, packages...)...)
	return f.do("node", program)
}

// requireLines requires that an output has lines that fit expressions.
func requireLines(t *testing.T, out string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		require.Regexp(t, `(?m)^`+line, out)
	}
}

// sent returns what the providers have of the mails of each case, by subject, when they are sent. Of one mail to
// several it is the copy of the first.
func (f *foreign) sent(scheduled int) map[string][]simulator.Copy {
	f.t.Helper()
	out := map[string][]simulator.Copy{}
	for b, err := range f.client.Batches(f.t.Context(), client.ListOptions{}) {
		require.NoError(f.t, err)
		if b.State == client.BatchScheduled {
			scheduled--
			continue
		}
		f.done(f.id(b.ID))
		for _, l := range f.logs(f.id(b.ID), "") {
			for _, c := range f.sim.Copies(l.ID) {
				out[b.Subject] = append(out[b.Subject], decoded(f.t, &c))
			}
		}
	}
	require.Zero(f.t, scheduled)
	return out
}

// TestMailgunClients has the libraries that applications use for Mailgun read answers, errors, events and
// suppressions, and send what is not in the corpus.
func TestMailgunClients(t *testing.T) {
	t.Run("JavaScript", func(t *testing.T) {
		f := newForeign(t, "mailgun")
		out := f.node("mailgun.mjs", "mailgun.js@14.0.1", "form-data@4.0.4", "nodemailer@10.6.1",
			"nodemailer-mailgun-transport@2.1.5")
		requireLines(t, out,
			`html 200 <.+@demo\.test> Queued\. Thank you\.$`, `mime <m7@app\.test>$`,
			`wrong 400 to parameter is not a valid address`, `wrong 400 Need at least one of 'text' or 'html'`,
			`transport <.+@demo\.test>$`, `event delivered html@demo\.test a b\|größe/2 \{"id":7\}$`, `events 1$`,
			`bounce gone@demo\.test$`, `destroyed 200$`)
		copies := f.sent(0)
		require.Len(t, copies, 3)
		require.Equal(t, "Hällo {{x}}", strings.TrimSpace(copies["mime"][0].Text))
		headers := copies["mime"][0].Headers
		require.Equal(t, "<m7@app.test>", headers["Message-Id"]+headers["References"], "%v", headers)
		require.Equal(t, `<img src="cid:`+copies["transport"][0].Attachments[0].ContentID+`">`, copies["transport"][0].HTML)
	})
	t.Run("Python", func(t *testing.T) {
		f := newForeign(t, "mailgun")
		out := f.python("anymail_mailgun.py", "django-anymail==15.2", "Django==5.2.19", "mailgun==1.10.0")
		requireLines(t, out,
			`django \['queued'\] True$`, `merge \['queued'\] True$`, `wrong 4\d\d$`,
			`official 200 Queued\. Thank you\.$`, `events 200$`)
		copies := f.sent(0)
		require.Equal(t, "Hällo {{you}}", strings.TrimSpace(copies["django"][0].Text))
		require.Equal(t, "Größe.pdf", copies["django"][0].Attachments[0].Filename)
		require.Equal(t, "help@demo.test", copies["django"][0].Headers["Reply-To"])
		require.Equal(t, []string{"cc2@demo.test"}, copies["django"][0].Visible)
		texts := map[string]string{}
		for _, c := range copies["merge"] {
			texts[c.Headers["X-Own"]] = strings.TrimSpace(c.Text)
		}
		require.Equal(t, map[string]string{"one": "Hi <Ann>", "two": "Hi Bo"}, texts)
		require.NotContains(t, copies, "wrong")
	})
}

// TestResendClients is TestMailgunClients for Resend.
func TestResendClients(t *testing.T) {
	t.Run("JavaScript", func(t *testing.T) {
		f := newForeign(t, "resend")
		out := f.node("resend.mjs", "resend@6.38.0")
		requireLines(t, out,
			`moved true$`, `cancelled email$`, `many 100$`, `some 1 1$`, `wrong 422 validation_error Invalid .to. field`,
			`wrong 404 not_found `, `read delivered html@demo\.test help@demo\.test welcome$`, `list 100 true 6$`)
		keys := regexp.MustCompile(`(?m)^key (.+)$`).FindAllString(out, -1)
		require.Len(t, keys, 2)
		require.Equal(t, keys[0], keys[1])
		copies := f.sent(0)
		require.Equal(t, "Hällo {{you}}", strings.TrimSpace(copies["plain"][0].Text))
		require.Equal(t, `<p>Grüße & {{x}}</p><img src="cid:`+copies["html"][0].Attachments[1].ContentID+`">`,
			copies["html"][0].HTML)
		require.Equal(t, "№ 7", copies["html"][0].Headers["X-Order"])
		require.Equal(t, "Größe a.pdf", copies["html"][0].Attachments[0].Filename)
		require.Equal(t, []string{"bob@demo.test", "cc@demo.test"}, copies["together"][0].Visible)
		require.Len(t, copies["key"], 1)
		require.Len(t, copies["many"], 100)
		require.Len(t, copies["some"], 1)
	})
	t.Run("Python", func(t *testing.T) {
		f := newForeign(t, "resend")
		out := f.python("resend_clients.py", "django-anymail==15.2", "Django==5.2.19", "resend==2.52.0", "requests")
		requireLines(t, out,
			`same True$`, `read python$`, `batch 2$`, `wrong 422$`, `anymail \['queued'\] True$`)
		copies := f.sent(0)
		require.Len(t, copies["python"], 1)
		require.Len(t, copies["batch"], 2)
		require.Equal(t, "a.pdf", copies["python"][0].Attachments[0].Filename)
		require.Equal(t, "Hällo {{you}}", strings.TrimSpace(copies["anymail"][0].Text))
		require.Equal(t, []string{"cc2@demo.test"}, copies["anymail"][0].Visible)
	})
}

// TestPostmarkClients is TestMailgunClients for Postmark.
func TestPostmarkClients(t *testing.T) {
	t.Run("JavaScript", func(t *testing.T) {
		f := newForeign(t, "postmark")
		out := f.node("postmark.mjs", "postmark@5.1.0")
		requireLines(t, out,
			`plain 0 OK plain@demo\.test [0-9a-f-]{36}$`, `details plain plain@demo\.test Hällo {{you}}$`,
			`suppression off@demo\.test Suppressed$`, `suppression off@demo\.test Deleted$`,
			`suppressed off@demo\.test ManualSuppression$`, `html 0 OK Ann <html@demo\.test>, bob@demo\.test `, `many 100 300$`,
			`wrong InvalidEmailRequestError 422 300 Invalid 'To' address`, `wrong InvalidAPIKeyError 401 10$`)
		copies := f.sent(0)
		require.Len(t, copies, 3)
		require.Equal(t, "Hällo {{you}}", strings.TrimSpace(copies["plain"][0].Text))
		c := copies["html"][0]
		require.Equal(t, `<p>Grüße & {{x}}</p><img src="cid:`+c.Attachments[1].ContentID+`">`, c.HTML)
		require.Equal(t, []string{"№ 7", "help@demo.test", "Größe a.pdf"}, []string{c.Headers["X-Order"],
			c.Headers["Reply-To"], c.Attachments[0].Filename})
		require.Equal(t, []string{"bob@demo.test", "cc@demo.test"}, c.Visible)
		require.Len(t, copies["many"], 100)
	})
	t.Run("Python", func(t *testing.T) {
		f := newForeign(t, "postmark")
		out := f.python("anymail_postmark.py", "django-anymail==15.2", "Django==5.2.19")
		require.Contains(t, out, "django {'django@demo.test': 'sent', 'bob@demo.test': 'sent', 'cc2@demo.test': 'sent'}")
		require.Contains(t, out, "merge ['sent'] 2\n")
		require.Contains(t, out, "partly {'partly@demo.test': 'sent', 'GONE@demo.test': 'rejected'}")
		require.Contains(t, out, "wrong AnymailRecipientsRefused")
		copies := f.sent(0)
		require.Equal(t, "Hällo {{you}}", strings.TrimSpace(copies["django"][0].Text))
		require.Equal(t, "Größe.pdf", copies["django"][0].Attachments[0].Filename)
		require.Len(t, copies["merge"], 2)
	})
}

// TestSendGridClients is TestMailgunClients for SendGrid.
func TestSendGridClients(t *testing.T) {
	f := newForeign(t, "mailgun,sendgrid")
	out := f.node("sendgrid.mjs", "@sendgrid/mail@8.1.6", "@sendgrid/client@8.1.6")
	out += f.python("sendgrid_clients.py", "sendgrid==6.12.5")
	requireLines(t, out,
		`plain 202 [0-9a-f]{32}$`, `html 202$`, `wrong 400 personalizations\.0$`, `wrong 400 template_id$`,
		`python 202 32$`, `unsubscribe 201$`, `unsubscribes \['off@demo\.test'\]$`, `deleted 204$`)
	copies := f.sent(0)
	require.Len(t, copies, 4)
	require.Equal(t, "Hällo {{you}}", strings.TrimSpace(copies["plain"][0].Text))
	c := copies["html"][0]
	require.Equal(t, `<p>Grüße & {{x}}</p><img src="cid:`+c.Attachments[1].ContentID+`">`, c.HTML)
	require.Equal(t, []string{"№ 7", "help@demo.test", "Größe a.pdf"}, []string{c.Headers["X-Order"],
		c.Headers["Reply-To"], c.Attachments[0].Filename})
	require.Equal(t, []string{"bob@demo.test", "cc@demo.test"}, c.Visible)
	require.Len(t, copies["many"], 100)
	values := map[string]bool{}
	for _, c := range copies["python"] {
		values[strings.TrimSpace(c.HTML)] = true
	}
	require.Equal(t, map[string]bool{"<p>P0</p>": true, "<p>P1</p>": true, "<p>P2</p>": true}, values)
}
