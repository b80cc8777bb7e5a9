package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
	auth "github.com/wneessen/go-mail/smtp"

	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// idleLimit is how long a connection is kept idle. Servers close one after five minutes (RFC 5321, 4.5.3.2.7), some after
// one.
const idleLimit = 30 * time.Second

// conn is a connection below its encryption. It knows whether all that was written has reached the system, and writes
// nothing once the call's time is over: a process that was stopped must not end a mail when it wakes.
type conn struct {
	net.Conn
	mu     sync.Mutex
	end    time.Time
	failed bool
	read   int // bytes in this call
}

// maxRead is how many bytes a server may send in a transaction: replies of many lines are kept in memory.
const maxRead = 1 << 20

// Read implements io.Reader.
func (c *conn) Read(b []byte) (int, error) {
	if c.read > maxRead {
		return 0, errLong
	}
	n, err := c.Conn.Read(b)
	c.read += n
	return n, err
}

var (
	errLate = errors.New("the call's time is over")
	errLong = errors.New("the replies of the server are too long")
)

// Write implements io.Writer.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || models.Passed(c.end) {
		c.failed = true
		return 0, errLate
	}
	n, err := c.Conn.Write(b)
	c.failed = n < len(b)
	return n, err
}

// until sets the end of the call that uses the connection.
func (c *conn) until(end time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end, c.read = end, 0
}

// cut reports whether a write was not completed, so that the server cannot have all of the mail.
func (c *conn) cut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// session is a connection that is ready for a transaction.
type session struct {
	*smtp.Client
	conn    *conn
	account *account
	used    time.Time // when it became idle
	kept    bool      // it was idle before
}

// abort closes the connection without another command: the client would end the mail before it.
func (s *session) abort() {
	_ = s.conn.Conn.Close()
	_ = s.Client.Close()
}

// pool keeps idle sessions.
type pool chan *session

// take returns an idle session of an account, and closes those of others; nil: there is none.
func (p pool) take(of *account) *session {
	for {
		select {
		case s := <-p:
			if s.account == of && time.Since(s.used) < idleLimit {
				s.kept = true
				return s
			}
			s.abort()
		default:
			return nil
		}
	}
}

// keep keeps a session whose transaction has ended.
func (p pool) keep(s *session) {
	s.used = time.Now()
	select {
	case p <- s:
	default:
		s.abort()
	}
}

func (p pool) close() {
	p.take(nil)
}

// dial connects, encrypts and logs in.
func (p *Adapter) dial(ctx context.Context, end time.Time) (*session, error) {
	network := "tcp"
	if strings.HasPrefix(p.address, "/") {
		network = "unix"
	}
	raw, err := p.connect(ctx, network, p.address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, end: end}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	s, err := p.greet(ctx, c)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	s.CommandTimeout, s.SubmissionTimeout = p.timeout, p.timeout
	if err = s.Hello(p.hello); err == nil {
		err = p.logIn(ctx, s)
	}
	if err != nil {
		s.abort()
	}
	return s, err
}

// greet returns a session on a connection, with its encryption. Replies of only a code are read, but not after STARTTLS:
// go-smtp encrypts the connection itself.
func (p *Adapter) greet(ctx context.Context, c *conn) (*session, error) {
	secure := &tls.Config{ServerName: p.host, RootCAs: p.roots, MinVersion: tls.VersionTLS12}
	var over net.Conn = c
	switch p.tls {
	case common.StartTLS:
		client, err := smtp.NewClientStartTLS(c, secure)
		return &session{Client: client, conn: c}, err
	case common.TLS:
		encrypted := tls.Client(c, secure)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		over = encrypted
	}
	if p.lmtp {
		return &session{Client: smtp.NewClientLMTP(parse.Spaced(over)), conn: c}, nil
	}
	return &session{Client: smtp.NewClient(parse.Spaced(over)), conn: c}, nil
}

var errNoLogin = errors.New("the server offers no way to log in that is known here, like PLAIN, LOGIN or SCRAM-SHA-256")

// mechanisms are the ways to log in with a password, the first that a server offers.
var mechanisms = []struct {
	name string
	auth func(user, password, host string) auth.Auth
}{
	{"PLAIN", func(user, password, host string) auth.Auth { return auth.PlainAuth("", user, password, host, true) }},
	{"LOGIN", func(user, password, host string) auth.Auth { return auth.LoginAuth(user, password, host, true) }},
	{"SCRAM-SHA-256", func(user, password, _ string) auth.Auth { return auth.ScramSHA256Auth(user, password) }},
	{"CRAM-MD5", func(user, password, _ string) auth.Auth { return auth.CRAMMD5Auth(user, password) }},
}

// login implements sasl.Client with a mechanism of go-mail.
type login struct {
	auth.Auth
	host string
}

// Start implements sasl.Client. The adapter has checked how the connection is encrypted.
func (l login) Start() (string, []byte, error) {
	return l.Auth.Start(&auth.ServerInfo{Name: l.host, TLS: true})
}

// Next implements sasl.Client.
func (l login) Next(challenge []byte) ([]byte, error) { return l.Auth.Next(challenge, true) }

// logIn logs in, if there is an account. A password may be an access token.
func (p *Adapter) logIn(ctx context.Context, s *session) error {
	a := p.account.Load()
	if s.account = a; a.user == "" {
		return nil
	}
	if a.tokens != nil {
		return a.tokens.Use(ctx, func(token string) (bool, error) {
			err := s.withToken(a.user, token)
			var reply *smtp.SMTPError
			return errors.As(err, &reply) && reply.Code >= 500, err
		})
	}
	for _, m := range mechanisms {
		if s.SupportsAuth(m.name) {
			return s.Auth(login{m.auth(a.user, a.password, p.host), p.host})
		}
	}
	return s.withToken(a.user, a.password)
}

// withToken logs in with an access token.
func (s *session) withToken(user, token string) error {
	if !s.SupportsAuth(oauth.Mechanism) {
		return errNoLogin
	}
	return s.Auth(oauth.Client(user, token))
}
