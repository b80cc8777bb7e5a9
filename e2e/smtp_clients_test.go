//go:build full

package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// smtplibScript sends a mail by both ports, the same one again, and one with a wrong key.
const smtplibScript = `
import os, smtplib, ssl
from email.message import EmailMessage

secure = ssl.create_default_context(cafile=os.environ["CA"])
host, port, ssl_port, key = os.environ["HOST"], int(os.environ["PORT"]), int(os.environ["SSL_PORT"]), os.environ["KEY"]
m = EmailMessage()
m["From"], m["To"], m["Subject"] = "ann@mail.example.com", "bob@example.com", "Größe"
m["Message-ID"] = "<1@mail.example.com>"
m.set_content("Hello")
m.add_alternative("<p>Hello</p>", subtype="html")
m.add_attachment(b"x" * 100_000, maintype="application", subtype="pdf", filename="a.pdf")

def begin(s):
    s.starttls(context=secure)
    return s

for s in [begin(smtplib.SMTP(host, port)), smtplib.SMTP_SSL(host, ssl_port, context=secure)]:
    s.login("apikey", key)
    for size in [None, "size=1000"]:
        s.mail("ann@mail.example.com", [size] if size else [])
        s.rcpt("bob@example.com")
        code, text = s.data(m.as_bytes())
        assert code == 250, (code, text)
        print(text.decode())
    s.quit()
try:
    begin(smtplib.SMTP(host, port)).login("apikey", "wrong")
except smtplib.SMTPAuthenticationError as e:
    print(e.smtp_code)
`

// nodemailerScript does the same with nodemailer, by both mechanisms.
const nodemailerScript = `
const nodemailer = require('nodemailer')
const fs = require('fs')
const {HOST: host, PORT, SSL_PORT, KEY, CA} = process.env
const tls = {ca: fs.readFileSync(CA)}
const mail = {from: 'ann@mail.example.com', to: 'bob@example.com', subject: 'Größe', text: 'Hello',
  html: '<p>Hello</p>',
  messageId: '<1@mail.example.com>', date: new Date(0),
  attachments: [{filename: 'a.pdf', content: Buffer.alloc(100000, 120)}],
  headers: {'X-Boundary': 'fixed'}}
async function main() {
  for (const method of ['PLAIN', 'LOGIN']) {
    for (const at of [{port: +PORT, requireTLS: true}, {port: +SSL_PORT, secure: true}]) {
      const t = nodemailer.createTransport({host, ...at, tls, auth: {user: 'apikey', pass: KEY},
        authMethod: method})
      console.log((await t.sendMail(mail)).response)
    }
  }
  const wrong = nodemailer.createTransport({host, port: +PORT, requireTLS: true, tls,
    auth: {user: 'apikey', pass: 'wrong'}})
  await wrong.sendMail(mail).catch(e => console.log(e.responseCode))
}
main()
`

// TestSMTPClients has the clients of others hand over mail.
func TestSMTPClients(t *testing.T) {
	s := newSubmission(t, testkit.Embedded(), simulator.Options{})
	s.start(s.addr, nil, "serve")
	host, port, err := net.SplitHostPort(s.plain)
	require.NoError(t, err)
	_, securePort, _ := net.SplitHostPort(s.secure)
	env := append(os.Environ(), "HOST="+host, "PORT="+port, "SSL_PORT="+securePort, "KEY="+s.key, "CA="+s.ca.File)
	run := func(t *testing.T, folder string, env []string, name string, args ...string) []string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = folder, env
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	t.Run("smtplib", func(t *testing.T) {
		lines := run(t, t.TempDir(), env, "python3", "-c", smtplibScript)
		require.Len(t, lines, 5)
		require.Equal(t, "535", lines[4])
		for _, line := range lines[:4] {
			require.Regexp(t, queuedAs, line)
			require.Equal(t, lines[0], line, "the same bytes are the same mail")
		}
	})
	t.Run("nodemailer", func(t *testing.T) {
		folder := t.TempDir()
		run(t, folder, env, "npm", "install", "--prefer-offline", "--no-audit", "--no-fund", "nodemailer@10.6.1")
		require.NoError(t, os.WriteFile(filepath.Join(folder, "send.js"), []byte(nodemailerScript), 0o600))
		lines := run(t, folder, env, "node", "send.js")
		require.Len(t, lines, 5)
		require.Equal(t, "535", lines[4])
		for _, line := range lines[:4] {
			require.Regexp(t, queuedAs, strings.TrimPrefix(line, "250 "))
		}
	})
	folder, debian := packages(t, env, commandPackages...)
	t.Run("swaks", func(t *testing.T) {
		for _, mechanism := range []string{"PLAIN", "LOGIN"} {
			lines := run(t, folder, debian, "perl", filepath.Join(folder, "usr/bin/swaks"), "--server", host, "--port", port,
				"--tls", "--auth", mechanism, "--au", "apikey", "--ap", s.key, "--from", "ann@mail.example.com",
				"--to", "bob@example.com", "--attach", "@"+s.ca.File, "--hide-all")
			require.Equal(t, []string{""}, lines)
		}
	})
	t.Run("msmtp", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(folder, "usr/bin/msmtp"), "--host="+host,
			"--port="+port, "--tls=on",
			"--tls-trust-file="+s.ca.File, "--auth=on", "--user=apikey", "--passwordeval=echo "+s.key,
			"--from=ann@mail.example.com",
			"bob@example.com")
		cmd.Env, cmd.Stdin = debian, strings.NewReader(submitted)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	t.Run("arrived", func(t *testing.T) {
		n := 0
		for b, err := range s.client.Batches(t.Context(), client.ListOptions{}) {
			require.NoError(t, err)
			require.EqualValues(t, 1, s.done(s.id(b.ID)).Counts.Delivered)
			n++
		}
		require.GreaterOrEqual(t, n, 1+4+2+1)
	})
}

// commandPackages are swaks, msmtp and what they need.
var commandPackages = []string{"swaks", "libnet-ssleay-perl", "msmtp", "libgsasl18", "libsecret-1-0", "libntlm0",
	"libidn12", "libgssglue1"}

// packages gets packages of Debian, without installing them, and returns their folder and the environment in which
// programs of them run.
func packages(t *testing.T, env []string, names ...string) (folder string, with []string) {
	t.Helper()
	folder = t.TempDir()
	get := exec.CommandContext(t.Context(), "apt-get", append([]string{"download"}, names...)...)
	get.Dir = folder
	out, err := get.CombinedOutput()
	require.NoError(t, err, "%s", out)
	found, err := filepath.Glob(filepath.Join(folder, "*.deb"))
	require.NoError(t, err)
	for _, file := range found {
		out, err := exec.CommandContext(t.Context(), "dpkg", "-x", file, folder).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	libraries, err := filepath.Glob(filepath.Join(folder, "usr/lib/*-linux-gnu"))
	require.NoError(t, err)
	perl, err := filepath.Glob(filepath.Join(folder, "usr/lib/*/perl5/*"))
	require.NoError(t, err)
	return folder, append(slices.Clone(env), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"),
		"PERL5LIB="+strings.Join(append(perl, filepath.Join(folder, "usr/share/perl5")), ":"))
}
