package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/esmtp"
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
	*esmtp.Client
	conn    *conn
	account *account
	used    time.Time // when it became idle
	kept    bool      // it was idle before
}

// abort closes the connection without another command.
func (s *session) abort() { _ = s.conn.Close() }

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
	s := &session{conn: &conn{Conn: raw, end: end}, account: p.account.Load()}
	stop := context.AfterFunc(ctx, s.abort)
	defer stop()
	s.Client, err = esmtp.Open(ctx, s.conn, &esmtp.Options{LMTP: p.lmtp, Domain: p.hello, Security: p.tls,
		TLS: &tls.Config{ServerName: p.host, RootCAs: p.roots, MinVersion: tls.VersionTLS12}})
	if err == nil {
		err = p.logIn(ctx, s)
	}
	if err != nil {
		s.abort()
	}
	return s, err
}

// logIn logs in, if there is an account. A password may be an access token.
func (p *Adapter) logIn(ctx context.Context, s *session) error {
	a := s.account
	switch {
	case a.user == "":
		return nil
	case a.tokens == nil:
		return s.LogIn(a.user, a.password, p.host)
	}
	return a.tokens.Use(ctx, func(token string) (refused bool, err error) {
		err = s.LogInWithToken(a.user, token)
		return esmtp.Code(err) >= 500, err
	})
}
