package e2e

import (
	"crypto/tls"
	"net"
	"net/smtp"
	"net/textproto"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	gomail "github.com/wneessen/go-mail"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// submission is where applications hand over mail by SMTP.
type submission struct {
	*rig
	plain, secure string // addresses
	ca            *testkit.Authority
	key           string
}

// newSubmission returns a rig whose product takes mail by SMTP.
func newSubmission(t *testing.T, b testkit.Backend, o simulator.Options) *submission {
	t.Helper()
	s := &submission{plain: freeAddr(t), secure: freeAddr(t), ca: testkit.NewAuthority(t)}
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	s.ca.Certificate(t, cert, key, "127.0.0.1", time.Hour)
	s.rig = newRig(t, b, o, "SAFEDELIVR_SMTP_LISTEN="+s.plain, "SAFEDELIVR_SMTPS_LISTEN="+s.secure,
		"SAFEDELIVR_SMTP_TLS_CERT="+cert, "SAFEDELIVR_SMTP_TLS_KEY="+key)
	s.key = strings.TrimSpace(s.command("key", "add", "tester", "--scope", "send"))
	return s
}

var queuedAs = regexp.MustCompile(`^Ok: queued as ([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$`)

// send sends a message by net/smtp, and returns the ID of the batch.
func (s *submission) send(message string, to ...string) string {
	s.t.Helper()
	c, err := smtp.Dial(s.plain)
	require.NoError(s.t, err)
	defer func() { _ = c.Close() }()
	host, _, _ := net.SplitHostPort(s.plain)
	require.NoError(s.t, c.StartTLS(&tls.Config{RootCAs: s.ca.Pool, ServerName: host, MinVersion: tls.VersionTLS12}))
	require.NoError(s.t, c.Auth(smtp.PlainAuth("", "anybody", s.key, host)))
	require.NoError(s.t, c.Mail("ann@mail.example.com"))
	for _, a := range to {
		require.NoError(s.t, c.Rcpt(a))
	}
	require.NoError(s.t, c.Text.PrintfLine("DATA")) // Data of net/smtp hides the reply
	_, _, err = c.Text.ReadResponse(354)
	require.NoError(s.t, err)
	w := c.Text.DotWriter()
	_, err = w.Write([]byte(message))
	require.NoError(s.t, err)
	require.NoError(s.t, w.Close())
	_, reply, err := c.Text.ReadResponse(250)
	require.NoError(s.t, err)
	require.NoError(s.t, c.Quit())
	require.Regexp(s.t, queuedAs, reply)
	return queuedAs.ReplaceAllString(reply, "$1-$2-$3-$4-$5")
}

const submitted = "From: Ann <ann@mail.example.com>\nTo: bob@example.com\nSubject: Your order\n" +
	"Message-ID: <1@mail.example.com>\n\nHello Bob\n"

// TestSubmission has net/smtp send a mail to a process that is killed after its reply, before any provider is called.
// The mail is sent once, and the same bytes again are the same mail.
func TestSubmission(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		s := newSubmission(t, b, simulator.Options{})
		first := s.start(s.addr, nil, "serve")
		s.command("user", "pause", "tester", "--why", "a drill")
		id := s.send(submitted, "bob@example.com")
		first.kill()
		s.start(s.addr, nil, "serve")
		require.Equal(t, id, s.send(submitted, "bob@example.com"))
		s.command("user", "resume", "tester", "--why", "the end of the drill")
		require.EqualValues(t, 1, s.done(s.id(id)).Counts.Delivered)
		require.Equal(t, id, s.send(submitted, "bob@example.com"))
		require.Zero(t, s.exactlyOnce(s.id(id), 1))
		require.EqualValues(t, 1, s.sim.Stats("sg").Accepted+s.sim.Stats("mg").Accepted)
	})
}

// TestGoMail has go-mail send mail with attachments by both ports, and a wrong key.
func TestGoMail(t *testing.T) {
	t.Parallel()
	s := newSubmission(t, testkit.Embedded(), simulator.Options{})
	s.serveHere()
	host, port, _ := net.SplitHostPort(s.plain)
	_, securePort, _ := net.SplitHostPort(s.secure)
	secure := &tls.Config{RootCAs: s.ca.Pool, ServerName: host, MinVersion: tls.VersionTLS12}
	for _, options := range [][]gomail.Option{
		{gomail.WithPort(number(t, port)), gomail.WithSMTPAuth(gomail.SMTPAuthPlain)},
		{gomail.WithPort(number(t, port)), gomail.WithSMTPAuth(gomail.SMTPAuthLogin)},
		{gomail.WithPort(number(t, securePort)), gomail.WithSSL(), gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover)},
	} {
		options = append(options, gomail.WithTLSConfig(secure), gomail.WithUsername("anybody"))
		m := gomail.NewMsg()
		require.NoError(t, m.From("ann@mail.example.com"))
		require.NoError(t, m.To("bob@example.com", "eve@example.com"))
		require.NoError(t, m.Bcc("joe@example.com"))
		m.Subject("Größe")
		m.SetBodyString(gomail.TypeTextPlain, "Hello")
		m.AddAlternativeString(gomail.TypeTextHTML, "<p>Hello</p>")
		require.NoError(t, m.AttachReader("a.pdf", strings.NewReader(strings.Repeat("x", 100_000))))
		c, err := gomail.NewClient(host, append(options, gomail.WithPassword(s.key))...)
		require.NoError(t, err)
		require.NoError(t, c.DialAndSend(m))
		c, err = gomail.NewClient(host, append(options, gomail.WithPassword("wrong"))...)
		require.NoError(t, err)
		var refused *textproto.Error
		require.ErrorAs(t, c.DialAndSend(m), &refused)
		require.Equal(t, 535, refused.Code)
	}
	n := 0
	for b, err := range s.client.Batches(t.Context(), client.ListOptions{}) {
		require.NoError(t, err)
		require.Equal(t, "Größe", b.Subject)
		require.Equal(t, 3, b.Recipients)
		require.EqualValues(t, 3, s.done(s.id(b.ID)).Counts.Delivered)
		n++
	}
	require.Equal(t, 3, n)
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
