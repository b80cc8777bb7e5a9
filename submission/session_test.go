package submission

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
)

// A mail is stored before its reply, as a batch with what the message says.
func TestMail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	got := p.mail(letter("Message-ID: <1@app.example.com>", "Cc: eve@example.com"),
		"bob@example.com", "eve@example.com", "joe@example.com")
	b := r.batch()
	require.Equal(t, idOf(&b), id(t, got))
	require.Equal(t, "Hi", b.Content.Subject)
	require.Equal(t, "Hello Bob\n", b.Content.Text)
	require.Equal(t, "ann@example.com", b.Content.From.Email)
	require.Equal(t, []string{"bob@example.com", "eve@example.com", "joe@example.com"}, r.recipients(&b))
	require.Equal(t, 1, b.Envelope.CC)
	at := models.FindHeader(b.Content.Headers, models.MessageIDField)
	require.Equal(t, "<1@app.example.com>", b.Content.Headers[at].Value)
	require.Equal(t, models.Urgent, b.Lane)
	p.ok("QUIT")
	p.closed("")
}

// The server offers what it can keep, and nothing else.
func TestExtensions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	always := "250-PIPELINING\n250-8BITMIME\n250-ENHANCEDSTATUSCODES\n250-CHUNKING\n"
	p := r.dial()
	require.Equal(t, "250-Hello app\n"+always+"250-STARTTLS\n250 SIZE 36000001", p.do("EHLO app"))
	require.Equal(t, "523 5.7.10 TLS is required", p.do("AUTH PLAIN "+plainSecret(r.secret)))
	p = r.startTLS(p)
	secure := "250-Hello app\n" + always + "250-AUTH PLAIN LOGIN\n250 SIZE 36000001"
	require.Equal(t, secure, p.do("EHLO app"))
	require.Equal(t, secure, r.dialTLS().do("EHLO app"))
	require.Equal(t, "250 2.0.0 Hello app", p.do("HELO app"))

	p = r.login()
	for parameter, reply := range map[string]string{
		"BODY=8BITMIME":           "250",
		"size=1000 body=8bitmime": "250",
		"AUTH=<>":                 "250",
		"SMTPUTF8":                "504 5.5.4",
		"REQUIRETLS":              "504 5.5.4",
		"BODY=BINARYMIME":         "504 5.5.4",
		"RET=HDRS":                "504 5.5.4",
		"ENVID=x":                 "504 5.5.4",
		"SIZE=36000000":           "250",
		"SIZE=36000001":           "552 5.3.4",
		"SIZE=36000002":           "552 5.3.4",
	} {
		require.Contains(t, p.do("MAIL FROM:<ann@example.com> "+parameter), reply, parameter)
		p.ok("RSET")
	}
	p.ok("MAIL FROM:<>")
	require.Contains(t, p.do("RCPT TO:<bob@example.com> NOTIFY=NEVER"), "504 5.5.4")
}

// Clients log in by both mechanisms, with and without an initial response, by any user name.
func TestLogins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	user, key := encoded("anybody"), encoded(r.secret)
	for _, dialogue := range [][2][]string{
		{{"AUTH PLAIN " + plainSecret(r.secret)}, {"235 2.0.0 Authentication succeeded"}},
		{{"AUTH PLAIN", plainSecret(r.secret)}, {"334", "235 2.0.0 Authentication succeeded"}},
		{{"AUTH LOGIN", user, key}, {"334 VXNlcm5hbWU6", "334 UGFzc3dvcmQ6", "235 2.0.0 Authentication succeeded"}},
		{{"AUTH LOGIN " + user, key}, {"334 UGFzc3dvcmQ6", "235 2.0.0 Authentication succeeded"}},
		{{"AUTH LOGIN", "=", key}, {"334 VXNlcm5hbWU6", "334 UGFzc3dvcmQ6", "235 2.0.0 Authentication succeeded"}},
		{
			{"auth login", "*", "AUTH PLAIN " + plainSecret(r.secret), "AUTH PLAIN x"},
			{"334 VXNlcm5hbWU6", "501 5.0.0 Negotiation cancelled",
				"235 2.0.0 Authentication succeeded", "503 5.5.1 Already authenticated"},
		},
		{{"AUTH CRAM-MD5"}, {"504 5.7.4 AUTH takes PLAIN and LOGIN."}},
		{{"MAIL FROM:<ann@example.com>"}, {"530 5.7.0 Log in first: any user name, and an API key as the password."}},
	} {
		p := r.dialTLS()
		p.ok("EHLO app")
		for i, say := range dialogue[0] {
			require.Equal(t, dialogue[1][i], p.do(say), say)
		}
	}
}

// A refused key is answered with 535, is in the access log, and in no other log. The third one ends the connection.
func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.dialTLS()
	p.ok("EHLO app")
	require.Equal(t, "535 5.7.8 This API key does not exist.", p.do("AUTH PLAIN "+plainSecret("secret123")))
	require.Equal(t, "535 5.7.8 This API key does not exist.", p.do("AUTH PLAIN "+encoded("secret123")))
	p.ok("AUTH LOGIN", encoded("me"))
	p.send(encoded("secret123") + "\r\nAUTH PLAIN " + plainSecret(r.secret) + "\r\nNOOP\r\n")
	p.closed("421 4.7.0 Too many failed logins.") // the key that follows is not tried
	require.NotContains(t, r.log.String(), "secret123")
	require.NotContains(t, r.log.String(), encoded("secret123"))

	operator := service.Caller{User: r.user, Operator: true}
	found, err := r.svc.People.AccessLog(t.Context(), operator, accesslog.FailedKey, service.Page{})
	require.NoError(t, err)
	require.Len(t, found.Entries, 1)
	require.Equal(t, 3, found.Entries[0].Count)
	require.Equal(t, "wrong_key", found.Entries[0].Reason)
	require.Equal(t, "127.0.0.1", found.Entries[0].Address)

	p = r.dialTLS()
	p.ok("EHLO app")
	for range maxLogins { // attempts that the client gives up count, too
		p.ok("AUTH LOGIN")
		require.Contains(t, p.do("*"), "501")
	}
	p.send("AUTH LOGIN\r\n")
	p.closed("421 4.7.0 Too many failed logins.")

	p = r.dialTLS()
	p.ok("EHLO app")
	reader := plainSecret(r.newKey(models.ScopeRead))
	require.Equal(t, "535 5.7.8 This request needs the scope send.", p.do("AUTH PLAIN "+reader))
}

// A connection is known once its client has logged in.
func TestKnownConnections(t *testing.T) {
	t.Parallel()
	marked := 0
	r := newRig(t, func(s *setup) {
		s.context = func(ctx context.Context, c net.Conn) context.Context {
			require.IsType(t, &remoteConn{}, c, "the connection that the listener accepted")
			return known.With(ctx, func() { marked++ })
		}
	})
	p := r.dialTLS()
	p.ok("EHLO app")
	require.Contains(t, p.do("AUTH PLAIN "+plainSecret("wrong")), "535")
	require.Zero(t, marked)
	p.ok("AUTH PLAIN " + plainSecret(r.secret))
	require.Equal(t, 1, marked)
}

// A client that guesses keys on many connections gets ten answers a second.
func TestGuessesAreSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		began := time.Now()
		for range strangerBurst/2 + strangerRate {
			p := r.dialTLS()
			p.ok("EHLO app")
			for range 2 {
				require.Contains(t, p.do("AUTH PLAIN "+plainSecret("wrong")), "535 5.7.8")
			}
			p.ok("QUIT")
		}
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

// Without TLS a client may log in only from the same machine, and only if there is no certificate.
func TestLoginWithoutTLS(t *testing.T) {
	t.Parallel()
	local := newRig(t, func(s *setup) { s.plain = true })
	p := local.dial()
	require.Contains(t, p.do("EHLO app"), "250-AUTH PLAIN LOGIN")
	p.ok("AUTH PLAIN " + plainSecret(local.secret))
	id(t, p.mail(letter(), "bob@example.com"))
	require.Equal(t, "502 5.5.1 TLS not supported", p.do("STARTTLS"))

	remote := newRig(t, func(s *setup) { s.plain, s.address = true, "192.0.2.1:9" })
	p = remote.dial()
	require.NotContains(t, p.do("EHLO app"), "AUTH")
	require.Equal(t, errNoTLS.Message, p.do("AUTH PLAIN " + plainSecret(local.secret))[len("523 5.7.10 "):])
}

// A key that was revoked sends no more mail, also by a connection that used it before. A connection that has sent
// nothing for long goes on.
func TestRevokedKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.login()
		id(t, p.mail(letter(), "bob@example.com"))
		time.Sleep(4 * time.Minute)
		p.ok("NOOP")
		keys, err := r.svc.People.Keys(t.Context(), service.Caller{User: r.user})
		require.NoError(t, err)
		require.NoError(t, r.svc.People.RevokeKey(t.Context(), service.Caller{User: r.user}, r.user, keys[0].ID, ""))
		time.Sleep(2 * time.Second)
		require.Equal(t, "530 5.7.0 This API key was revoked. Use another one.", p.do("MAIL FROM:<ann@example.com>"))
	})
}

// Mail that is unusual is taken: without a text or a subject, and with a Message-ID that is none.
func TestUnusualMail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	var all []models.Batch
	for _, message := range []string{
		"From: ann@example.com\n\n",
		"From: ann@example.com\nContent-Type: application/pdf\nContent-Disposition: attachment; filename=a.pdf\n\nxyz\n",
		letter("Message-ID: abc"), letter("Message-ID: <abc>"), letter("Message-ID: <>"),
		letter("Message-ID: <a b@c.example>"),
		letter("X-Template: {{name}}", "Reply-To: unknown"),
	} {
		all = append(all, r.batchOf(id(t, p.mail(message, "bob@example.com"))))
	}
	require.Equal(t, "<br>", all[0].Content.HTML)
	require.Equal(t, "(no subject)", all[0].Content.Subject)
	require.Len(t, all[1].Content.Attachments, 1)
	for _, b := range all {
		at := models.FindHeader(b.Content.Headers, models.MessageIDField)
		require.Regexp(t, `^<[^ <>@]+@[a-z.]+>$`, b.Content.Headers[at].Value)
	}
}

// A second MAIL is refused. After RSET, and after EHLO, the recipients before are forgotten.
func TestSecondMail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	for _, reset := range []string{"RSET", "EHLO app"} {
		p.ok("MAIL FROM:<ann@example.com>", "RCPT TO:<old@example.com>")
		require.Equal(t, "503 5.5.1 There is a sender already. Send RSET for another message.",
			p.do("MAIL FROM:<ann@example.com>"))
		p.ok(reset)
		require.Equal(t, "502 5.5.1 Missing MAIL FROM command.", p.do("RCPT TO:<bob@example.com>"))
		id(t, p.mail(letter(), "bob@example.com"))
	}
	for _, b := range r.batches() {
		require.Equal(t, []string{"bob@example.com"}, r.recipients(&b))
	}
}

// Addresses are what they seem, or refused. The second one is that of CVE-2026-23829 of Mailpit.
func TestAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	const odd, unknown = "501 5.1.3 The address has a character", "501 5.1.3 The address "
	for address, reply := range map[string]string{
		"<bob@example.com>":              "250 2.0.0",
		"<\"a\rX: y\"@b.example>":        odd,
		"<\"a\rBcc: x\"@b.example>":      odd,
		"<\"a\x00b\"@b.example>":         odd,
		"<a\x00b@b.example>":             odd,
		"<bob@b.exa\rmple>":              odd,
		"<bob@b.exa\x00mple>":            odd,
		"<\"a b\"@b.example>":            odd,
		"<\"a>, <eve@e.example\"@b.com>": odd,
		"<\"a\\\"b\"@b.example>":         odd,
		"<\"(c)a\"@b.example>":           odd,
		"<a@b@c.example>":                unknown,
		"<bob@localhost>":                unknown,
		"<bob@10.0.0.1>":                 unknown,
		"<bob@[10.0.0.1]>":               odd,
		"<b.@b.example>":                 unknown,
		"<bob@bücher.example>":           "250 2.0.0",
		"<böb@b.example>":                "553 5.6.7",
		"<\xff@b.example>":               "553 5.6.7",
		"<bob@b.\xff>":                   unknown,
		"<bob>":                          "501 5.5.2",
		"<>":                             "501 5.5.2",
		"bob@example.com":                "250 2.0.0",
		"<@a.example:bob@example.com>":   "250 2.0.0",
	} {
		p.ok("RSET", "MAIL FROM:<ann@example.com>")
		require.True(t, strings.HasPrefix(p.do("RCPT TO:"+address), reply), "%q %s", address, reply)
	}
	p.ok("RSET")
	require.Contains(t, p.do("MAIL FROM:<\"a\rX: y\"@b.example>"), "501 5.1.7")
	require.Contains(t, p.do("MAIL FROM:<ann@localhost>"), "501 5.1.7")
	p.ok("MAIL FROM:<>")
}

// A message has 100 recipients. One more is refused, and the mail goes to the others.
func TestManyRecipients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	p.ok("MAIL FROM:<ann@example.com>")
	for i := range maxRecipients {
		p.ok(fmt.Sprintf("RCPT TO:<r%d@example.com>", i))
	}
	require.Equal(t, "452 4.5.3 A message may have at most 100 recipients.", p.do("RCPT TO:<bob@example.com>"))
	p.ok("DATA")
	id(t, p.do(strings.ReplaceAll(letter(), "\n", "\r\n")+"."))
	b := r.batch()
	require.Equal(t, maxRecipients, b.Recipients)
	require.Nil(t, b.Envelope)
}

// Each refusal has the code by which a client knows whether to send the mail again.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *setup) { s.service.Content = 100_000 })
	operator := service.Caller{User: r.user, Operator: true}
	_, _, err := r.svc.People.SetSenders(t.Context(), operator, r.user, []string{"@example.com"}, "", service.Repeat{})
	require.NoError(t, err)
	p := r.login()
	for message, reply := range map[string]string{
		"From: eve@evil.example\n\nHello\n":                               "550 5.7.1 You may not send as",
		"Subject: no sender\n\nHello\n":                                   "554 5.6.0",
		"From: ann@example.com, eve@example.com\n\nHello\n":               "554 5.6.0",
		letter() + "\x00\n":                                               "554 5.6.0",
		letter("Content-Type: multipart/signed; boundary=b"):              "554 5.6.0",
		letter("X-Mailgun-Recipient-Variables: {\"bob@example.com\":{}}"): "554 5.6.0",
		letter() + strings.Repeat("x\n", 60_000):                          "552 5.3.4",
	} {
		require.Contains(t, p.mail(message, "bob@example.com"), reply)
	}
	r.store.before(func(context.Context) error { return models.ErrUnavailable })
	require.Contains(t, p.mail(letter(), "bob@example.com"), "451 4.3.0")
	r.store.before(nil)
	require.Empty(t, r.batches())
	id(t, p.mail(letter(), "bob@example.com"))
}

// A key over its limits gets 450, and others go on.
func TestLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(s *setup) { s.service.Quotas = models.Limits{models.RequestsPerSecond: 2} })
		p := r.login()
		time.Sleep(2 * time.Second)
		for range 2 {
			id(t, p.mail(letter(), "bob@example.com"))
		}
		require.Contains(t, p.mail(letter(), "bob@example.com"), "450 4.7.1")
		require.EqualValues(t, 1, r.refused.Load())
		time.Sleep(time.Second)
		id(t, p.mail(letter(), "bob@example.com"))
	})
}

// A message counts as a request of its key until it is answered.
func TestMessagesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(s *setup) { s.service.Quotas = models.Limits{models.RequestsAtOnce: 1} })
		release := make(chan struct{})
		r.store.before(func(context.Context) error {
			<-release
			return nil
		})
		p := r.login()
		p.data("bob@example.com")
		p.send("From: ann@example.com\r\n\r\nHello\r\n.\r\n")
		synctest.Wait()
		require.Contains(t, r.login().mail(letter(), "bob@example.com"), "450 4.7.1")
		close(release)
		id(t, p.reply())
	})
}

// A message with a full disk gets 451.
func TestDiskReserve(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(s *setup) {
		s.service.DiskReserve, s.service.DiskFree = 1000, func() (int64, error) { return 10, nil }
	})
	require.Contains(t, r.login().mail(letter(), "bob@example.com"), "451 4.3.0 The server has too little free disk space")
}

// The same bytes again are the same mail, in any order of the recipients. Other bytes are another one.
func TestRepeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	named := letter("Message-ID: <1@app.example.com>")
	first := p.mail(named, "bob@example.com", "eve@example.com")
	require.Equal(t, first, p.mail(named, "eve@example.com", "bob@example.com", "bob@EXAMPLE.com"))
	require.Equal(t, first, r.login().mail(named, "bob@example.com", "eve@example.com"))
	require.Len(t, r.batches(), 1)
	seen := map[string]bool{first: true}
	for _, other := range []string{
		p.mail(named, "bob@example.com"),
		p.mail(named+"!\n", "bob@example.com", "eve@example.com"),
		p.mail(letter(), "bob@example.com"), // without a Message-ID, equal mails can be meant
		p.mail(letter(), "bob@example.com"),
	} {
		require.Regexp(t, queued, other)
		require.False(t, seen[other])
		seen[other] = true
	}

	keyed := func(subject, date string) string {
		return "From: ann@example.com\nSubject: " + subject + "\nDate: " + date + "\nResend-Idempotency-Key: k1\n\nHello\n"
	}
	key := p.mail(keyed("a", "Mon, 2 Nov 2026 10:00:00 +0000"), "bob@example.com")
	require.Regexp(t, queued, key)
	require.Equal(t, key, p.mail(keyed("a", "Mon, 2 Nov 2026 10:00:09 +0000"), "bob@example.com"))
	require.Contains(t, p.mail(keyed("b", "Mon, 2 Nov 2026 10:00:00 +0000"), "bob@example.com"), "554 5.6.0")
	last := r.batchOf(id(t, key))
	require.Negative(t, models.FindHeader(last.Content.Headers, "Resend-Idempotency-Key"))
	at := models.FindHeader(last.Content.Headers, models.MessageIDField)
	require.Regexp(t, `^<[0-9a-f-]{36}@example.com>$`, last.Content.Headers[at].Value)
}

// A message is accepted once if the store failed before: the client sends it again, also without a Message-ID.
func TestRepeatAfterFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, message := range []string{letter("Message-ID: <1@app.example.com>"), letter()} {
			p := r.login()
			r.store.before(func(context.Context) error { return models.ErrOutcomeUnknown })
			require.Contains(t, p.mail(message, "bob@example.com"), "451 4.3.0")
			r.store.before(nil)
			r.batchOf(id(t, p.mail(message, "bob@example.com")))
		}
		require.Len(t, r.batches(), 2)
	})
}

// A test is not sent, and is answered like a mail. A broadcast is bulk mail.
func TestModes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	require.Equal(t, "250 Ok: queued as "+strings.Repeat("0", 32),
		p.mail(letter("X-Mailgun-Drop-Message: yes"), "bob@example.com"))
	require.Empty(t, r.batches())
	id(t, p.mail(letter("X-PM-Message-Stream: broadcast"), "bob@example.com"))
	b := r.batch()
	require.Equal(t, models.Bulk, b.Lane)
}

// The request log of the key has each message, with the code of its reply.
func TestRequestLog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	require.Contains(t, p.mail("Subject: none\n\nHello\n", "bob@example.com"), "554")
	id(t, p.mail(letter(), "bob@example.com"))
	b := r.batch()
	keys, err := r.svc.People.Keys(t.Context(), service.Caller{User: r.user})
	require.NoError(t, err)
	found, err := r.svc.People.Requests(t.Context(), service.Caller{User: r.user}, keys[0].ID, service.Page{})
	require.NoError(t, err)
	require.Len(t, found.Requests, 2)
	got := found.Requests[0]
	require.Equal(t, [4]any{"SMTP", "DATA", 250, b.ID.String()}, [4]any{got.Method, got.Path, got.Status, got.BatchID})
	require.Equal(t, "no_from", found.Requests[1].Code)
	require.Equal(t, map[int]int64{250: 1, 554: 1}, r.server.Replies())
	require.Equal(t, 1, r.server.Connections())
}

// A stop lets the message end that is being taken, and ends idle connections at once.
func TestStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		idle, sending := r.login(), r.login()
		sending.data("bob@example.com")
		sending.send("From: ann@example.com\r\n")
		synctest.Wait()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			r.server.Stop(t.Context())
		}()
		idle.closed("421 4.4.2 Idle timeout, bye bye")
		synctest.Wait()
		sending.send("\r\nHello\r\n.\r\n")
		id(t, sending.reply())
		sending.closed("421 4.4.2 Idle timeout, bye bye")
		<-stopped
		r.batch()
	})
}

// A message that does not end within the grace of a stop is not taken.
func TestStopWithoutGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.login()
		p.data("bob@example.com")
		p.send("From: ann@example.com\r\n\r\nHello\r\n")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r.server.Stop(ctx)
		p.closed("")
		require.Empty(t, r.batches())
	})
}

// Work for a message ends when its client leaves before the answer. What it sends again is taken once.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ended := make(chan error, 1)
		r.store.before(func(ctx context.Context) error {
			<-ctx.Done()
			ended <- ctx.Err()
			return models.ErrUnavailable
		})
		p := r.login()
		p.data("bob@example.com")
		p.send("From: ann@example.com\r\nContent-Type: application/pdf\r\n" +
			"Content-Disposition: attachment; filename=a.pdf\r\n\r\nxyz\r\n.\r\n")
		synctest.Wait()
		began := time.Now()
		_ = p.Close()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.Equal(t, began, time.Now())
		r.store.before(nil)
		require.Empty(t, r.batches())
		id(t, r.login().mail("From: ann@example.com\n\nHello\n", "bob@example.com"))
		r.batch()
	})
}

// Commands that follow a message without waiting are carried out after it.
func TestPipelining(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.login()
	mail := "MAIL FROM:<ann@example.com>\r\nRCPT TO:<bob@example.com>\r\nDATA\r\n" +
		strings.ReplaceAll(letter(), "\n", "\r\n") + ".\r\n"
	p.send(strings.Repeat(mail, 3) + "QUIT\r\n")
	for range 3 {
		for _, code := range []string{"250", "250", "354", "250 Ok: queued as "} {
			require.Contains(t, p.reply(), code)
		}
	}
	p.closed("221 2.0.0 Bye")
	require.Len(t, r.batches(), 3)
}

// Few messages are read and stored at once. Another waits for a while.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		waiting, release := make(chan bool, maxStored), make(chan struct{})
		r.store.before(func(context.Context) error {
			waiting <- true
			<-release
			return nil
		})
		var all []*peer
		for range maxStored {
			p := r.login()
			p.data("bob@example.com")
			p.send("From: ann@example.com\r\n\r\nHello\r\n.\r\n")
			<-waiting
			all = append(all, p)
		}
		began := time.Now()
		require.Contains(t, r.login().mail(letter(), "bob@example.com"), "451 4.3.0 Too many messages at once")
		require.Equal(t, turnTime, time.Since(began))
		require.EqualValues(t, 1, r.refused.Load())
		close(release)
		for _, p := range all {
			id(t, p.reply())
		}
		require.Len(t, r.batches(), maxStored)
	})
}
