package smtp

import (
	"context"
	"fmt"
	"net"
	"net/mail"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

func newAdapter(t *testing.T, s *server, change ...func(*settings.Settings)) *Adapter {
	t.Helper()
	host, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	set := settings.Settings{Name: "relay", Kind: "smtp", Timeout: time.Minute,
		Server: common.Server{Host: host, Port: number}}
	for _, f := range change {
		f(&set)
	}
	p, err := New(set)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// call returns a call to n recipients, u1@x.test and so on.
func call(n int) *models.Call {
	batch := models.NewBatchID(time.Now())
	c := &models.Call{Batch: batch, Attempt: 1, Content: &models.Content{
		From: models.Address{Name: "Größe", Email: "from@x.test"}, Subject: "Hallo {{name}}", Text: "Für {{name}}.\n.\nEnde"}}
	for i := range n {
		c.Recipients = append(c.Recipients, models.CallRecipient{Log: batch.Log(i + 1), Recipient: models.Recipient{
			Email: fmt.Sprintf("u%d@x.test", i+1), Vars: map[string]string{"name": fmt.Sprintf("N%d", i+1)}}})
	}
	return c
}

// classes returns the class of each recipient of an answer.
func classes(t *testing.T, c *models.Call, parts []models.Part) string {
	t.Helper()
	var out []string
	for i := range c.Recipients {
		found := []string{}
		for _, p := range parts {
			if p.Recipients.Has(c.Recipients[i].Log.Recipient()) {
				found = append(found, string(p.Class))
			}
		}
		require.Len(t, found, 1, "each recipient is in one part: %+v", parts)
		out = append(out, found[0])
	}
	return strings.Join(out, " ")
}

// ways are how commands reach a server: by what it offers beside the usual.
var ways = map[string][]string{"one by one": nil, "pipelined": {"PIPELINING"}}

// TestStages: what an answer, or its absence, means at each stage. Before the final dot nothing was kept; after it the
// outcome is unknown until the reply.
func TestStages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replies map[string]string
		want    string // of two recipients
		reason  models.Reason
		taken   int // mails that the server has
	}{
		"all is well":                 {nil, "accepted accepted", "", 2},
		"no greeting":                 {map[string]string{"": "drop"}, "unavailable unavailable", "", 0},
		"it is busy":                  {map[string]string{"": "421 4.3.2 busy"}, "unavailable unavailable", "", 0},
		"it wants no mail":            {map[string]string{"": "554 no SMTP service here"}, "unavailable unavailable", "", 0},
		"EHLO":                        {map[string]string{"EHLO": "drop", "HELO": "drop"}, "unavailable unavailable", "", 0},
		"MAIL, the line breaks":       {map[string]string{"MAIL": "drop"}, "unavailable unavailable", "", 0},
		"MAIL, no login":              {map[string]string{"MAIL": "530 5.7.0 Authentication required"}, "account account", "", 0},
		"MAIL, another sender":        {map[string]string{"MAIL": "550 5.1.8 sender refused"}, "account account", models.SenderNotVerified, 0},
		"MAIL, too large":             {map[string]string{"MAIL": "552 5.3.4 too large"}, "rejected_here rejected_here", models.TooLarge, 0},
		"MAIL, later":                 {map[string]string{"MAIL": "451 4.3.0 later"}, "throttled throttled", "", 0},
		"RCPT, one does not exist":    {map[string]string{"RCPT u1@x.test": "550 5.1.1 no such user"}, "rejected_recipient accepted", models.MailboxInvalid, 1},
		"RCPT, only words":            {map[string]string{"RCPT u1@x.test": "550 no such user here"}, "rejected_recipient accepted", models.MailboxInvalid, 1},
		"RCPT, no meaning":            {map[string]string{"RCPT u1@x.test": "550 no"}, "rejected_here accepted", "", 1},
		"RCPT, only a code":           {map[string]string{"RCPT u1@x.test": "550"}, "rejected_here accepted", "", 1},
		"RCPT, greylisted":            {map[string]string{"RCPT u1@x.test": "450 4.7.1 greylisted, try again later"}, "throttled accepted", models.Greylisted, 1},
		"RCPT, full":                  {map[string]string{"RCPT u1@x.test": "552 5.2.2 mailbox full"}, "rejected_recipient accepted", models.MailboxFull, 1},
		"RCPT, too many":              {map[string]string{"RCPT u2@x.test": "452 4.5.3 too many recipients"}, "accepted throttled", "", 1},
		"RCPT, relaying":              {map[string]string{"RCPT": "554 5.7.1 Relay access denied"}, "account account", "", 0},
		"RCPT, it stops":              {map[string]string{"RCPT u1@x.test": "after 421 4.3.2 shutting down"}, "unavailable unavailable", "", 0},
		"RCPT, the line breaks":       {map[string]string{"RCPT u1@x.test": "drop"}, "unavailable unavailable", "", 0},
		"DATA, the line breaks":       {map[string]string{"DATA": "drop"}, "unavailable unavailable", "", 0},
		"DATA, refused":               {map[string]string{"DATA": "554 5.5.1 no valid recipients"}, "rejected_here rejected_here", "", 0},
		"DATA, the mailbox is full":   {map[string]string{"DATA": "552 5.2.2 mailbox full"}, "rejected_recipient rejected_recipient", models.MailboxFull, 0},
		"DATA, about a recipient":     {map[string]string{"DATA": "550 5.1.1 no such user"}, "rejected_here rejected_here", "", 0},
		"the dot, another 2yz":        {map[string]string{".": "251 will forward"}, "accepted accepted", "", 2},
		"the dot, no refusal":         {map[string]string{".": "354 go on"}, "unknown unavailable", "", 1},
		"endless replies":             {map[string]string{"MAIL": strings.Repeat("250-more\r\n", 1<<18) + "250 ok"}, "unavailable unavailable", "", 0},
		"the dot, the line breaks":    {map[string]string{".": "drop"}, "unknown unavailable", "", 1},
		"the dot, no answer":          {map[string]string{".": "hang"}, "unknown unavailable", "", 1},
		"the dot, no SMTP":            {map[string]string{".": "HTTP/1.1 400 Bad Request"}, "unknown unavailable", "", 1},
		"the dot, later":              {map[string]string{".": "451 4.3.0 later"}, "throttled throttled", "", 2},
		"the dot, spam":               {map[string]string{".": "554 5.7.1 spam"}, "rejected_here rejected_here", models.PolicyReputation, 2},
		"the dot, bad content":        {map[string]string{".": "554 5.6.0 bad header"}, "rejected_request rejected_request", models.InvalidRequest, 2},
		"the dot, a virus":            {map[string]string{".": "554 virus found"}, "rejected_here rejected_here", models.Virus, 2},
		"taken, and then it is gone":  {map[string]string{".": "after 250 ok"}, "accepted accepted", "", 2},
		"taken, the session is wrong": {map[string]string{"RSET": "drop"}, "accepted accepted", "", 2},
		"each reply is only a code": {map[string]string{"": "220", "MAIL": "250", "RCPT": "250", ".": "250", "RSET": "250"},
			"accepted accepted", "", 2},
	} {
		for way, caps := range ways {
			t.Run(name+", "+way, func(t *testing.T) {
				t.Parallel()
				s := newServer(t, c.replies, caps...)
				p := newAdapter(t, s)
				to := call(2)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					select {
					case <-s.hung:
						cancel()
					case <-ctx.Done():
					}
				}()
				parts := p.Send(ctx, to)
				require.Equal(t, c.want, classes(t, to, parts), "%+v", parts)
				require.Len(t, s.taken(), c.taken)
				if c.reason != "" {
					require.Equal(t, c.reason, parts[0].Reason, "%+v", parts)
				}
				for _, part := range parts {
					require.NotContains(t, part.Text, "@")
				}
			})
		}
	}
}

// TestSecondHalf: no transaction begins in the second half of a call's time, not even the first one. A connection that
// was ready too late is used for the next call.
func TestSecondHalf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network, c := testkit.NewNetwork(t), call(2)
		s := serveOn(t, network.Listen(), map[string]string{"": "slow 220 test.example ESMTP"})
		p := newAdapter(t, s)
		p.connect = network.Dial
		require.Equal(t, "unavailable unavailable", classes(t, c, p.Send(t.Context(), c)))
		require.Empty(t, s.taken())
		require.Equal(t, "accepted accepted", classes(t, c, p.Send(t.Context(), c)))
		require.Len(t, s.taken(), 2)
		require.Equal(t, 1, s.conns)
		s = serveOn(t, network.Listen(), map[string]string{".": "slow 250 ok"})
		p = newAdapter(t, s)
		p.connect = network.Dial
		parts := p.Send(t.Context(), c)
		require.Equal(t, "accepted rejected_here", classes(t, c, parts))
		require.Equal(t, 1, parts[1].Fewer)
	})
}

// TestMailIsComplete: what arrives has the values of its recipient, and lines with a dot as they were.
func TestMailIsComplete(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, "DSN")
	p := newAdapter(t, s)
	c := call(3)
	parts := p.Send(t.Context(), c)
	require.Equal(t, "accepted accepted accepted", classes(t, c, parts))
	require.Equal(t, 1, s.conns, "one connection for all")
	got := s.taken()
	require.Len(t, got, 3)
	for i, m := range got {
		require.Equal(t, "from@x.test", m.from)
		require.Equal(t, []string{c.Recipients[i].Email}, m.to)
		parsed, err := mail.ReadMessage(strings.NewReader(m.body))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("Hallo N%d", i+1), parsed.Header.Get("Subject"))
		require.Equal(t, "<"+c.Recipients[i].Log.String()+"@x.test>", parsed.Header.Get("Message-Id"))
		require.Empty(t, parsed.Header.Get("Bcc"))
		require.Contains(t, m.body, "\r\n.\r\nEnde")
	}
	require.Contains(t, strings.Join(s.commands, "\n"), "ENVID="+c.Recipients[0].Log.String()+"@x.test")
	require.Len(t, p.Send(t.Context(), call(1)), 1)
	require.Equal(t, 1, s.conns, "the connection is used again")
}

// TestMessageIDOfSender: the Message-ID of the sender is the only one, however its name is spelled.
func TestMessageIDOfSender(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	p := newAdapter(t, s)
	for _, name := range []string{"Message-ID", "Message-Id", "message-id"} {
		c := call(1)
		c.Content.Headers = []models.Header{{Name: name, Value: "<own.1@sender.test>"}}
		require.Equal(t, "accepted", classes(t, c, p.Send(t.Context(), c)))
	}
	for _, m := range s.taken() {
		parsed, err := mail.ReadMessage(strings.NewReader(m.body))
		require.NoError(t, err)
		require.Equal(t, []string{"<own.1@sender.test>"}, parsed.Header["Message-Id"])
	}
}

// TestStaleConnection: an idle connection that the server has closed, with 421 or without a word, costs a new one, and
// no mail.
func TestStaleConnection(t *testing.T) {
	t.Parallel()
	for way, caps := range ways {
		for _, reply := range []string{"after 250 ok", "250 ok\r\n421 4.4.2 timeout exceeded"} {
			s := newServer(t, map[string]string{".": reply}, caps...)
			p := newAdapter(t, s)
			for range 3 {
				c := call(1)
				require.Equal(t, "accepted", classes(t, c, p.Send(t.Context(), c)), way)
			}
			require.Len(t, s.taken(), 3, way)
			require.Equal(t, 3, s.conns, way)
		}
	}
}

// TestSecretsAndQuotes: the password is in no text, in clear or as it was sent, and enhanced codes are not. A quoted
// local part is quoted once, and no line is too long.
func TestSecretsAndQuotes(t *testing.T) {
	t.Parallel()
	s := newServer(t, map[string]string{"AUTH": "502 unknown: AUTH PLAIN AHNob3AAc2VjcmV0LXBhc3N3b3Jk secret-password"}, "AUTH PLAIN")
	p := newAdapter(t, s, func(set *settings.Settings) { set.User, set.Password = "shop", "secret-password" })
	require.Equal(t, "unknown: AUTH PLAIN <secret> <secret>", p.Send(t.Context(), call(1))[0].Text)
	s = newServer(t, map[string]string{"RCPT": "550-5.1.1 No such\r\n550-5.1.1 user.\r\n550 5.1.1 5.1.1"})
	require.Equal(t, "No such user. 5.1.1", newAdapter(t, s).Send(t.Context(), call(1))[0].Text)
	c := call(1)
	c.Recipients[0].Email = `"a@b"@x.test`
	c.Content.Headers = []models.Header{{Name: "X-Long", Value: strings.Repeat("ü ", 800)}}
	r, refused := p.Compose(c)
	require.Nil(t, refused)
	require.Contains(t, string(r.Body), "To: <\"a@b\"@x.test>\r\n")
	for line := range strings.Lines(string(r.Body)) {
		require.LessOrEqual(t, len(line), 1000)
	}
}

// TestRefusedAtData: a refusal of the content of one mail says nothing of the next recipient.
func TestRefusedAtData(t *testing.T) {
	t.Parallel()
	for way, caps := range ways {
		s := newServer(t, map[string]string{"DATA": "552 5.2.2 mailbox full"}, caps...)
		p := newAdapter(t, s)
		c := call(2)
		require.Equal(t, "rejected_recipient rejected_recipient", classes(t, c, p.Send(t.Context(), c)), way)
		require.Contains(t, s.commands, "RCPT TO:<u2@x.test>", "the second recipient was asked for: %s", way)
		require.Equal(t, 1, s.conns, way)
	}
}

// TestKeysWhileInUse: a connection that was in use while the keys were replaced is not used for another mail.
func TestKeysWhileInUse(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	p := newAdapter(t, s)
	c := call(1)
	used, err := p.dial(t.Context(), time.Now().Add(time.Minute))
	require.NoError(t, err)
	p.SetKeys(settings.Settings{})
	p.end(used, true)
	require.Equal(t, "accepted", classes(t, c, p.Send(t.Context(), c)))
	require.Equal(t, 2, s.conns)
}

// TestTogether: one mail to several is one transaction, and goes to all of them or to none.
func TestTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replies map[string]string
		want    string
		taken   int
	}{
		"all":             {nil, "accepted accepted accepted", 1},
		"one is refused":  {map[string]string{"RCPT u2@x.test": "550 5.1.1 no such user"}, "split rejected_recipient split", 0},
		"DATA is refused": {map[string]string{"DATA": "550 5.1.1 no such user"}, "rejected_here rejected_here rejected_here", 0},
		"all are refused": {map[string]string{".": "554 5.7.1 spam"}, "rejected_here rejected_here rejected_here", 1},
		"no answer":       {map[string]string{".": "drop"}, "unknown unknown unknown", 1},
	} {
		for way, caps := range ways {
			s := newServer(t, c.replies, caps...)
			p := newAdapter(t, s)
			to := call(3)
			to.Recipients[0].Role, to.Recipients[1].Role, to.Recipients[2].Role = models.To, models.CC, models.BCC
			require.Equal(t, c.want, classes(t, to, p.Send(t.Context(), to)), "%s, %s", name, way)
			got := s.taken()
			require.Len(t, got, c.taken, "%s, %s", name, way)
			if len(got) > 0 {
				require.Equal(t, []string{"u1@x.test", "u2@x.test", "u3@x.test"}, got[0].to, name)
				require.NotContains(t, got[0].body, "u3@x.test", name)
				require.Contains(t, got[0].body, "Cc: <u2@x.test>", name)
			}
		}
	}
	for way, caps := range ways {
		s := newServer(t, map[string]string{"RCPT u2@x.test": "421 4.3.2 stops"}, caps...)
		p := newAdapter(t, s)
		for _, c := range []*models.Call{call(1), together(3)} {
			require.NotContains(t, classes(t, c, p.Send(t.Context(), c)), "unknown", way)
		}
		require.Equal(t, 1, s.conns, "the mail to several is not repeated: %s", way)
	}
}

// TestNothingAfterTheCall: when the call's time is over, the connection is closed, and no mail is ended by that.
func TestNothingAfterTheCall(t *testing.T) {
	t.Parallel()
	for way, caps := range ways {
		s := newServer(t, map[string]string{"DATA": "hang"}, caps...)
		p := newAdapter(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		c := call(2)
		done := make(chan []models.Part)
		go func() { done <- p.Send(ctx, c) }()
		<-s.hung
		cancel()
		require.Equal(t, "unavailable unavailable", classes(t, c, <-done), way)
		require.Empty(t, s.taken(), way)

		c.StartBy = time.Now().Add(-time.Second)
		parts := p.Send(t.Context(), c)
		require.Equal(t, models.NotComposed, parts[0].Reason)
	}
}

// TestChecks: mistakes in the settings are reported together.
func TestChecks(t *testing.T) {
	t.Parallel()
	good := settings.Settings{Name: "r", Kind: "smtp",
		Server: common.Server{Host: "smtp.example.com", User: "u", Password: "p"}}
	with := func(change func(*settings.Settings)) settings.Settings {
		s := good
		change(&s)
		return s
	}
	withTokens := func(change func(*settings.Settings)) settings.Settings {
		return with(func(s *settings.Settings) {
			s.Password, s.TokenURL, s.ClientID, s.RefreshToken = "", "https://x.test/token", "c", "r"
			change(s)
		})
	}
	tokens := map[string]struct {
		change  func(s *settings.Settings)
		mistake string
	}{
		"tokens without a user":     {func(s *settings.Settings) { s.User = "" }, "user"},
		"tokens and a password":     {func(s *settings.Settings) { s.Password = "p" }, "password"},
		"tokens without a secret":   {func(s *settings.Settings) { s.RefreshToken = "" }, "oauth_client_secret"},
		"tokens, readable":          {func(s *settings.Settings) { s.TokenURL = "http://x.test/" }, "oauth_token_url"},
		"tokens, a password in it":  {func(s *settings.Settings) { s.TokenURL = "https://a:b@x.test/" }, "oauth_token_url"},
		"tokens with a scope twice": {func(s *settings.Settings) { s.Scope = "mail" }, "oauth_scope"},
		"tokens, no host":           {func(s *settings.Settings) { s.TokenURL = "x.test/token" }, "oauth_token_url"},
	}
	for name, c := range tokens {
		errs := Check(withTokens(c.change))
		require.Len(t, errs, 1, name)
		var m settings.Mistake
		require.ErrorAs(t, errs[0], &m, name)
		require.Equal(t, c.mistake, m.Setting, name)
	}
	for name, c := range map[string]struct {
		s    settings.Settings
		want []string
	}{
		"good":                {good, nil},
		"no host":             {with(func(s *settings.Settings) { s.Host = "" }), []string{"host"}},
		"a URL":               {with(func(s *settings.Settings) { s.Host = "smtp://x" }), []string{"host"}},
		"a port in it":        {with(func(s *settings.Settings) { s.Host = "x.test:25" }), []string{"host"}},
		"half an account":     {with(func(s *settings.Settings) { s.Password = "" }), []string{"user"}},
		"readable on the way": {with(func(s *settings.Settings) { s.TLS = common.NoTLS }), []string{"tls"}},
		"readable here":       {with(func(s *settings.Settings) { s.TLS, s.Host = common.NoTLS, "127.0.0.1" }), nil},
		"no such encryption":  {with(func(s *settings.Settings) { s.TLS = "ssl" }), []string{"tls"}},
		"several":             {with(func(s *settings.Settings) { s.Host, s.Port = "", -1 }), []string{"host", "port"}},
		"events":              {with(func(s *settings.Settings) { s.Events, s.WebhookKey = models.EventsWebhook, "k" }), []string{"events"}},
		"LMTP without a port": {with(func(s *settings.Settings) { s.Kind, s.Host = "lmtp", "127.0.0.1" }), []string{"port"}},
		"LMTP with STARTTLS": {with(func(s *settings.Settings) {
			s.Kind, s.Host, s.Port, s.TLS = "lmtp", "lmtp.example.com", 24, common.StartTLS
		}), []string{"tls"}},
		"LMTP through a socket": {with(func(s *settings.Settings) { s.Kind, s.Host = "lmtp", "/run/lmtp" }), nil},
		"SMTP through a socket": {with(func(s *settings.Settings) { s.Host = "/run/smtp" }), []string{"host"}},
		"access tokens":         {withTokens(func(*settings.Settings) {}), nil},
		"tokens of a client": {withTokens(func(s *settings.Settings) {
			s.ClientSecret, s.RefreshToken, s.TokenURL = "s", "", "http://127.0.0.1/"
		}), nil},
		"half the settings of tokens": {with(func(s *settings.Settings) { s.ClientID = "c" }),
			[]string{"oauth_token_url", "oauth_client_secret", "password"}},
	} {
		var got []string
		for _, err := range Check(c.s) {
			m, ok := err.(settings.Mistake) //nolint:errorlint // each is one
			require.True(t, ok)
			got = append(got, m.Setting)
		}
		require.Equal(t, c.want, got, name)
	}
}
