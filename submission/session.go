package submission

import (
	"context"
	"crypto/tls"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/requestlog"
)

// session decides about the commands of a client, from EHLO to the end of the connection or to STARTTLS.
type session struct {
	server *Server
	smtp   *smtp.Conn
	conn   *conn
	ctx    context.Context //nolint:containedctx // of the session
	cancel context.CancelFunc

	secret string // of the key; empty: the client has not logged in

	mu   sync.Mutex // a message in chunks is read while commands change the envelope
	mail *envelope  // nil: there is no sender
}

// envelope has the addresses of a message, as the commands name them.
type envelope struct {
	who  service.Caller
	from string
	to   []string
}

// newSession implements smtp.Backend.
func (s *Server) newSession(c *smtp.Conn) (smtp.Session, error) {
	n := &session{server: s, smtp: c}
	switch below := c.Conn().(type) {
	case *conn:
		n.conn = below
	case *tls.Conn:
		n.conn, _ = below.NetConn().(*conn)
	}
	n.conn.stage.CompareAndSwap(stranger, greeted)
	n.ctx, n.cancel = context.WithCancel(s.cfg.Context(s.ctx, n.conn.Conn))
	return n, nil
}

// Logout implements smtp.Session.
func (s *session) Logout() error {
	s.cancel()
	return nil
}

// Reset implements smtp.Session. go-smtp may give the result of a message that RSET ends between two chunks to the next
// one, so there is no next one.
func (s *session) Reset() {
	s.conn.open.Store(false)
	if s.conn.until.Load() != nil {
		s.conn.ended.Store(true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mail = nil
}

// AuthMechanisms implements smtp.AuthSession.
func (s *session) AuthMechanisms() []string {
	if !s.mayLogin() {
		return nil
	}
	return []string{sasl.Plain, sasl.Login}
}

// mayLogin reports whether only the client can read the password.
func (s *session) mayLogin() bool {
	_, secure := s.smtp.TLSConnectionState()
	return secure || s.conn.address().IsLoopback()
}

// Auth implements smtp.AuthSession.
func (s *session) Auth(mechanism string) (sasl.Server, error) {
	if !s.mayLogin() {
		return nil, errNoTLS
	}
	if s.conn.logins++; s.conn.logins > maxLogins {
		s.conn.ended.Store(true)
		return nil, errLogins
	}
	switch mechanism {
	case sasl.Plain:
		return &plainLogin{s.login}, nil
	case sasl.Login:
		return &login{check: s.login}, nil
	}
	return nil, errMechanism
}

// login logs in by the secret of a key.
func (s *session) login(secret string) error {
	secret = strings.TrimSpace(secret)
	_, err := s.authenticate(secret)
	if err == nil {
		s.secret = secret
		s.conn.stage.Store(loggedIn)
		return nil
	}
	answer, code := replyTo(err)
	if answer.Code/100 == 4 {
		return reply(454, smtp.EnhancedCode{4, 7, 0}, "%s", answer.Message)
	}
	s.server.log.Debug("login refused", "code", code, "address", s.conn.address().String())
	turn := s.server.strangers.Of(s.conn.address()).Reserve()
	wait := turn.Delay()
	if wait > strangerWait {
		turn.Cancel() // no client collects waits
		wait = strangerWait
	}
	models.Pause(s.ctx, wait)
	if s.conn.logins == maxLogins {
		s.conn.ended.Store(true)
		return errLogins
	}
	return reply(535, smtp.EnhancedCode{5, 7, 8}, "%s", answer.Message)
}

// authenticate returns the caller with the secret of a key. It is asked again for each message, because a connection
// may last longer than the key.
func (s *session) authenticate(secret string) (service.Caller, error) {
	who, err := s.server.svc.People.Authenticate(s.ctx, secret, s.conn.address())
	if err == nil {
		err = who.Need(models.ScopeSend)
	}
	if err == nil {
		known.Mark(s.ctx)
	}
	who.Via = "smtp"
	return who, err
}

// Mail implements smtp.Session.
func (s *session) Mail(from string, o *smtp.MailOptions) error {
	switch {
	case s.server.stopping.Load():
		s.conn.ended.Store(true)
		return errStopping
	case s.secret == "":
		return errNoKey
	case s.mail != nil:
		return errSecondMail
	case o.Size > s.server.cfg.Size:
		return s.server.tooLarge()
	}
	who, err := s.authenticate(s.secret)
	if err != nil {
		answer, _ := replyTo(err)
		return answer
	}
	if from != "" { // reports have no sender
		if from, err = address(from, smtp.EnhancedCode{5, 1, 7}); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mail = &envelope{who: who, from: from}
	return nil
}

// Rcpt implements smtp.Session.
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	to, err := address(to, smtp.EnhancedCode{5, 1, 3})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mail == nil {
		return errNoKey
	}
	if len(s.mail.to) == maxRecipients {
		return errRecipients
	}
	s.mail.to = append(s.mail.to, to)
	s.conn.open.Store(true)
	return nil
}

// address returns an address with its domain in ASCII and lower case. go-smtp has removed the quotes of a quoted local
// part, so that any byte may be in it. No provider takes such an address.
func address(s string, enhanced smtp.EnhancedCode) (string, error) {
	local, _, _ := strings.Cut(s, "@")
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f || strings.IndexByte(`"(),:;<>[\]`, c) >= 0 {
			return "", reply(501, enhanced, "The address has a character that no mail address has here.")
		}
		if i < len(local) && s[i] >= 0x80 {
			return "", errLocalPart
		}
	}
	a, err := intake.ParseAddress(s)
	if err != nil {
		return "", reply(501, enhanced, "The address %s.", err)
	}
	return a.Email, nil
}

// Data implements smtp.Session. go-smtp calls it in the goroutine of the commands, or beside them for a message in
// chunks.
func (s *session) Data(r io.Reader) error {
	began := time.Now()
	until := began.Add(messageTime)
	s.conn.until.Store(&until)
	defer s.conn.until.Store(nil)
	s.mu.Lock()
	if s.mail == nil {
		s.mu.Unlock()
		s.conn.ended.Store(true)
		return smtp.ErrDataReset // a command came before the first chunk was read
	}
	e := *s.mail
	s.mu.Unlock()
	line := requestlog.Line{Method: "SMTP", Path: "DATA", Request: models.NewUserID()}
	m := &message{session: s, envelope: e}
	batch, err := m.take(r)
	if err == smtp.ErrDataReset { //nolint:errorlint // go-smtp returns it itself
		return err
	}
	answer, code := reply(250, smtp.NoEnhancedCode, "Ok: queued as %x", batch[:]), ""
	if err != nil {
		answer, code = replyTo(err)
		if tooMuch(answer) {
			s.server.cfg.Refused()
		}
		if answer.Code == 450 {
			models.Pause(s.ctx, refusalPause)
		}
		if answer.Code == 451 && s.ctx.Err() == nil {
			s.server.log.Error("message not taken", "code", code, "err", err, "request_id", line.Request)
		}
	}
	line.Status, line.Code, line.Batch, line.Took = answer.Code, code, batch, time.Since(began)
	s.server.svc.People.LogRequest(m.who, line)
	s.server.mu.Lock()
	s.server.replies[answer.Code]++
	s.server.mu.Unlock()
	return answer
}
