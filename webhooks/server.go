// Package webhooks receives the webhooks of providers. It verifies a post over its
// raw bytes, stores it in the inbox, announces it and answers. It never interprets
// an event.
package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// maxBody is the size in bytes of the largest post that is accepted. SendGrid sends
// at most 768 kB; the other providers send less.
const maxBody = 32 << 20

// At most largeAtOnce posts of more than usualPost bytes are read at the same time.
// A post is verified only after all of it was read, so this bounds the memory that
// strangers can use.
const (
	usualPost   = 1 << 20
	largeAtOnce = 4
)

// Timeouts of one post and of one call of the broker.
const (
	readTime     = time.Minute
	storeTime    = 10 * time.Second
	announceTime = 5 * time.Second
)

// Provider is a provider that reports events.
type Provider struct {
	Name    string
	Adapter models.Adapter
}

// Inbox is the part of the store that the server needs.
type Inbox interface {
	PutInbox(ctx context.Context, in models.Inbox) error
}

// Publisher is the part of the broker that the server needs.
type Publisher interface {
	Publish(ctx context.Context, ms ...models.Message) error
}

// Server serves POST /webhooks/<provider>.
type Server struct {
	log       *slog.Logger
	inbox     Inbox
	broker    Publisher
	providers map[string]*provider
	engine    *gin.Engine

	announce chan models.Message
	stop     chan struct{}
	wg       sync.WaitGroup
	closing  sync.Once
	ctx      context.Context //nolint:containedctx // the announcers live as long as the server
	cancel   context.CancelFunc

	large    chan struct{} // holds one value for each large post in progress
	outage   outage
	received lastReceived
	interval time.Duration // between heartbeats of Watch
	accepted atomic.Int64  // posts
	mu       sync.Mutex
	codes    map[string]int64 // refused posts, by code
}

// provider is a provider whose posts are accepted.
type provider struct {
	models.Adapter
	inboxWriter
}

// New returns a server for the posts of providers. sched tells whether urgent mail passes.
// A nil log discards all lines.
func New(inbox Inbox, broker Publisher, providers []Provider, sched *priority.Scheduler, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		log:       log,
		inbox:     inbox,
		broker:    broker,
		providers: map[string]*provider{},
		codes:     map[string]int64{},
		announce:  make(chan models.Message, 10_000),
		stop:      make(chan struct{}),
		large:     make(chan struct{}, largeAtOnce),
		interval:  heartbeatEvery,
		received:  newLastReceived(),
	}
	for _, a := range providers {
		write := func(posts []models.Post) error { return s.put(a.Name, posts) }
		s.providers[a.Name] = &provider{a.Adapter, inboxWriter{write: write, urgent: sched.UrgentLately}}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.HandleMethodNotAllowed = true
	g.Use(s.recovered)
	g.POST("/webhooks/:provider", s.post)
	s.engine = g
	for range 4 {
		s.wg.Go(s.announcer)
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.engine.ServeHTTP(w, r) }

// Close publishes the pending announcements, for at most announceTime. The agenda
// finds the posts that were not announced.
func (s *Server) Close() {
	s.closing.Do(func() {
		close(s.stop)
		late := time.AfterFunc(announceTime, s.cancel)
		defer late.Stop()
		s.wg.Wait()
		s.cancel()
	})
}

// Counts returns how many posts were accepted, and how many were refused by code.
func (s *Server) Counts() (accepted int64, refused map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted.Load(), maps.Clone(s.codes)
}

// recovered answers a panic with status 503, so that the provider repeats the post.
func (s *Server) recovered(c *gin.Context) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it in the same way
				panic(v)
			}
			s.log.Error("webhook panicked", "err", v, "provider", c.Param("provider"))
			if !c.Writer.Written() {
				s.count("internal")
				answer(c, http.StatusServiceUnavailable, "internal")
			}
		}
	}()
	c.Next()
}

func answer(c *gin.Context, status int, code string) {
	c.Writer.Header().Set("Content-Type", "application/json")
	c.Writer.WriteHeader(status)
	_ = json.NewEncoder(c.Writer).Encode(map[string]string{"code": code}) // the provider may be gone
	c.Abort()
}

func (s *Server) count(code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codes[code]++
}

func (s *Server) refuse(c *gin.Context, provider string, e *models.WebhookError) {
	s.count(e.Code)
	s.log.Warn("webhook refused", "provider", provider, "code", e.Code, "err", e.Detail, "status", e.Status)
	answer(c, e.Status, e.Code)
}

// post handles one post: verify, store, announce, answer. Status 200 means that the
// post is stored.
func (s *Server) post(c *gin.Context) {
	name := c.Param("provider")
	a := s.providers[name]
	if a == nil {
		// This may be our own mistake and fixed soon; 404 makes the provider retry.
		s.refuse(c, "", &models.WebhookError{
			Status: http.StatusNotFound,
			Code:   "no_such_provider",
			Detail: "there is no provider with this name that reports events",
		})
		return
	}
	body, release, err := s.read(c)
	defer release()
	if err != nil {
		s.refuse(c, name, unreadable(c, err))
		return
	}
	now := time.Now()
	replay, err := a.Verify(c.Request.Header, body, now)
	if err != nil {
		var refused *models.WebhookError
		if !errors.As(err, &refused) {
			refused = &models.WebhookError{
				Status: http.StatusServiceUnavailable,
				Code:   "not_verified",
				Detail: "the post could not be verified",
			}
		}
		s.refuse(c, name, refused)
		return
	}
	if err := a.store(models.Post{Body: body, Replay: replay}); err != nil {
		s.log.Error("cannot store a webhook post; the provider will repeat it", "provider", name, "err", err)
		s.count("store_unavailable")
		s.outage.note(now.UTC())
		c.Header("Retry-After", "10")
		answer(c, http.StatusServiceUnavailable, "store_unavailable")
		return
	}
	s.accepted.Add(1)
	s.received.note(name, now.UTC())
	c.Status(http.StatusOK)
	c.Writer.WriteHeaderNow()
}

var errBusy = errors.New("other large posts are being read")

// read returns the body of a post. A large body holds one of the slots for large
// posts until release is called.
func (s *Server) read(c *gin.Context) (body []byte, release func(), err error) {
	// A slow post holds memory. Recorders in tests support no deadline.
	_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(readTime))
	r := http.MaxBytesReader(c.Writer, c.Request.Body, maxBody)
	release = func() {}
	body, err = io.ReadAll(io.LimitReader(r, usualPost))
	if err != nil || len(body) < usualPost {
		return body, release, err
	}
	select {
	case s.large <- struct{}{}:
	default:
		return nil, release, errBusy
	}
	b := bytes.NewBuffer(body)
	_, err = b.ReadFrom(r)
	return b.Bytes(), func() { <-s.large }, err
}

// unreadable returns the error for a post that could not be read.
func unreadable(c *gin.Context, err error) *models.WebhookError {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &models.WebhookError{
			Status: http.StatusRequestEntityTooLarge,
			Code:   "too_large",
			Detail: "the post is larger than 32 MiB",
		}
	case errors.Is(err, errBusy):
		c.Header("Retry-After", "10")
		return &models.WebhookError{Status: http.StatusServiceUnavailable, Code: "busy", Detail: err.Error()}
	}
	return &models.WebhookError{Status: http.StatusBadRequest, Code: "cut_off", Detail: "the post ended too early"}
}

// put stores posts of a provider as one inbox entry and announces it. It does so even if the
// provider closes the connection.
func (s *Server) put(provider string, posts []models.Post) error {
	in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider, Posts: posts}
	ctx, cancel := context.WithTimeout(priority.WithLow(context.Background()), storeTime)
	defer cancel()
	if err := s.inbox.PutInbox(ctx, in); err != nil {
		return err
	}
	select {
	case s.announce <- models.Message{Kind: models.EventMessage, Provider: provider, ID: in.ID}:
	default: // the announcers are behind; the agenda finds the entry
	}
	return nil
}

// announcer publishes messages for stored posts, up to 200 at a time.
func (s *Server) announcer() {
	for {
		select {
		case m := <-s.announce:
			s.publish(m)
		case <-s.stop:
			for {
				select {
				case m := <-s.announce:
					s.publish(m)
				default:
					return
				}
			}
		}
	}
}

// publish publishes a message together with those that are queued.
func (s *Server) publish(m models.Message) {
	ms := []models.Message{m}
fill:
	for len(ms) < 200 {
		select {
		case m := <-s.announce:
			ms = append(ms, m)
		default:
			break fill
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, announceTime)
	defer cancel()
	if err := s.broker.Publish(ctx, ms...); err != nil {
		s.log.Warn("cannot announce webhook posts; the agenda finds them", "posts", len(ms), "err", err)
	}
}
