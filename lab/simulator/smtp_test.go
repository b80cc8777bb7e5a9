package simulator_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// mailServer is a simulator with an account at each kind of mail server, and the addresses of these.
func mailServer(t *testing.T) (*simulator.Simulator, map[string]string) {
	t.Helper()
	s := simulator.New(simulator.Options{RecipientKey: "id", KeepContent: true})
	at, ended := map[string]string{}, make(chan error, 2)
	for _, kind := range []string{simulator.SMTP, simulator.LMTP} {
		require.NoError(t, s.AddAccount(simulator.Account{Name: kind, Kind: kind, Key: "secret"}))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		at[kind] = l.Addr().String()
		go func() { ended <- s.ServeSMTP(l, kind) }()
	}
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, errors.Join(<-ended, <-ended))
	})
	return s, at
}

// open opens a connection to a mail server of a kind.
func open(t *testing.T, kind, address string) *smtp.Client {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	if kind == simulator.LMTP {
		return smtp.NewClientLMTP(conn)
	}
	return smtp.NewClient(conn)
}

// transact hands a mail over, and returns the code of the reply; 0: there was none.
func transact(t *testing.T, kind, address, id string, to ...string) int {
	t.Helper()
	c := open(t, kind, address)
	defer c.Close()
	require.NoError(t, c.Auth(sasl.NewPlainClient("", "anybody", "secret")))
	c.SubmissionTimeout = 300 * time.Millisecond
	err := c.Mail("shop@example.com", &smtp.MailOptions{EnvelopeID: id + "@example.com"})
	for _, address := range to {
		err = errors.Join(err, c.Rcpt(address, nil))
	}
	if err == nil {
		w, failure := c.Data()
		require.NoError(t, failure)
		fmt.Fprintf(w, "From: Shop <shop@example.com>\r\nTo: Ann <%s>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"+
			"Message-ID: <%s@example.com>\r\nX-Own: 1\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"+
			"--b\r\nContent-Type: text/plain\r\n\r\nHello\r\n--b\r\nContent-Type: text/html\r\n"+
			"Content-Transfer-Encoding: quoted-printable\r\n\r\n<p>a=3Db</p>\r\n--b\r\nContent-Type: image/png\r\n"+
			"Content-ID: <logo>\r\nContent-Disposition: inline; filename=l.png\r\nContent-Transfer-Encoding: base64\r\n\r\n"+
			"AAEC\r\n--b--\r\n", to[0], id)
		err = w.Close()
	}
	var reply *smtp.SMTPError
	switch {
	case err == nil:
		return 250
	case errors.As(err, &reply):
		return reply.Code
	}
	return 0
}

func TestMailServerKeepsWhatItIsGiven(t *testing.T) {
	t.Parallel()
	s, at := mailServer(t)
	require.Equal(t, 250, transact(t, simulator.SMTP, at[simulator.SMTP], "m1", "ann@sim.test", "bob@sim.test"))
	copies := s.Copies("m1")
	require.Len(t, copies, 1)
	c := copies[0]
	require.Equal(t, []string{"Grüße", "Hello", "<p>a=b</p>", "Ann", "shop@example.com"},
		[]string{c.Subject, c.Text, c.HTML, c.Name, c.From})
	require.Equal(t, map[string]string{"X-Own": "1"}, c.Headers)
	require.Len(t, c.Attachments, 1)
	require.Equal(t, []any{"l.png", "image/png", "logo", 3},
		[]any{c.Attachments[0].Filename, c.Attachments[0].Type, c.Attachments[0].ContentID, c.Attachments[0].Size})
	require.Equal(t, "bcc", s.Copies("m1/bob@sim.test")[0].Role)
	require.Error(t, s.ServeSMTP(nil, "nobody"))
}

// TestMailServerRefuses: what happens to a mail is known from the reply, and its copy is kept.
func TestMailServerRefuses(t *testing.T) {
	t.Parallel()
	s, at := mailServer(t)
	for kind, address := range at {
		for local, want := range map[string]int{"deliver": 250, "softbounce": 250, "hardbounce": 550, "blocked": 550,
			"mailboxfull": 552, "rejected": 554, "overquota": 452, "refused": 550} {
			id := kind + local
			require.Equal(t, want, transact(t, kind, address, id, local+"@sim.test"), id)
			require.Len(t, s.Copies(id), map[bool]int{true: 0, false: 1}[local == "refused"], id)
		}
		c := open(t, kind, address)
		var reply *smtp.SMTPError
		require.ErrorAs(t, c.Auth(sasl.NewPlainClient("", "anybody", "wrong")), &reply)
		require.Equal(t, 535, reply.Code)
		require.NoError(t, c.Close())
	}
}

func TestFaultsOfMailServer(t *testing.T) {
	t.Parallel()
	s, at := mailServer(t)
	for i, c := range []struct {
		mode   string
		code   int
		stored bool
	}{
		{"status:503", 421, false}, {"status:401", 530, false}, {"rate", 451, false}, {"unverified", 550, false},
		{"not-allowed", 535, false}, {"too-large", 552, false}, {"refuse", 550, false},
		{"garbage-200", 0, false}, {"hang", 0, false}, {"close-before-read", 0, false},
		{"hang-after-body", 0, true}, {"accept-then-close", 0, true}, {"truncate", 0, true},
	} {
		id := fmt.Sprint("f", i)
		s.Inject(simulator.Fault{Account: simulator.SMTP, Mode: c.mode})
		require.Equal(t, c.code, transact(t, simulator.SMTP, at[simulator.SMTP], id, "ann@sim.test"), c.mode)
		s.ClearAll("")
		require.Equal(t, c.stored, len(s.Copies(id)) == 1, c.mode)
		require.Equal(t, 250, transact(t, simulator.SMTP, at[simulator.SMTP], id+"again", "ann@sim.test"), c.mode)
	}
	st := s.Stats(simulator.SMTP)
	require.EqualValues(t, 26, st.Calls)
	require.EqualValues(t, 2, st.Hung)
	s.Inject(simulator.Fault{Account: simulator.SMTP, Mode: "delay:1ms"})
	require.Equal(t, 250, transact(t, simulator.SMTP, at[simulator.SMTP], "late", "ann@sim.test"))
	log := s.CallLog(simulator.SMTP)
	require.Equal(t, simulator.ModeDelay, log[len(log)-1].Fault)
}

// TestMailServerReports: what the server finds out after it has accepted a mail comes to the sender as a mail.
func TestMailServerReports(t *testing.T) {
	t.Parallel()
	s := simulator.New(simulator.Options{})
	dir := t.TempDir()
	for _, folder := range []string{"tmp", "new"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
	}
	require.NoError(t, s.AddAccount(simulator.Account{Name: "relay", Kind: simulator.SMTP, Key: "secret", Maildir: dir}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.ServeSMTP(l, "relay") }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-ended)
	})
	require.Equal(t, 250, transact(t, simulator.SMTP, l.Addr().String(), "m1", "deliver@sim.test", "async-relay@sim.test",
		"expire-other@sim.test", "complain@sim.test"))
	files, err := filepath.Glob(filepath.Join(dir, "new", "*"))
	require.NoError(t, err)
	var all string
	for _, f := range files {
		raw, err := os.ReadFile(f)
		require.NoError(t, err)
		all += string(raw)
	}
	require.Len(t, files, 2)
	require.Contains(t, all, "Final-Recipient: rfc822; async-relay@sim.test\r\nAction: failed\r\nStatus: 5.1.1")
	require.Contains(t, all, "Feedback-Type: abuse\r\nVersion: 1\r\nOriginal-Rcpt-To: complain@sim.test")
	require.Contains(t, all, "To: shop@example.com")
}
