package smtp

import (
	"context"
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // CRAM-MD5 (RFC 2195)
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
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
}

var errLate = errors.New("the call's time is over")

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
	c.end = end
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
	conn *conn
	used time.Time // when it became idle
	kept bool      // it was idle before
}

// abort closes the connection without another command: the client would end the mail before it.
func (s *session) abort() {
	_ = s.conn.Conn.Close()
	_ = s.Client.Close()
}

// pool keeps idle sessions.
type pool struct {
	most int
	mu   sync.Mutex
	idle []*session
}

// take returns an idle session, the newest; nil: there is none.
func (p *pool) take() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		s := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if time.Since(s.used) < idleLimit {
			s.kept = true
			return s
		}
		s.abort()
	}
	return nil
}

// keep keeps a session whose transaction has ended, and closes those that are idle for too long.
func (p *pool) keep(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.used = time.Now()
	p.idle = slices.DeleteFunc(append(p.idle, s), func(s *session) bool {
		old := time.Since(s.used) >= idleLimit
		if old {
			s.abort()
		}
		return old
	})
	if len(p.idle) > p.most {
		p.idle[0].abort()
		p.idle = p.idle[1:]
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.idle {
		s.abort()
	}
	p.idle = nil
}

// open returns a session for a call that ends at end: an idle one or a new one. The error is that of the step that
// failed.
func (p *Adapter) open(ctx context.Context, end time.Time) (*session, error) {
	if s := p.sessions.take(); s != nil {
		s.conn.until(end)
		return s, nil
	}
	return p.dial(ctx, end)
}

// dial connects, encrypts and logs in.
func (p *Adapter) dial(ctx context.Context, end time.Time) (*session, error) {
	network := "tcp"
	if strings.HasPrefix(p.address, "/") {
		network = "unix"
	}
	raw, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, p.address)
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
	if err := s.Hello(p.hello); err != nil {
		s.abort()
		return nil, err
	}
	if a := p.account.Load(); a.user != "" {
		mechanism := choose(s.Client, a)
		if mechanism == nil {
			s.abort()
			return nil, errNoLogin
		}
		if err := s.Auth(mechanism); err != nil {
			s.abort()
			return nil, err
		}
	}
	return s, nil
}

// greet returns a session on a connection, with its encryption.
func (p *Adapter) greet(ctx context.Context, c *conn) (*session, error) {
	secure := &tls.Config{ServerName: p.host, RootCAs: p.roots, MinVersion: tls.VersionTLS12}
	s := &session{conn: c}
	switch {
	case p.tls == settings.TLS:
		over := tls.Client(c, secure)
		if err := over.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		s.Client = p.client(over)
	case p.tls == settings.StartTLS && !p.lmtp:
		client, err := smtp.NewClientStartTLS(c, secure)
		if err != nil {
			return nil, err
		}
		s.Client = client
	default:
		s.Client = p.client(c)
	}
	return s, nil
}

func (p *Adapter) client(c net.Conn) *smtp.Client {
	if p.lmtp {
		return smtp.NewClientLMTP(c)
	}
	return smtp.NewClient(c)
}

var errNoLogin = errors.New("the server offers no way to log in that is known here: PLAIN, LOGIN, CRAM-MD5 or XOAUTH2")

// choose returns the way to log in: the first that the server offers.
func choose(c *smtp.Client, a *account) sasl.Client {
	switch {
	case c.SupportsAuth(sasl.Plain):
		return sasl.NewPlainClient("", a.user, a.password)
	case c.SupportsAuth(sasl.Login):
		return &login{[]string{a.user, a.password}}
	case c.SupportsAuth("CRAM-MD5"):
		return &cramMD5{a.user, a.password}
	case c.SupportsAuth("XOAUTH2"):
		return &xoauth2{a.user, a.password}
	}
	return nil
}

// login implements sasl.Client. The words of the server differ, so that only their order counts.
type login struct{ answers []string }

// Start implements sasl.Client.
func (*login) Start() (string, []byte, error) { return sasl.Login, nil, nil }

// Next implements sasl.Client.
func (l *login) Next([]byte) (answer []byte, err error) {
	if len(l.answers) == 0 {
		return nil, sasl.ErrUnexpectedServerChallenge
	}
	answer, l.answers = []byte(l.answers[0]), l.answers[1:]
	return answer, nil
}

// cramMD5 implements sasl.Client (RFC 2195).
type cramMD5 struct{ user, password string }

// Start implements sasl.Client.
func (*cramMD5) Start() (string, []byte, error) { return "CRAM-MD5", nil, nil }

// Next implements sasl.Client.
func (c *cramMD5) Next(challenge []byte) ([]byte, error) {
	h := hmac.New(md5.New, []byte(c.password))
	h.Write(challenge)
	return []byte(c.user + " " + hex.EncodeToString(h.Sum(nil))), nil
}

// xoauth2 implements sasl.Client, as Google and Microsoft describe it. The password is an access token.
type xoauth2 struct{ user, token string }

// Start implements sasl.Client.
func (x *xoauth2) Start() (string, []byte, error) {
	return "XOAUTH2", []byte("user=" + x.user + "\x01auth=Bearer " + x.token + "\x01\x01"), nil
}

// Next implements sasl.Client: the server tells what is wrong, and refuses after an empty answer.
func (*xoauth2) Next([]byte) ([]byte, error) { return []byte{}, nil }
