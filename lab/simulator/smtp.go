package simulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	sim "github.com/safedelivr/safedelivr/lab/simulator/internal/smtp"
)

// ServeSMTP serves an account of the kind SMTP or LMTP until the listener or the simulator is closed. A transaction is
// a call. Any user may log in with the key of the account, and on plain connections, too.
func (s *Simulator) ServeSMTP(l net.Listener, account string) error {
	a := s.account(account)
	if a == nil || a.provider.Kind != SMTP && a.provider.Kind != LMTP {
		return fmt.Errorf("%w: no account %q takes SMTP", errNoAccount, account)
	}
	server := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &session{a: a, conn: c}, nil
	}))
	server.Domain, server.LMTP, server.AllowInsecureAuth, server.EnableDSN = "simulator.test", a.provider.Kind == LMTP, true, true
	server.EnableSMTPUTF8, server.MaxMessageBytes = true, sim.MaxMail
	server.ErrorLog = log.New(io.Discard, "", 0) // of connections that clients and faults break
	defer context.AfterFunc(s.ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, smtp.ErrServerClosed) {
		return err
	}
	return nil
}

// A session is a connection of a client.
type session struct {
	a    *account
	conn *smtp.Conn
	from string
	id   string // of the envelope (RFC 3461, 4.4)
	to   []string
}

// Reset implements smtp.Session.
func (t *session) Reset() { t.from, t.id, t.to = "", "", nil }

// Logout implements smtp.Session.
func (t *session) Logout() error { return nil }

// AuthMechanisms implements smtp.AuthSession.
func (t *session) AuthMechanisms() []string { return []string{sasl.Plain} }

// Auth implements smtp.AuthSession.
func (t *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, _, password string) error {
		if password != t.a.provider.Customer.Key {
			return smtp.ErrAuthFailed
		}
		return nil
	}), nil
}

// Mail implements smtp.Session.
func (t *session) Mail(from string, o *smtp.MailOptions) error {
	t.from, t.id = from, o.EnvelopeID
	return nil
}

// Rcpt implements smtp.Session. An address whose mail bounces does not exist here. A copy is kept all the same.
func (t *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	o := message.OutcomeOf(to, t.a.name)
	if !slices.Contains(sim.Unknown, o) {
		t.to = append(t.to, to)
		return nil
	}
	if o == message.HardBounce {
		copied := message.Copy{Address: to, Metadata: sim.Metadata(t.id, t.a.s.opts.RecipientKey)}
		t.a.accept([]*message.Batch{{From: t.from, Copies: []message.Copy{copied}}}, nil)
	}
	return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "No such user"}
}

// Data implements smtp.Session. It makes the exchange of a call, whose answer is the reply.
func (t *session) Data(r io.Reader) error {
	ctx, left := context.WithCancel(t.a.s.ctx)
	defer left()
	body := &content{in: r, conn: t.conn.Conn(), left: left}
	request := (&http.Request{Method: http.MethodPost, Header: http.Header{sim.From: {t.from}, sim.To: t.to, sim.Envelope: {t.id}}, Body: body,
		ContentLength: -1}).WithContext(ctx)
	var w recorder
	answered := completes(func() { t.a.exchange(&w, request, t.a.provider.Routes[0].Send) })
	body.end()
	if answered && w.status == 0 { // not the reply of a mail server
		_, _ = w.WriteTo(t.conn.Conn())
	}
	if !answered || w.status == 0 {
		_ = t.conn.Conn().Close()
		return errClosed
	}
	if w.status/100 == 2 {
		return t.report()
	}
	e := &smtp.SMTPError{Code: w.status, Message: w.String()}
	if n, _ := fmt.Sscanf(e.Message, "%d.%d.%d", &e.EnhancedCode[0], &e.EnhancedCode[1], &e.EnhancedCode[2]); n == 3 {
		_, e.Message, _ = strings.Cut(e.Message, " ")
	}
	return e
}

// report puts the reports about an accepted mail into the Maildir of the account.
func (t *session) report() error {
	for _, to := range t.to {
		raw, ok := sim.Report(message.OutcomeOf(to, t.a.name), t.from, to)
		folder := t.a.provider.Customer.Maildir
		if !ok || folder == "" {
			continue
		}
		f, err := os.CreateTemp(filepath.Join(folder, "tmp"), "*.simulator")
		if err == nil {
			_, err = f.WriteString(raw)
			err = errors.Join(err, f.Close(), os.Rename(f.Name(), filepath.Join(folder, "new", filepath.Base(f.Name()))))
		}
		if err != nil {
			t.a.s.log.Error("simulator: writing a report", "account", t.a.name, "err", err)
		}
	}
	return nil
}

// completes runs an exchange, and reports whether it was not aborted.
func completes(exchange func()) (ok bool) {
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // it is this value
			panic(v)
		}
	}()
	exchange()
	return true
}

// A content is the body of a transaction. It is read whole with the first Read. Then it calls left if the client leaves,
// until end is called.
type content struct {
	in    io.Reader
	conn  net.Conn
	left  func()
	whole *bytes.Reader // nil until it is read
	ended chan struct{} // closed when the client is watched no more
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	if c.whole == nil {
		data, err := io.ReadAll(c.in)
		if err != nil {
			return 0, err
		}
		c.whole, c.ended = bytes.NewReader(data), make(chan struct{})
		go func() {
			defer close(c.ended)
			if _, err := c.conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				c.left() // also if it goes on without waiting for the reply
			}
		}()
	}
	return c.whole.Read(p)
}

// Close implements io.Closer.
func (c *content) Close() error { return nil }

func (c *content) end() {
	if c.ended != nil {
		_ = c.conn.SetReadDeadline(time.Unix(1, 0))
		<-c.ended
		_ = c.conn.SetReadDeadline(time.Time{})
	}
}

// A recorder keeps an answer.
type recorder struct {
	bytes.Buffer
	status int
	header http.Header
}

// Header implements http.ResponseWriter.
func (w *recorder) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) { w.status = status }
