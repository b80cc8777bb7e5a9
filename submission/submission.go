// Package submission takes mail by SMTP (RFC 6409), from applications that log in with an API key.
//
// It is an entrance like api. A message is stored before its client gets the answer, with the checks, limits and
// certainty of any other batch. One message is one batch: see service/rawmail. The library go-smtp reads the
// commands. A session decides about them, and a conn keeps the bounds of time and size that the library leaves to its
// callers.
package submission

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emersion/go-smtp"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/internal/perclient"
	"github.com/safedelivr/safedelivr/service"
)

// Limits of messages and connections.
const (
	maxRecipients = 100      // of a message
	maxLine       = 1 << 20  // bytes of a line of a message
	maxCommands   = 64 << 10 // bytes that a client sends before it gets an answer
	maxLogins     = 3        // failed ones of a connection
	maxStored     = 16       // messages that are read and stored at once

	helloTime   = 10 * time.Second // from the connection to EHLO, with the handshake of TLS on its own port
	loginTime   = time.Minute      // from the connection to the login
	idleTime    = 5 * time.Minute  // between commands
	messageTime = 10 * time.Minute // to send a message
	storeTime   = time.Minute      // to store a message
	turnTime    = 8 * time.Second  // the longest wait until a message is read
	writeTime   = time.Minute

	// A client gets so many answers to failed logins. Further answers wait.
	strangerRate  = 10 // per second
	strangerBurst = 100
	strangerWait  = 5 * time.Second // the longest of one answer
	refusalPause  = 250 * time.Millisecond
)

// Config configures a Server.
type Config struct {
	TLS     *tls.Config  // nil: only clients on this machine can log in
	Name    string       // of the server in its greeting; default: that of the machine
	Size    int64        // bytes of a message as it arrives; default: 36,000,000, for attachments of 25 MB in base64
	Logger  *slog.Logger // nil: logs are discarded
	Refused func()       // called for each message over a limit of its user or of all; nil: not called
	// Context returns the context of a connection that a listener accepted; see package known. It may be nil.
	Context func(context.Context, net.Conn) context.Context
}

// Server takes mail by SMTP. Its methods may be called by many goroutines at once.
type Server struct {
	cfg       Config
	log       *slog.Logger
	svc       *service.Service
	smtp      *smtp.Server
	replays   dialect.Replays
	strangers *perclient.Rates
	turns     chan struct{} // of messages that are read and stored

	ctx      context.Context //nolint:containedctx // of all connections
	cancel   context.CancelFunc
	stopping atomic.Bool

	mu      sync.Mutex
	conns   map[*conn]bool
	replies map[int]int64
}

// New returns a server that hands messages to svc.
func New(svc *service.Service, cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Context == nil {
		cfg.Context = func(ctx context.Context, _ net.Conn) context.Context { return ctx }
	}
	if cfg.Refused == nil {
		cfg.Refused = func() {}
	}
	host, _ := os.Hostname() // without one it is localhost
	cfg.Name, cfg.Size = cmp.Or(cfg.Name, host, "localhost"), cmp.Or(cfg.Size, 36_000_000)
	s := &Server{
		cfg:       cfg,
		log:       cfg.Logger,
		svc:       svc,
		strangers: perclient.NewRates(strangerRate, strangerBurst),
		turns:     make(chan struct{}, maxStored),
		conns:     map[*conn]bool{},
		replies:   map[int]int64{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.smtp = smtp.NewServer(smtp.BackendFunc(s.newSession))
	s.smtp.Domain, s.smtp.ErrorLog = cfg.Name, errorLog{s.log}
	s.smtp.TLSConfig, s.smtp.AllowInsecureAuth = cfg.TLS, cfg.TLS == nil
	s.smtp.MaxMessageBytes = cfg.Size + 1 // go-smtp refuses a message of exactly this size
	s.smtp.MaxLineLength = maxLine
	s.smtp.ReadTimeout, s.smtp.WriteTimeout = idleTime, writeTime
	return s
}

// Serve serves the connections of a listener, whose clients may begin TLS by STARTTLS. It returns nil after Stop.
func (s *Server) Serve(l net.Listener) error { return s.serve(&listener{l, s, nil}) }

// ServeTLS serves the connections of a listener that speak TLS from the first byte. It returns nil after Stop.
func (s *Server) ServeTLS(l net.Listener) error { return s.serve(&listener{l, s, s.cfg.TLS}) }

func (s *Server) serve(l net.Listener) error {
	if err := s.smtp.Serve(l); !s.stopping.Load() {
		return err
	}
	return nil
}

// Stop accepts no more connections, ends idle ones, and waits for messages that are being taken. When ctx ends, it
// breaks the remaining connections.
func (s *Server) Stop(ctx context.Context) {
	s.stopping.Store(true)
	for _, c := range s.open() {
		c.interrupt()
	}
	if err := s.smtp.Shutdown(ctx); err != nil {
		s.cancel()
		for _, c := range s.open() {
			_ = c.Close()
		}
	}
	s.cancel()
}

// open returns the open connections.
func (s *Server) open() (out []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		out = append(out, c)
	}
	return out
}

// Connections returns the number of open connections.
func (s *Server) Connections() int { return len(s.open()) }

// Replies returns how many messages were answered since the start, by the code of the reply.
func (s *Server) Replies() map[int]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.replies)
}

// Refuse says why a connection is not served, and closes it. It does not wait.
func Refuse(c net.Conn, why string) {
	go func() {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.Write([]byte("421 4.3.2 " + why + "\r\n"))
		_ = c.Close()
	}()
}

// errorLog writes what go-smtp logs. Only a panic is an error of ours.
type errorLog struct{ log *slog.Logger }

// Printf implements smtp.Logger.
func (l errorLog) Printf(format string, v ...any) {
	if strings.HasPrefix(format, "panic") {
		l.log.Error("session panicked", "err", v[1])
	}
}

// Println implements smtp.Logger.
func (errorLog) Println(...any) {}
