package smtp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/esmtp"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// counted is a connection that counts what its client writes, and how often it waits after that.
type counted struct {
	net.Conn
	writes, trips *atomic.Int64
	wrote         bool
}

func (c *counted) Write(b []byte) (int, error) {
	c.wrote = true
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func (c *counted) Read(b []byte) (int, error) {
	if c.wrote {
		c.trips.Add(1)
	}
	c.wrote = false
	return c.Conn.Read(b)
}

// together returns a call of one mail to n recipients.
func together(n int) *models.Call {
	c := call(n)
	c.Recipients[0].Role = models.To
	for i := range c.Recipients[1:] {
		c.Recipients[i+1].Role = models.CC
	}
	return c
}

// TestRoundTrips: with PIPELINING a mail takes two round trips, to however many recipients. Without, each command takes
// one. The commands are the same.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  string
		call  *models.Call
		trips int64 // without PIPELINING
	}{{"smtp", call(1), 4}, {"lmtp", call(1), 4}, {"smtp", call(2), 8}, {"smtp", together(3), 6}} {
		var commands [][]string
		for _, caps := range [][]string{{"DSN"}, {"DSN", "Pipelining"}} {
			s := newServer(t, nil, caps...)
			p := newAdapter(t, s, func(s *settings.Settings) { s.Kind = c.kind })
			var writes, trips atomic.Int64
			connect := p.connect
			p.connect = func(ctx context.Context, network, address string) (net.Conn, error) {
				raw, err := connect(ctx, network, address)
				return &counted{Conn: raw, writes: &writes, trips: &trips}, err
			}
			first := call(1)
			require.Equal(t, "accepted", classes(t, first, p.Send(t.Context(), first)))
			before := len(s.commands)
			writes.Store(0)
			trips.Store(0)
			require.NotContains(t, classes(t, c.call, p.Send(t.Context(), c.call)), "un")
			commands = append(commands, s.commands[before:])
			mails, want := int64(len(s.taken())-1), c.trips
			if len(caps) > 1 {
				want = 2 * mails
			}
			require.Equal(t, want, trips.Load(), "%s to %d, %v", c.kind, len(c.call.Recipients), caps)
			require.Equal(t, want, writes.Load(), "%s to %d, %v", c.kind, len(c.call.Recipients), caps)
			require.Equal(t, 1, s.conns)
		}
		require.Equal(t, commands[0], commands[1])
	}
}

// TestParameters: commands have the parameters of the extensions that a server offers, and no others.
func TestParameters(t *testing.T) {
	t.Parallel()
	c := call(1)
	for _, way := range ways {
		s := newServer(t, nil, append([]string{"DSN", "SMTPUTF8"}, way...)...)
		require.Equal(t, "accepted", classes(t, c, newAdapter(t, s).Send(t.Context(), c)))
		r, _ := newAdapter(t, s).Compose(c)
		require.Equal(t, []string{"EHLO localhost",
			fmt.Sprintf("MAIL FROM:<from@x.test> BODY=8BITMIME SIZE=%d RET=HDRS ENVID=%s@x.test",
				len(r.Body), c.Recipients[0].Log),
			"RCPT TO:<u1@x.test> NOTIFY=FAILURE,DELAY", "DATA"}, s.commands)
	}
	for _, code := range []string{"500", "502"} {
		s := newServer(t, map[string]string{"EHLO": code + "-no\r\n" + code + "-SIZE\r\n" + code + " PIPELINING"})
		require.Equal(t, "accepted", classes(t, c, newAdapter(t, s).Send(t.Context(), c)))
		require.Equal(t, []string{"EHLO localhost", "HELO localhost", "MAIL FROM:<from@x.test>",
			"RCPT TO:<u1@x.test>", "DATA"}, s.commands)
	}
	s := newServer(t, nil, "PIPELINING")
	used, err := newAdapter(t, s).dial(t.Context(), time.Now().Add(time.Minute))
	require.NoError(t, err)
	defer used.abort()
	_, _, err = used.Begin(&esmtp.Mail{From: "a@x.test", To: []string{"u1@x.test>\r\nRCPT TO:<u2@x.test"}})
	require.ErrorContains(t, err, "line break", "no second command in an address")
	require.Len(t, s.commands, 1)
}

// TestDataAfterRefusal: a pipelined DATA comes after refusals. The first of them says what it means. The connection is
// used again only if DATA is refused, too. Otherwise it is closed, and neither content nor a dot is sent.
func TestDataAfterRefusal(t *testing.T) {
	t.Parallel()
	const unknown = "550 5.1.1 no such user"
	for name, c := range map[string]struct {
		replies map[string]string
		call    *models.Call
		want    string
		taken   int
		conns   int
		cut     int // connections closed after a reply 354
	}{
		"RCPT, DATA is refused": {map[string]string{"RCPT u1@x.test": unknown},
			call(2), "rejected_recipient accepted", 1, 1, 0},
		"RCPT, DATA is refused with 503": {map[string]string{"RCPT": unknown, "DATA": "503 5.5.1 RCPT first"},
			call(2), "rejected_recipient rejected_recipient", 0, 1, 0},
		"RCPT, DATA is accepted": {map[string]string{"RCPT u1@x.test": unknown, "DATA": "354 go on"},
			call(2), "rejected_recipient accepted", 1, 2, 1},
		"all RCPT, DATA is accepted": {map[string]string{"RCPT": "450 4.2.0 greylisted", "DATA": "354"},
			call(3), "throttled throttled throttled", 0, 3, 3},
		"RCPT, and 421 to DATA": {map[string]string{"RCPT u1@x.test": unknown, "DATA": "421 4.3.2 stops"},
			call(2), "rejected_recipient unavailable", 0, 2, 0},
		"RCPT, and the line breaks": {map[string]string{"RCPT u1@x.test": "after " + unknown},
			call(2), "rejected_recipient accepted", 1, 2, 0},
		"RCPT, and no reply to DATA is one": {map[string]string{"RCPT u1@x.test": unknown, "DATA": "HTTP/1.1"},
			call(2), "rejected_recipient unavailable", 0, 2, 0},
		"RCPT, and 250 to DATA": {map[string]string{"RCPT u1@x.test": unknown, "DATA": "250 ok"},
			call(2), "rejected_recipient rejected_here", 0, 2, 0},
		"MAIL, the rest is refused": {map[string]string{"MAIL": "552 5.3.4 too large"},
			call(2), "rejected_here rejected_here", 0, 1, 0},
		"MAIL, the rest is accepted": {map[string]string{"MAIL": "451 4.3.0 later", "RCPT": "250", "DATA": "354"},
			call(2), "throttled throttled", 0, 1, 1},
		"one of several, DATA is accepted": {map[string]string{"RCPT u2@x.test": unknown},
			together(3), "split rejected_recipient split", 0, 1, 1},
		"two of several": {map[string]string{"RCPT u2@x.test": unknown, "RCPT u3@x.test": "552 5.2.2 full"},
			together(3), "split rejected_recipient split", 0, 1, 1},
		"all of several": {map[string]string{"RCPT": unknown},
			together(3), "rejected_recipient split split", 0, 1, 0},
		"421 to one of several": {map[string]string{"RCPT u2@x.test": "after 421 4.3.2 stops"},
			together(3), "split unavailable split", 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, c.replies, "PIPELINING")
			p := newAdapter(t, s)
			parts := p.Send(t.Context(), c.call)
			require.Equal(t, c.want, classes(t, c.call, parts), "%+v", parts)
			for range c.cut {
				require.Empty(t, <-s.cut)
			}
			require.Len(t, s.taken(), c.taken)
			s.mu.Lock()
			defer s.mu.Unlock()
			require.Equal(t, c.conns, s.conns)
			require.NotContains(t, s.commands, "QUIT")
			if s.commands[len(s.commands)-1] == "RSET" {
				require.Len(t, p.sessions, 1, "it is usable")
			}
			if c.taken == 0 && (c.cut > 0 || c.conns > 1) {
				require.Empty(t, p.sessions, "it is not usable")
			}
		})
	}
}

// TestSilence: whatever a server does not answer, a call ends after its time. Only after the final dot its outcome is
// unknown.
func TestSilence(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]models.Class{"": models.Unavailable, "EHLO": models.Unavailable,
		"MAIL": models.Unavailable, "RCPT": models.Unavailable, "DATA": models.Unavailable, ".": models.Unknown} {
		for way, caps := range ways {
			synctest.Test(t, func(t *testing.T) {
				network := testkit.NewNetwork(t)
				p := newAdapter(t, serveOn(t, network.Listen(), map[string]string{command: "hang"}, caps...))
				p.connect = network.Dial
				began := time.Now()
				require.Equal(t, want, p.Send(t.Context(), call(1))[0].Class, "%s, %s", command, way)
				require.Equal(t, p.timeout, time.Since(began), "%s, %s", command, way)
			})
		}
	}
}

// TestTextBeforeEncryption: what anyone on the way writes after the reply to STARTTLS is not taken for a reply of the
// encrypted server (RFC 3207, 6).
func TestTextBeforeEncryption(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"220 go\r\n250-injected\r\n250 PIPELINING": "between STARTTLS and the encryption",
		"454 4.7.0 not now":                        "not now",
	} {
		s := newServer(t, map[string]string{"STARTTLS": reply}, "STARTTLS", "AUTH PLAIN")
		p := newAdapter(t, s, func(set *settings.Settings) {
			set.TLS, set.User, set.Password = common.StartTLS, "shop", "secret-password"
		})
		parts := p.Send(t.Context(), call(1))
		require.Equal(t, models.Unavailable, parts[0].Class)
		require.Contains(t, parts[0].Text, want)
		require.Equal(t, []string{"EHLO localhost", "STARTTLS"}, s.commands)
	}
}

// spoken is a connection to a server that says a text, whatever the client writes.
type spoken struct {
	net.Conn
	replies *strings.Reader
	written strings.Builder
	size    int // of a packet
	broken  bool
}

var errDone = errors.New("the connection broke")

func (c *spoken) Read(b []byte) (int, error) {
	n, err := c.replies.Read(b[:min(c.size, len(b))])
	if err != nil {
		err = errDone
	}
	return n, err
}

func (c *spoken) Write(b []byte) (int, error) {
	if c.broken && bytes.HasSuffix(b, []byte("\r\n.\r\n")) {
		return len(b) - 1, errDone
	}
	return c.written.Write(b)
}

func (*spoken) Close() error { return nil }

// TestDotIsCut: if the last byte of a mail was not written, the server cannot have the mail.
func TestDotIsCut(t *testing.T) {
	t.Parallel()
	for _, caps := range ways {
		raw := said("220 hi\r\n250-hi\r\n250 "+strings.Join(caps, "")+"\r\n250 ok\r\n250 ok\r\n354 go on\r\n", 100)
		raw.broken = true
		p := newAdapter(t, &server{address: "127.0.0.1:25"})
		p.connect = func(context.Context, string, string) (net.Conn, error) { return raw, nil }
		require.Equal(t, models.Unavailable, p.Send(t.Context(), call(1))[0].Class)
		raw.broken, raw.replies = false, strings.NewReader("220 hi\r\n250 hi\r\n250 ok\r\n250 ok\r\n354 go on\r\n")
		require.Equal(t, models.Unknown, p.Send(t.Context(), call(1))[0].Class)
	}
}

// FuzzReplies: a mail has the same outcome with and without PIPELINING, whatever a server replies, and however that is
// cut. Its content is sent after replies 250, 25z and 354, and ended. Otherwise nothing is sent after DATA but RSET.
func FuzzReplies(f *testing.F) {
	p, err := New(settings.Settings{Name: "r", Kind: "smtp", Timeout: time.Minute,
		Server: common.Server{Host: "127.0.0.1"}})
	if err != nil {
		f.Fatal(err)
	}
	for _, replies := range []string{
		"250 ok\r\n250 ok\r\n354 go on\r\n250 2.0.0 queued\r\n", "250\r\n251\r\n354\r\n250\r\n",
		"250 ok\r\n550-5.1.1 no\r\n550 5.1.1 no\r\n354 go on\r\n250 queued\r\n", "250 ok\r\n550 no\r\n554 no\r\n250 ok\r\n",
		"530 no\r\n503 no\r\n503 no\r\n250 ok\r\n", "421 4.4.2 timeout\r\n", "250 ok\r\n421 stops\r\n354 go\r\n250\r\n",
		"250 ok\r\n250 ok\r\n250 ok\r\n250 ok\r\n", "250 ok\r\n250 ok\r\n354 go on\r\n250-half",
		"250-a\r\n550 b\r\n", "\xff\r\n",
		"250 ok\r\n250 ok\r\n354 go on\r\n554 5.7.1 spam\r\n",
	} {
		f.Add(replies, 1, false)
		f.Add(replies, 100, true)
	}
	f.Fuzz(func(t *testing.T, replies string, size int, several bool) {
		c := call(1)
		if several {
			c = together(2)
		}
		var outcomes []string
		for _, caps := range ways {
			raw := said("220 hi\r\n250-hi\r\n250-"+strings.Join(append(caps, "SIZE\r\n250 HELP\r\n"), "\r\n250-")+replies, size)
			p.connect = func(context.Context, string, string) (net.Conn, error) { return raw, nil }
			parts := p.Send(t.Context(), c)
			p.sessions.close()
			outcomes = append(outcomes, fmt.Sprintf("%+v", parts))
			sent, class := raw.written.String(), parts[0].Class
			begun, refused, err := outcome(said(replies, size), len(c.Recipients))
			switch {
			case strings.Contains(sent, "\r\n.\r\n") != begun, strings.Contains(sent, "Subject:") != begun:
				t.Fatalf("sent after replies %q:\n%s", replies, sent)
			case (class == models.Accepted) != (begun && err == nil),
				(class == models.Unknown) != (begun && err != nil && !refused):
				t.Fatalf("replies %q: %+v", replies, parts)
			}
		}
		if outcomes[0] != outcomes[1] {
			t.Fatalf("%s\n%s", outcomes[0], outcomes[1])
		}
	})
}

// said returns a connection to a server that says a text in packets of a size.
func said(text string, size int) *spoken {
	return &spoken{replies: strings.NewReader(text), size: max(size, 1)}
}

// outcome reads replies to a mail to n recipients. It reports whether the content was sent, and whether a reply refused
// it. The error is that of the last reply.
func outcome(c net.Conn, n int) (begun, refused bool, err error) {
	r := textproto.NewReader(bufio.NewReader(parse.Spaced(c)))
	for _, want := range append(append([]int{250}, slices.Repeat([]int{25}, n)...), 354) {
		if _, _, err := r.ReadResponse(want); err != nil {
			return false, false, err
		}
	}
	code, _, err := r.ReadResponse(2)
	return true, err != nil && (code/100 == 4 || code/100 == 5), err
}
