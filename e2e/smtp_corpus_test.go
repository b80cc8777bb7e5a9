//go:build full

package e2e

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"mime"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	gomail "github.com/wneessen/go-mail"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// newMailer returns a folder with the programs in testdata/corpus, and the product that takes mail by SMTP. It is not
// started.
func newMailer(t *testing.T) (*foreign, *submission) {
	t.Helper()
	s := newSubmission(t, testkit.Embedded(), simulator.Options{KeepContent: true})
	host, port, err := net.SplitHostPort(s.plain)
	require.NoError(t, err)
	_, securePort, err := net.SplitHostPort(s.secure)
	require.NoError(t, err)
	f := &foreign{rig: s.rig, folder: t.TempDir(), smtpPort: port}
	require.NoError(t, os.CopyFS(f.folder, os.DirFS("testdata/corpus")))
	f.env = append(os.Environ(), "HOST="+host, "PORT="+port, "SSL_PORT="+securePort, "KEY="+s.key, "CA="+s.ca.File)
	return f, s
}

// startMailer is newMailer with the corpus, and starts the product.
func startMailer(t *testing.T) (*foreign, *submission, []letter) {
	t.Helper()
	f, s := newMailer(t)
	s.start(s.addr, nil, "serve")
	letters := corpus()
	f.writeCorpus(letters)
	return f, s, letters
}

// storedAs requires that a program printed the reply to each mail of the corpus, and that each is the batch with its
// ID.
func (f *foreign) storedAs(out string, letters []letter) {
	f.t.Helper()
	ids := regexp.MustCompile(`(?m)^sent .*?([0-9a-f]{32})$`).FindAllStringSubmatch(out, -1)
	require.Len(f.t, ids, len(letters), out)
	for i, l := range letters {
		b, err := f.client.Batch(f.t.Context(), queuedAs.ReplaceAllString("Ok: queued as "+ids[i][1], "$1-$2-$3-$4-$5"))
		require.NoError(f.t, err)
		require.Equal(f.t, l.Subject, b.Subject)
	}
}

// TestSMTPCorpus sends the corpus by SMTP with the libraries of applications. What the providers get is what the client
// meant.
func TestSMTPCorpus(t *testing.T) {
	t.Run("aiosmtplib", func(t *testing.T) {
		f, _, letters := startMailer(t)
		out := f.python("aio.py", "aiosmtplib==5.1.3")
		require.Equal(t, 2, strings.Count(out, "refused 535\n"))
		require.Contains(t, out, "wrong 501\n")
		f.storedAs(out, letters)
		f.arrived(letters, "many")
		texts := map[string]bool{}
		for _, c := range f.sent(1)["many"] {
			texts[c.Text] = true
		}
		require.Len(t, texts, 1000)
	})
	t.Run("Jakarta Mail", func(t *testing.T) {
		f, s, letters := startMailer(t)
		out := f.java(s, "Angus.java")
		require.Equal(t, 1, strings.Count(out, "refused 535\n"), out)
		f.storedAs(out, letters)
		f.arrived(letters)
	})
	for name, send := range map[string]func(f *foreign, s *submission, file string, to []string){
		"swaks": func(f *foreign, _ *submission, file string, to []string) {
			f.do("sh", "-c", `perl "$DEBIAN/usr/bin/swaks" --server 127.0.0.1 --port "$PORT" --tls --auth LOGIN --au apikey `+
				`--ap "$KEY" --from shop@demo.test --to "$1" --data "@$0" --hide-all`, file, strings.Join(to, ","))
		},
		"msmtp": func(f *foreign, _ *submission, file string, to []string) {
			f.do("sh", append([]string{"-c", `exec "$DEBIAN/usr/bin/msmtp" --host=127.0.0.1 --port="$PORT" --tls=on ` +
				`--tls-trust-file="$CA" --auth=on --user=apikey --passwordeval='echo "$KEY"' ` +
				`--from=shop@demo.test "$@" < "$0"`, file}, to...)...)
		},
		"net/smtp": func(f *foreign, s *submission, file string, to []string) {
			raw, err := os.ReadFile(filepath.Join(f.folder, file))
			require.NoError(f.t, err)
			s.send(string(raw), to...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s, letters := startMailer(t)
			f.do("python3", "letters.py")
			debian, env := packages(t, f.env, commandPackages...)
			f.env = append(env, "DEBIAN="+debian)
			for i, l := range letters {
				send(f, s, fmt.Sprintf("%d.eml", i), slices.Concat(l.To, l.CC, l.BCC))
			}
			f.arrived(letters)
		})
	}
	t.Run("go-mail", func(t *testing.T) {
		f, s, letters := startMailer(t)
		secure := &tls.Config{RootCAs: s.ca.Pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
		c, err := gomail.NewClient("127.0.0.1", gomail.WithPort(number(t, f.smtpPort)), gomail.WithTLSConfig(secure),
			gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername("apikey"), gomail.WithPassword(s.key))
		require.NoError(t, err)
		for _, l := range letters {
			require.NoError(t, c.DialAndSend(l.gomail(t)), l.Subject)
		}
		f.arrived(letters)
	})
	t.Run("Keycloak", func(t *testing.T) { // it sends mail of its own to one person, without files
		f, s, letters := startMailer(t)
		letters = slices.DeleteFunc(letters, func(l letter) bool {
			return l.Files != nil || l.CC != nil || l.At != nil
		})
		for i := range letters {
			letters[i].MessageID, letters[i].Headers = "", nil
		}
		f.writeCorpus(letters)
		for i := range letters { // its mail is answered to the sender if the realm says nothing else
			letters[i].ReplyTo = cmp.Or(letters[i].ReplyTo, letters[i].Name+" <"+letters[i].From+">")
		}
		out := f.java(s, "Keycloak.java")
		require.Equal(t, len(letters), strings.Count(out, "sent\n"), out)
		require.Contains(t, out, "refused jakarta.mail.AuthenticationFailedException: 535")
		f.arrived(letters)
	})
	for _, application := range []string{"Grafana", "Supabase"} {
		t.Run(application, func(t *testing.T) {
			f, s, letters := startMailer(t)
			if application == "Supabase" { // its mail is HTML
				letters = slices.DeleteFunc(letters, func(l letter) bool { return l.HTML == "" || l.Files != nil })
				letters[0].Text = ""
				f.writeCorpus(letters)
			}
			f.write("recipe.txt", f.recipe(application, ""))
			f.env = append(f.env, "APPLICATION="+application, "SSL_CERT_FILE="+s.ca.File)
			out := f.do("go", "run", "-C", "gomail", ".")
			require.Equal(t, len(letters), strings.Count(out, "sent\n"), out)
			require.Contains(t, out, "refused 535 ")
			f.arrived(letters)
		})
	}
	for _, application := range []string{"Rails", "GitLab", "Discourse", "Mastodon"} {
		t.Run(application, func(t *testing.T) {
			f, s, letters := startMailer(t)
			f.write("recipe.txt", f.recipe(application, ""))
			f.env = append(f.env, "APPLICATION="+application, "SSL_CERT_FILE="+s.ca.File)
			out := f.do("ruby", "rails.rb")
			require.Equal(t, len(letters), strings.Count(out, "sent\n"), out)
			require.Contains(t, out, "refused 535")
			f.arrived(letters)
		})
	}
}

// java gets the libraries of pom.xml and runs a program in Java that trusts the certificates of the product.
func (f *foreign) java(s *submission, program string) string {
	f.t.Helper()
	f.do("mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", "-DoutputDirectory=jars")
	f.do("keytool", "-importcert", "-noprompt", "-file", s.ca.File, "-keystore", "trusted", "-storepass", "changeit")
	return f.do("java", "-Dfile.encoding=UTF-8", "-Djavax.net.ssl.trustStore=trusted",
		"-Djavax.net.ssl.trustStorePassword=changeit", "-cp", "jars/*", program)
}

// gomail returns a mail as go-mail makes it.
func (l *letter) gomail(t *testing.T) *gomail.Msg {
	t.Helper()
	m := gomail.NewMsg()
	require.NoError(t, m.FromFormat(l.Name, l.From))
	require.NoError(t, m.To(l.To...))
	require.NoError(t, m.Cc(l.CC...))
	require.NoError(t, m.Bcc(l.BCC...))
	m.Subject(l.Subject)
	if l.ReplyTo != "" {
		require.NoError(t, m.ReplyTo(l.ReplyTo))
	}
	if l.MessageID != "" {
		m.SetMessageIDWithValue(strings.Trim(l.MessageID, "<>"))
	}
	for name, value := range l.Headers {
		m.SetGenHeader(gomail.Header(name), value)
	}
	if l.At != nil {
		m.SetGenHeader("X-Mailgun-Deliver-By", l.At.Format(time.RFC1123Z))
	}
	body := m.SetBodyString
	if l.Text != "" {
		body(gomail.TypeTextPlain, l.Text)
		body = m.AddAlternativeString
	}
	if l.HTML != "" {
		body(gomail.TypeTextHTML, l.HTML)
	}
	for _, file := range l.Files {
		add, kind := m.AttachReader, mime.FormatMediaType(file.Type, file.Params)
		options := []gomail.FileOption{gomail.WithFileContentType(gomail.ContentType(kind))}
		if file.ContentID != "" {
			add, options = m.EmbedReader, append(options, gomail.WithFileContentID(file.ContentID))
		}
		require.NoError(t, add(file.Name, bytes.NewReader(file.Content), options...))
	}
	return m
}
