package submission

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// emersion/go-smtp#196: a client stalls within a message past the time-out, and goes on with what looks like commands.
// Nothing of it is carried out, with DATA and with BDAT.
func TestStallInMessage(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{
		"DATA": "DATA\r\n", "BDAT": "BDAT 10000\r\n", "BDAT LAST": "BDAT 10000 LAST\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				p := r.login()
				p.ok("MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.com>")
				p.send(begin + "From: ann@example.com\r\n\r\nHello\r\n")
				if name == "DATA" {
					require.Contains(t, p.reply(), "354")
				}
				synctest.Wait()
				time.Sleep(idleTime + time.Second)
				p.send("\r\nMAIL FROM:<ann@example.com>\r\nRCPT TO:<eve@example.com>\r\nDATA\r\n" +
					"From: ann@example.com\r\n\r\nX\r\n.\r\n")
				p.closed("421 4.4.2 The message did not arrive completely. Nothing will be sent.")
				require.Empty(t, r.batches())
			})
		})
	}
}

// A connection that ends within a message, however it ends, submits nothing. go-smtp takes the end for that of the last
// chunk.
func TestCutOff(t *testing.T) {
	t.Parallel()
	message := "From: ann@example.com\r\n\r\nHello\r\n"
	for _, begin := range []string{"DATA\r\n", "BDAT 10000\r\n", "BDAT 10000 LAST\r\n", "BDAT 33\r\n",
		"BDAT 33 LAST\r\n"} {
		for how, end := range map[string]func(p *peer) error{
			"plain":        func(p *peer) error { return p.Close() },
			"within TLS":   func(p *peer) error { return p.Conn.(*tls.Conn).NetConn().Close() },
			"after TLS":    func(p *peer) error { return p.Conn.(*tls.Conn).CloseWrite() },
			"as it should": func(p *peer) error { _, err := p.Conn.Write([]byte("\r\n.\r\n")); return err },
		} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(s *setup) { s.plain = how == "plain" })
				p := r.login()
				p.ok("MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.com>")
				go func() { _, _ = io.Copy(io.Discard, p.in) }()
				_, err := p.Conn.Write([]byte(begin + message))
				require.NoError(t, err)
				synctest.Wait()
				require.NoError(t, end(p))
				synctest.Wait()
				want := 0
				if how == "as it should" && (begin == "DATA\r\n" || begin == "BDAT 33 LAST\r\n") {
					want = 1
				}
				require.Len(t, r.batches(), want, "%s %s", begin, how)
			})
		}
	}
}

// emersion/go-smtp#315: a wrong argument of BDAT is an error, and the next command is in step.
func TestWrongBDAT(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	require.Contains(t, p.do("BDAT 3"), "502 5.5.1")
	p.send("abc")
	p.ok("MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.com>")
	for _, wrong := range []string{"BDAT x", "BDAT 5 LAST junk", "BDAT 5 FIRST", "BDAT 99999999999", "BDAT -1", "BDAT"} {
		require.Contains(t, p.do(wrong), "501 5.5.4", wrong)
		require.Equal(t, "250 2.0.0 I have successfully done nothing", p.do("NOOP"))
	}
	require.Contains(t, p.do("BDAT 40000000"), "552 5.3.4")
}

// A message in chunks is one message. After an error another one may follow, and after RSET between chunks none.
func TestChunks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	message := strings.ReplaceAll(letter("Message-ID: <1@app.example.com>"), "\n", "\r\n")
	begin := func() { p.ok("MAIL FROM:<ann@example.com>", "RCPT TO:<bob@example.com>") }
	chunk := func(text, last string) string {
		p.send(fmt.Sprintf("BDAT %d%s\r\n%s", len(text), last, text))
		return p.reply()
	}
	begin()
	require.Equal(t, "250 2.0.0 Continue", chunk(message[:10], ""))
	require.Equal(t, "250 2.0.0 Continue", chunk(message[10:11], ""))
	first := chunk(message[11:], " LAST")
	b := r.batch()
	require.Equal(t, idOf(&b), id(t, first))
	require.Equal(t, "Hello Bob\n", b.Content.Text)
	begin()
	require.Equal(t, first, chunk(message, " LAST"), "the same by one chunk")
	require.Equal(t, first, p.mail(letter("Message-ID: <1@app.example.com>"), "bob@example.com"), "the same by DATA")
	begin()
	require.Contains(t, chunk("Subject: none\r\n\r\nHello", " LAST"), "554 5.6.0")
	begin()
	last := r.batchOf(id(t, chunk("From: ann@example.com\r\n\r\n.\r\nNOOP\r\n", " last")))
	require.Equal(t, ".\nNOOP\n", last.Content.Text)

	begin()
	require.Equal(t, "250 2.0.0 Continue", chunk(message[:10], ""))
	require.Contains(t, p.do("MAIL FROM:<eve@example.com>"), "502 5.5.1")
	require.Contains(t, p.do("RSET"), "250 2.0.0")
	p.closed("")
	require.Len(t, r.batches(), 2)
}

// PR 246 of emersion/go-smtp, CVE-2023-51764 and those alike: only CRLF, a dot and CRLF end a message. What follows
// another end is text.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	for i, end := range []string{
		"\n.\n", "\n.\r\n", "\r.\r", "\r\n.\r", "\r.\r\n", "\r\n.\n", "\n\n.\r\n", "\r\n.\r\r\n",
	} {
		p.data("bob@example.com")
		p.send("From: ann@example.com\r\n\r\nfirst" + end +
			"MAIL FROM:<ann@example.com>\r\nRCPT TO:<eve@example.com>\r\nDATA\r\nFrom: ann@example.com\r\n\r\nsmuggled\r\n.\r\n")
		b := r.batchOf(id(t, p.reply()))
		require.Equal(t, "250 2.0.0 I have successfully done nothing", p.do("NOOP"))
		require.Len(t, r.batches(), i+1, "%q", end)
		require.Contains(t, b.Content.Text, "smuggled")
		require.Equal(t, []string{"bob@example.com"}, r.recipients(&b))
	}
}

// foxcpp/maddy#352: HTML in one line of 300 kB is not changed. A line of more than 1 MiB is refused.
func TestLongLine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	html := "<p>" + strings.Repeat("é is e with an accent, ", 12_500) + "</p>"
	id(t, p.mail(letter("Content-Type: text/html; charset=utf-8", "\n"+html), "bob@example.com"))
	b := r.batch()
	require.Contains(t, b.Content.HTML, html)
	p.data("bob@example.com")
	p.send("From: ann@example.com\r\n\r\n" + strings.Repeat("x", maxLine+1) + "\r\n.\r\n")
	require.Equal(t, "554 5.6.0 The message has a line of more than 1048576 bytes.", p.reply())
	p.closed("500 5.4.0 Too long line, closing connection")
	r.batch()
}

// axllent/mailpit#87 and vert-x3/vertx-mail-client#219: lines that end in CR CR LF or in LF do not cut a header, nor a
// folded field.
func TestOddLineEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	for _, end := range []string{"\r\r\n", "\n", "\r\n"} {
		lines := []string{"From: ann@example.com", "Subject: a", " b", "X-Folded: one", "\ttwo",
			"To: bob@example.com", "", "Hello", ""}
		p.data("bob@example.com")
		p.send(strings.Join(lines, end) + "\r\n.\r\n")
		b := r.batchOf(id(t, p.reply()))
		require.Equal(t, "a b", b.Content.Subject)
		require.Equal(t, "Hello", strings.TrimSpace(b.Content.Text))
		at := models.FindHeader(b.Content.Headers, "X-Folded")
		require.Equal(t, "one two", strings.ReplaceAll(b.Content.Headers[at].Value, "\t", " "))
	}
}

// useplunk/plunk#364: the port of TLS speaks TLS from the first byte. Commands in plain text close it at once, and
// silence soon.
func TestPlaintextOnTLSPort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, text := range []string{"EHLO app.example.com\r\n", ""} {
			c, err := r.net.Dial(t.Context(), "tcp", r.secure.Addr().String())
			require.NoError(t, err)
			began := time.Now()
			p := newPeer(t, c)
			if text != "" {
				p.send(text)
			}
			_, _ = p.next() // an alert of TLS
			p.closed("")
			if text != "" {
				require.Equal(t, began, time.Now())
			} else {
				require.Equal(t, helloTime, time.Since(began))
			}
		}
	})
}

// CVE-2011-0411: what follows STARTTLS in plain text is not carried out within TLS.
func TestInjectionBeforeTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.dial()
	p.ok("EHLO app")
	_, err := p.Conn.Write([]byte("STARTTLS\r\nEHLO evil\r\nAUTH PLAIN " + plainSecret(r.secret) + "\r\n"))
	require.NoError(t, err)
	require.Equal(t, "220 2.0.0 Ready to start TLS", p.reply())
	c := tls.Client(p.Conn, r.trust)
	require.NoError(t, c.HandshakeContext(t.Context()))
	p = newPeer(t, c)
	require.Equal(t, "502 5.5.1 Please introduce yourself first.", p.do("MAIL FROM:<ann@example.com>"))
	p.ok("EHLO app")
	require.Contains(t, p.do("MAIL FROM:<ann@example.com>"), "530 5.7.0")
}

// A message may have as many bytes as documented. A client that sends more gets an answer, and one that sends much
// more is cut off.
func TestSize(t *testing.T) {
	t.Parallel()
	const size = 1_000_000
	r := newRig(t, func(s *setup) { s.size = size })
	p := r.login()
	head := "From: ann@example.com\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nHello\r\n--b--\r\n"
	padding := func(n int) string {
		return head + strings.Repeat(strings.Repeat("x", 998)+"\r\n", n/1000)[:n-len(head)-2] + "\r\n"
	}
	p.data("bob@example.com")
	p.send(padding(size) + ".\r\n")
	id(t, p.reply())
	p.data("bob@example.com")
	p.send(padding(size+1) + ".\r\n")
	require.Equal(t, "552 5.3.4 The message is larger than 1000000 bytes.", p.reply())
	p.data("bob@example.com")
	p.send(padding(2*size+100_000) + ".\r\n")
	require.Equal(t, "552 5.3.4 The message is larger than 1000000 bytes.", p.reply())
	p.closed("")
	r.batch()
	require.EqualValues(t, 2, r.refused.Load())
}

// A client has ten seconds to begin, a minute to log in, five minutes between commands, and ten for a message.
func TestTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		began := time.Now()
		passed := func(want time.Duration) {
			t.Helper()
			require.Equal(t, want, time.Since(began))
			began = time.Now()
		}
		r.dial().closed("421 4.4.2 Idle timeout, bye bye")
		passed(helloTime)
		p := r.dial()
		p.ok("EHLO app")
		p = r.startTLS(p)
		for range 5 {
			time.Sleep(loginTime / 6)
			p.ok("NOOP")
		}
		p.closed("421 4.4.2 Idle timeout, bye bye")
		passed(loginTime)
		r.login().closed("421 4.4.2 Idle timeout, bye bye")
		passed(idleTime)
		p = r.login()
		p.data("bob@example.com")
		for range 4 {
			p.send("X-Slow: yes\r\n")
			time.Sleep(messageTime / 5)
		}
		p.closed("421 4.4.2 The message did not arrive completely. Nothing will be sent.")
		passed(messageTime)
		require.Empty(t, r.batches())
	})
}

// What a client sends without an answer is bounded, also before it has logged in.
func TestFlood(t *testing.T) {
	t.Parallel()
	for _, flood := range []string{
		strings.Repeat("x", maxCommands+1), "BDAT 4000000000\r\n" + strings.Repeat("x", 2*maxCommands),
	} {
		r := newRig(t)
		p := r.dial()
		p.send(flood)
		var last string
		for {
			text, err := p.next()
			if err != nil {
				break
			}
			last = text
		}
		require.Equal(t, "500 5.4.0 Too long line, closing connection", last)
	}
}

// TestServeAfterStop: a listener that comes when the server has stopped is closed.
func TestServeAfterStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stop()
	l := r.net.Listen()
	require.NoError(t, r.server.Serve(l))
	_, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}
