package smtp

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
	"github.com/safedelivr/safedelivr/providers/internal/oauth/oauthtest"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// backend is a server of go-smtp with one user. It has the mails that it took.
type backend struct {
	mechanisms []string
	tokens     *oauthtest.Server // whose tokens XOAUTH2 takes; nil: one that never changes
	refuse     map[string]bool   // recipients whose mail is refused at its end

	mu    sync.Mutex
	login []string // how users logged in
	to    []string
}

// NewSession implements smtp.Backend.
func (b *backend) NewSession(*smtp.Conn) (smtp.Session, error) {
	return &backendSession{backend: b}, nil
}

type backendSession struct {
	*backend
	rcpt []string
}

// AuthMechanisms implements smtp.AuthSession.
func (s *backendSession) AuthMechanisms() []string { return s.mechanisms }

// Auth implements smtp.AuthSession.
func (s *backendSession) Auth(mechanism string) (sasl.Server, error) {
	noted := func(ok bool) error {
		if !ok {
			return smtp.ErrAuthFailed
		}
		s.mu.Lock()
		s.login = append(s.login, mechanism)
		s.mu.Unlock()
		return nil
	}
	switch mechanism {
	case sasl.Plain:
		return sasl.NewPlainServer(func(_, user, password string) error { return noted(user == "ann" && password == "s3cret") }), nil
	case sasl.Login:
		return &dialogue{steps: []string{"Username:", "Password:"}, end: func(answers []string) error {
			return noted(answers[0] == "ann" && answers[1] == "s3cret")
		}}, nil
	case "CRAM-MD5": // the example of RFC 2195 has another user
		return &dialogue{steps: []string{"<1@x>"}, end: func(answers []string) error {
			return noted(answers[0] == "ann 3a871483302f2468ce31bf927949700a")
		}}, nil
	case "SCRAM-SHA-256":
		return &scram{end: noted}, nil
	case "XOAUTH2":
		return &dialogue{initial: true, end: func(answers []string) error {
			if s.tokens != nil {
				return noted(s.tokens.Valid("ann", answers[0]))
			}
			return noted(answers[0] == "user=ann\x01auth=Bearer s3cret\x01\x01")
		}}, nil
	}
	return nil, errors.New("no such mechanism")
}

// dialogue implements sasl.Server: it says each step, and decides by the answers.
type dialogue struct {
	initial bool // the first answer comes with the command
	steps   []string
	answers []string
	end     func([]string) error
	begun   bool
}

// Next implements sasl.Server.
func (d *dialogue) Next(answer []byte) ([]byte, bool, error) {
	if d.begun || d.initial {
		d.answers = append(d.answers, string(answer))
	}
	d.begun = true
	if len(d.steps) == 0 {
		return nil, true, d.end(d.answers)
	}
	step := d.steps[0]
	d.steps = d.steps[1:]
	return []byte(step), false, nil
}

// scram implements sasl.Server with SCRAM-SHA-256 (RFC 5802, RFC 7677) for the user ann with the password s3cret.
type scram struct {
	said []string // by the client and the server in turn
	end  func(ok bool) error
}

// Next implements sasl.Server.
func (s *scram) Next(answer []byte) (challenge []byte, done bool, err error) {
	if len(answer) == 0 && len(s.said) < 4 {
		return []byte{}, false, nil
	}
	hash := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		_, _ = h.Write([]byte(text))
		return h.Sum(nil)
	}
	s.said = append(s.said, string(answer))
	switch len(s.said) {
	case 1:
		_, nonce, _ := strings.Cut(string(answer), ",r=")
		s.said = append(s.said, "r="+nonce+"server,s="+base64.StdEncoding.EncodeToString([]byte("salt"))+",i=4096")
		return []byte(s.said[1]), false, nil
	case 3:
		final, proof, _ := strings.Cut(string(answer), ",p=")
		all := strings.TrimPrefix(s.said[0], "n,,") + "," + s.said[1] + "," + final
		salted, err := pbkdf2.Key(sha256.New, "s3cret", []byte("salt"), 4096, sha256.Size)
		if err != nil {
			return nil, false, err
		}
		key := hash(salted, "Client Key")
		stored := sha256.Sum256(key)
		subtle.XORBytes(key, key, hash(stored[:], all))
		if !strings.HasPrefix(s.said[0], "n,,n=ann,") || proof != base64.StdEncoding.EncodeToString(key) {
			return nil, false, s.end(false)
		}
		s.said = append(s.said, "v="+base64.StdEncoding.EncodeToString(hash(hash(salted, "Server Key"), all)))
		return []byte(s.said[3]), false, nil
	}
	return nil, true, s.end(true)
}

// Reset implements smtp.Session.
func (s *backendSession) Reset() { s.rcpt = nil }

// Logout implements smtp.Session.
func (*backendSession) Logout() error { return nil }

// Mail implements smtp.Session.
func (*backendSession) Mail(string, *smtp.MailOptions) error { return nil }

// Rcpt implements smtp.Session.
func (s *backendSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.rcpt = append(s.rcpt, to)
	return nil
}

// Data implements smtp.Session.
func (s *backendSession) Data(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, to := range s.rcpt {
		if s.refuse[to] {
			return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such user"}
		}
	}
	s.to = append(s.to, s.rcpt...)
	return err
}

// serve runs a server of go-smtp and returns where it listens.
func (b *backend) serve(t *testing.T, secure *tls.Config, from string, lmtp bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	s := smtp.NewServer(b)
	s.Domain, s.AllowInsecureAuth, s.LMTP = "test.example", true, lmtp
	switch from {
	case common.TLS:
		l = tls.NewListener(l, secure)
	case common.StartTLS:
		s.TLSConfig = secure
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return address
}

// TestLogins: each way to log in and each encryption works with a server of somebody else. A wrong password is a matter
// of the account, and is in no text.
func TestLogins(t *testing.T) {
	t.Parallel()
	for _, mechanism := range []string{sasl.Plain, sasl.Login, "SCRAM-SHA-256", "CRAM-MD5", "XOAUTH2"} {
		b := &backend{mechanisms: []string{mechanism}}
		s := &server{address: b.serve(t, nil, common.NoTLS, false)}
		right := newAdapter(t, s, func(s *settings.Settings) { s.User, s.Password = "ann", "s3cret" })
		c := call(2)
		require.Equal(t, "accepted accepted", classes(t, c, right.Send(t.Context(), c)), mechanism)
		require.Equal(t, []string{mechanism}, b.login)
		require.Equal(t, []string{"u1@x.test", "u2@x.test"}, b.to)
		wrong := newAdapter(t, s, func(s *settings.Settings) { s.User, s.Password = "ann", "wr0ng-one" })
		parts := wrong.Send(t.Context(), c)
		require.Equal(t, "account account", classes(t, c, parts), mechanism)
		require.NotContains(t, parts[0].Text, "wr0ng-one")
	}
	b := &backend{}
	p := newAdapter(t, &server{address: b.serve(t, nil, common.NoTLS, false)}, func(s *settings.Settings) {
		s.User, s.Password = "ann", "s3cret"
	})
	c := call(1)
	parts := p.Send(t.Context(), c)
	require.Equal(t, "account", classes(t, c, parts))
	require.Contains(t, parts[0].Text, "offers no way to log in")
}

// TestAccessTokens: the adapter logs in with tokens of a token server. A token that was revoked is replaced without a
// refusal that anybody sees. Without a token nothing is sent, and texts have no secrets.
func TestAccessTokens(t *testing.T) {
	t.Parallel()
	tokens := oauthtest.New(t, "r3fresh")
	b := &backend{mechanisms: []string{sasl.Plain, oauth.Mechanism}, tokens: tokens}
	p := newAdapter(t, &server{address: b.serve(t, nil, common.NoTLS, false)}, func(s *settings.Settings) {
		s.User, s.OAuth = "ann", tokens.OAuth
	})
	send := func(class string) string {
		t.Helper()
		c := call(1)
		parts := p.Send(t.Context(), c)
		require.Equal(t, class, classes(t, c, parts), "%+v", parts)
		return parts[0].Text
	}
	send("accepted")
	require.Equal(t, []string{oauth.Mechanism}, b.login, "a password is never asked for")
	tokens.Revoke()
	p.sessions.close()
	send("accepted")
	require.Equal(t, []string{oauth.Mechanism, oauth.Mechanism}, b.login)

	s := settings.Settings{Server: common.Server{User: "ann"}, OAuth: tokens.OAuth}
	asked := len(tokens.Asked())
	p.SetKeys(s) // another setting has changed
	send("accepted")
	require.Len(t, tokens.Asked(), asked, "the token is kept")
	s.RefreshToken = "0ther"
	p.SetKeys(s)
	require.Equal(t, "the token server gives no access token: invalid_grant", send("account"))
	a, err := p.Inspect(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, inspect.Wrong, a.Findings[0].State)
	require.Contains(t, a.Findings[0].Text, "the token server gives no access token: invalid_grant")
	s.OAuth = tokens.OAuth
	s.TokenURL = "http://127.0.0.1:1/"
	p.SetKeys(s)
	require.Contains(t, send("unavailable"), "the token server cannot be asked")
	p.SetKeys(settings.Settings{Server: common.Server{User: "ann"}, OAuth: tokens.OAuth})
	send("accepted")
	require.Len(t, b.to, 4)
}

// TestEchoedToken: a server that repeats what it was sent does not bring a token into a text.
func TestEchoedToken(t *testing.T) {
	t.Parallel()
	tokens := oauthtest.New(t, "")
	first := "t0ken-1"
	_, said, err := oauth.Client("ann", first).Start()
	require.NoError(t, err)
	s := newServer(t, map[string]string{"AUTH": "535 what is " + base64.StdEncoding.EncodeToString(said) + " or " + first},
		"AUTH XOAUTH2")
	c := call(1)
	parts := newAdapter(t, s, func(s *settings.Settings) { s.User, s.OAuth = "ann", tokens.OAuth }).Send(t.Context(), c)
	require.Equal(t, "account", classes(t, c, parts))
	require.Equal(t, "what is <secret> or <secret>", parts[0].Text)
}

// TestCertificates: mail and passwords go only to a server whose certificate is valid.
func TestCertificates(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{common.TLS, common.StartTLS} {
		b := &backend{mechanisms: []string{sasl.Plain}}
		ca, dir := testkit.NewAuthority(t), t.TempDir()
		ca.Certificate(t, dir+"/cert", dir+"/key", "127.0.0.1", time.Hour)
		cert, err := tls.LoadX509KeyPair(dir+"/cert", dir+"/key")
		require.NoError(t, err)
		s := &server{address: b.serve(t, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, mode, false)}
		encrypted := func(s *settings.Settings) { s.TLS, s.User, s.Password = mode, "ann", "s3cret" }
		c := call(1)
		parts := newAdapter(t, s, encrypted).Send(t.Context(), c)
		require.Equal(t, "account", classes(t, c, parts), mode)
		require.Contains(t, parts[0].Text, "certificate", mode)
		require.Empty(t, b.login, "the password was not sent")
		p := newAdapter(t, s, encrypted)
		p.roots = ca.Pool
		require.Equal(t, "accepted", classes(t, c, p.Send(t.Context(), c)), mode)
	}
	b := &backend{}
	p := newAdapter(t, &server{address: b.serve(t, nil, common.NoTLS, false)}, func(s *settings.Settings) {
		s.TLS = common.StartTLS
	})
	c := call(1)
	require.Equal(t, "unavailable", classes(t, c, p.Send(t.Context(), c)), "no STARTTLS, no mail")
	require.Empty(t, b.to)
}

// TestInspect: a check logs in and sends nothing. It says what is wrong with the account.
func TestInspect(t *testing.T) {
	t.Parallel()
	b := &backend{mechanisms: []string{sasl.Plain}}
	s := &server{address: b.serve(t, nil, common.NoTLS, false)}
	for password, want := range map[string]inspect.State{"s3cret": inspect.OK, "wr0ng-one": inspect.Wrong} {
		p := newAdapter(t, s, func(s *settings.Settings) { s.User, s.Password = "ann", password })
		a, err := p.Inspect(t.Context(), "")
		require.NoError(t, err)
		at := slices.IndexFunc(a.Findings, func(f inspect.Finding) bool { return f.About == "account" })
		require.GreaterOrEqual(t, at, 0)
		require.Equal(t, want, a.Findings[at].State)
		require.NotContains(t, a.Findings[at].Text, password)
	}
	require.Empty(t, b.to)
	gone := newServer(t, map[string]string{"": "drop"})
	_, err := newAdapter(t, gone).Inspect(t.Context(), "")
	require.ErrorContains(t, err, "cannot be reached")
}

// TestLMTP: the server answers for each recipient after the content.
func TestLMTP(t *testing.T) {
	t.Parallel()
	b := &backend{refuse: map[string]bool{"u2@x.test": true}}
	p := newAdapter(t, &server{address: b.serve(t, nil, common.NoTLS, true)}, func(s *settings.Settings) { s.Kind = "lmtp" })
	c := call(3)
	parts := p.Send(t.Context(), c)
	require.Equal(t, "accepted rejected_recipient accepted", classes(t, c, parts), "%+v", parts)
	require.Equal(t, []string{"u1@x.test", "u3@x.test"}, b.to)
	require.False(t, CarriesLMTP().Copies)
}
