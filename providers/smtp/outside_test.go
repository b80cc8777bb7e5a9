//go:build full

package smtp

import (
	"encoding/json"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// odd is a folder with aiosmtpd, and with a server that uses it to give odd answers.
type odd struct{ folder, programs string }

func newOdd(t *testing.T) odd {
	t.Helper()
	folder := t.TempDir()
	program, err := os.ReadFile("testdata/odd.py")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "odd.py"), program, 0o600))
	return odd{folder, testkit.InstallPython(t, folder, "aiosmtpd==1.4.6")}
}

// serve runs the server in one of its modes, and returns a function that reads the mails it took.
func (o odd) serve(t *testing.T, mode string) (*server, func() []taken) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "taken")
	address := testkit.StartServer(t, o.folder, filepath.Join(o.programs, "python"), "odd.py", "%s", mode, file)
	return &server{address: address}, func() []taken { return takenBy(t, file) }
}

// takenBy reads the mails that a server took.
func takenBy(t *testing.T, file string) (out []taken) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Clean(file))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		var m struct {
			From    string
			To      []string
			Content []byte
		}
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		out = append(out, taken{m.From, m.To, string(m.Content)})
	}
	return out
}

// from returns a call by a sender to addresses.
func from(sender string, to ...string) *models.Call {
	c := call(len(to))
	c.Content.From.Email = sender + "@x.test"
	for i, name := range to {
		c.Recipients[i].Email = name + "@x.test"
	}
	return c
}

// TestOddServer: what odd answers of a server of somebody else mean.
func TestOddServer(t *testing.T) {
	o := newOdd(t)
	for _, mode := range []string{"plain", "packets", "lmtp", "pipelined", "packets pipelined", "lmtp pipelined"} {
		t.Run(mode, func(t *testing.T) { testAnswers(t, o, mode) })
	}
	for _, mode := range []string{"packets", "packets pipelined"} {
		t.Run("together, "+mode, func(t *testing.T) { testOddTogether(t, o, mode) })
	}
	t.Run("sessions", func(t *testing.T) { testSessions(t, o) })
}

// testAnswers sends mail that gets each of the odd answers. In the mode packets each byte of a reply is a packet.
func testAnswers(t *testing.T, o odd, mode string) {
	const accepted, invalid = "accepted", "rejected_recipient"
	s, mails := o.serve(t, mode)
	p := newAdapter(t, s, func(s *settings.Settings) {
		if strings.HasPrefix(mode, "lmtp") {
			s.Kind = "lmtp"
		}
	})
	atEnd := "accepted rejected_here accepted"
	if strings.HasPrefix(mode, "lmtp") { // such a refusal is about the recipient
		atEnd = "accepted rejected_recipient accepted"
	}
	for _, c := range []struct {
		name   string
		call   *models.Call
		want   string
		reason models.Reason // of the first part
		taken  int
	}{
		{"nothing odd", from("shop", "ann", "bo"), "accepted accepted", "", 2},
		{"RCPT, one of three", from("shop", "ann", "bad", "bo"), "accepted rejected_recipient accepted", "", 2},
		{"RCPT, no enhanced code", from("shop", "plain", "ann"), "rejected_recipient accepted", models.MailboxInvalid, 1},
		{"RCPT, several lines", from("shop", "lines"), invalid, models.MailboxInvalid, 0},
		{"RCPT, only a code", from("shop", "bare", "ann"), "rejected_here accepted", "", 1},
		{"RCPT, 8 bits", from("shop", "eightbit"), invalid, models.MailboxInvalid, 0},
		{"RCPT, later", from("shop", "grey", "ann"), "throttled accepted", models.Greylisted, 1},
		{"RCPT, full for now", from("shop", "full", "ann"), "throttled accepted", "", 1},
		{"RCPT, 421 in the middle", from("shop", "ann", "stops", "bo"), "accepted unavailable unavailable", "", 1},
		{"DATA, no 354", from("no354", "ann"), "rejected_here", "", 0},
		{"DATA, refused", from("refused", "ann"), "rejected_here", "", 0},
		{"DATA, later", from("busy", "ann"), "throttled", "", 0},
		{"DATA, the line breaks", from("cutdata", "ann", "bo"), "unavailable unavailable", "", 0},
		{"the dot, several lines", from("lines", "ann", "bo"), "accepted accepted", "", 2},
		{"the dot, only a code", from("bare", "ann", "bo"), "accepted accepted", "", 2},
		{"the dot, 8 bits", from("eightbit", "ann", "bo"), "accepted accepted", "", 2},
		{"the dot, a long line", from("long", "ann"), accepted, "", 1},
		{"the dot, spam", from("spam", "ann"), "rejected_here", models.PolicyReputation, 1},
		{"the dot, no enhanced code", from("plainspam", "ann"), "rejected_here", "", 1},
		{"the dot, 421", from("stops", "ann", "bo"), "unavailable unavailable", "", 2},
		{"the dot, later", from("later", "ann"), "throttled", "", 1},
		{"the dot, refused for one", from("shop", "ann", "badend", "bo"), atEnd, "", 2},
		{"the dot, the line breaks", from("cut", "ann", "bo"), "unknown unavailable", "", 1},
		{"the dot, half a reply", from("half", "ann", "bo"), "unknown unavailable", "", 1},
		{"the dot, the first of lines", from("firstline", "ann"), "unknown", "", 1},
		{"the dot, lines of two codes", from("othercode", "ann"), "unknown", "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(mails())
			parts := p.Send(t.Context(), c.call)
			require.Equal(t, c.want, classes(t, c.call, parts), "%+v", parts)
			require.Len(t, mails()[before:], c.taken)
			if c.reason != "" {
				require.Equal(t, c.reason, parts[0].Reason, "%+v", parts)
			}
			for _, part := range parts {
				require.True(t, utf8.ValidString(part.Text), "%q", part.Text)
			}
		})
	}
	c := from("late", "ann", "bo") // the server took the mail, and its reply comes after the end of the call
	p.timeout = 3 * time.Second
	require.Equal(t, "unknown unavailable", classes(t, c, p.Send(t.Context(), c)))
	p.timeout = time.Minute
	c = from("shop", "ann")
	require.Equal(t, accepted, classes(t, c, p.Send(t.Context(), c)), "the late reply is not that of this mail")
	all := mails()
	last := all[len(all)-1]
	require.Equal(t, []string{"ann@x.test"}, last.to)
	require.Contains(t, last.body, "\r\n.\r\nEnde")
	_, err := mail.ReadMessage(strings.NewReader(last.body))
	require.NoError(t, err)
}

// testOddTogether: a mail to several of whom the server refuses one is not sent.
func testOddTogether(t *testing.T, o odd, mode string) {
	s, mails := o.serve(t, mode)
	p := newAdapter(t, s)
	c := from("shop", "ann", "bad", "lines")
	c.Recipients[0].Role, c.Recipients[1].Role, c.Recipients[2].Role = models.To, models.CC, models.BCC
	require.Equal(t, "split rejected_recipient split", classes(t, c, p.Send(t.Context(), c)))
	require.Empty(t, mails())
	c.Recipients = c.Recipients[:1]
	require.Equal(t, "accepted", classes(t, c, p.Send(t.Context(), c)), "the connection is usable")
}

// testSessions: what it means that a server refuses a session, or what it offered.
func testSessions(t *testing.T, o odd) {
	ca := testkit.NewAuthority(t)
	ca.Certificate(t, filepath.Join(o.folder, "cert"), filepath.Join(o.folder, "key"), "127.0.0.1", time.Hour)
	secure := func(s *settings.Settings) { s.TLS = common.StartTLS }
	password := func(password string) func(*settings.Settings) {
		return func(s *settings.Settings) { s.User, s.Password = "ann", password }
	}
	for _, c := range []struct {
		name, mode string
		change     func(*settings.Settings)
		want       string
		reason     models.Reason
		taken      int
	}{
		{"STARTTLS", "starttls", secure, "accepted accepted", "", 2},
		{"STARTTLS is refused", "nostarttls", secure, "unavailable unavailable", "", 0},
		{"STARTTLS is wanted", "starttls", func(*settings.Settings) {}, "account account", "", 0},
		{"AUTH PLAIN", "auth", password("s3cret"), "accepted accepted", "", 2},
		{"AUTH LOGIN", "authlogin", password("s3cret"), "accepted accepted", "", 2},
		{"AUTH, 535", "auth", password("wr0ng"), "account account", "", 0},
		{"AUTH, 454", "auth454", password("s3cret"), "unavailable unavailable", "", 0},
		{"AUTH is wanted", "auth", func(*settings.Settings) {}, "account account", "", 0},
		{"STARTTLS, pipelined", "starttls pipelined", secure, "accepted accepted", "", 2},
		{"AUTH is wanted, pipelined", "auth pipelined", func(*settings.Settings) {}, "account account", "", 0},
		{"SIZE is too small, pipelined", "small pipelined", func(*settings.Settings) {}, "rejected_here rejected_here", models.TooLarge, 0},
		{"SIZE is too small", "small", func(*settings.Settings) {}, "rejected_here rejected_here", models.TooLarge, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, mails := o.serve(t, c.mode)
			p := newAdapter(t, s, c.change)
			p.roots = ca.Pool
			to := from("bare", "ann", "bo") // after STARTTLS, too, a reply may be only a code
			parts := p.Send(t.Context(), to)
			require.Equal(t, c.want, classes(t, to, parts), "%+v", parts)
			require.Equal(t, c.reason, parts[0].Reason, "%+v", parts)
			require.Len(t, mails(), c.taken)
			for _, part := range parts {
				require.NotContains(t, part.Text, "s3cret")
				require.NotContains(t, part.Text, "wr0ng")
			}
		})
	}
}
