// Package webhooks receives the webhooks of providers. It verifies a post over its raw bytes, stores it in the inbox,
// announces it and answers. It never interprets an event.
package webhooks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/announce"
)

// Timeouts of one post.
const (
	readTime   = 30 * time.Second
	verifyTime = 10 * time.Second
	storeTime  = 10 * time.Second
)

// logEvery is the shortest time between lines in the log for refusals of one kind.
const logEvery = 10 * time.Second

// Provider is a provider that reports events.
type Provider struct {
	Name    string
	Adapter models.Adapter
}

// Inbox is the part of the store that the server needs.
type Inbox interface {
	PutInbox(ctx context.Context, in models.Inbox) error
}

// Server serves /webhooks/<provider>.
type Server struct {
	log       *slog.Logger
	url       string // where providers reach the server, without the name of a provider
	inbox     Inbox
	providers map[string]*provider
	engine    *gin.Engine

	announce *announce.Announcer
	closing  sync.Once
	ctx      context.Context //nolint:containedctx // posts may be verified as long as the server lives
	cancel   context.CancelFunc

	budget   budget
	outage   outage
	received lastReceived
	interval time.Duration // between heartbeats of Watch
	accepted atomic.Int64  // posts
	mu       sync.Mutex
	codes    map[string]int64 // refused posts, by code
	unlogged map[string]refusals
	prompt   *rate.Limiter // of refusals that are answered at once
}

// Up to promptRefusals a second are answered at once, and the others after refusalPause, so that strangers who post
// without end cost little.
const (
	promptRefusals = 20
	refusalPause   = 250 * time.Millisecond
)

// provider is a provider whose posts are accepted.
type provider struct {
	models.Adapter
	inboxWriter
	lost lostPosts
}

// New returns a server for the posts of providers, which reach it at url followed by their name. sched says whether
// urgent mail passes. A nil log discards all lines.
func New(
	url string, inbox Inbox, broker announce.Broker, providers []Provider, sched *priority.Scheduler, log *slog.Logger,
) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		log:       log,
		url:       url,
		inbox:     inbox,
		providers: map[string]*provider{},
		codes:     map[string]int64{},
		unlogged:  map[string]refusals{},
		prompt:    rate.NewLimiter(promptRefusals, promptRefusals),
		announce: announce.New(broker, func(ms []models.Message, err error) {
			log.Warn("cannot announce webhook posts; the agenda finds them", "posts", len(ms), "err", err)
		}),
		budget:   newBudget(),
		interval: heartbeatEvery,
		received: newLastReceived(),
	}
	for _, a := range providers {
		write := func(posts []models.Post) error { return s.put(a.Name, posts) }
		s.providers[a.Name] = &provider{
			Adapter:     a.Adapter,
			inboxWriter: inboxWriter{write: write, urgent: sched.UrgentLately},
		}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.RedirectTrailingSlash = false // providers do not follow redirects
	g.Use(s.recovered)
	g.NoRoute(s.receive)
	s.engine = g
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.engine.ServeHTTP(w, r) }

// Close publishes the pending announcements, for at most announce.BrokerTime. The agenda finds the posts that were not
// announced.
func (s *Server) Close() {
	s.closing.Do(func() {
		s.announce.Close()
		s.cancel()
	})
}

// Counts returns how many posts were accepted, and how many were refused by code.
func (s *Server) Counts() (accepted int64, refused map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted.Load(), maps.Clone(s.codes)
}

// recovered answers a panic with a status after which the provider repeats the post.
func (s *Server) recovered(c *gin.Context) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it in the same way
				panic(v)
			}
			s.log.Error("webhook panicked", "err", v, "path", c.Request.URL.Path)
			if !c.Writer.Written() {
				s.count("internal")
				_, a := s.provider(c)
				answer(c, a.status(http.StatusServiceUnavailable), "internal")
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
	status := s.providers[provider].status(e.Status)
	if n := s.refusalsToLog(provider, e.Code, time.Now()); n > 0 {
		s.log.Warn("webhooks refused", "provider", provider, "code", e.Code, "err", e.Detail, "status", status, "posts", n)
	}
	s.delayRefusal()
	answer(c, status, e.Code)
}

// status returns the status of a refusal that has one. If the provider repeats a post after one status only, it is that
// one, because the cause of any refusal may be ours.
func (a *provider) status(usual int) int {
	if a == nil {
		return usual
	}
	return cmp.Or(a.RepeatStatus(), usual)
}

// delayRefusal waits before a refusal is answered if there were many of them. It does not go by the context of the
// request, which ends with its deadline for reading.
func (s *Server) delayRefusal() {
	if !s.prompt.Allow() {
		models.Pause(s.ctx, refusalPause)
	}
}

// refusals counts refused posts since the last line in the log.
type refusals struct {
	logged time.Time
	n      int
}

// refusalsToLog counts a refused post. It returns how many to write to the log: 0 if the log had a line for the same
// provider and code within logEvery, so that strangers cannot fill it.
func (s *Server) refusalsToLog(provider, code string, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := provider + " " + code
	r := s.unlogged[key]
	r.n++
	if now.Sub(r.logged) < logEvery {
		s.unlogged[key] = r
		return 0
	}
	s.unlogged[key] = refusals{logged: now}
	return r.n
}

// noSuchProvider refuses a post to a name that is not configured. This may be our own mistake and fixed soon. 429 makes
// every provider repeat the post: Brevo discards it after 404, and Amazon SNS after every other 4xx.
func (s *Server) noSuchProvider(c *gin.Context) {
	closeConnection(c)
	s.refuse(c, "", &models.WebhookError{
		Status: http.StatusTooManyRequests,
		Code:   "no_such_provider",
		Detail: "there is no provider with this name that reports events",
	})
}

// refusal returns err as the refusal of a post.
func refusal(err error) *models.WebhookError {
	var refused *models.WebhookError
	if errors.As(err, &refused) {
		return refused
	}
	return &models.WebhookError{
		Status: http.StatusServiceUnavailable,
		Code:   "not_verified",
		Detail: "the post could not be verified",
	}
}

// mistakesOfOurs are the codes of refusals that a wrong key or a wrong clock of ours would cause.
var mistakesOfOurs = []string{"bad_signature", "stale", "not_verified"}

// provider returns the provider that a request is of, or nil.
func (s *Server) provider(c *gin.Context) (name string, a *provider) {
	name, ok := strings.CutPrefix(c.Request.URL.Path, "/webhooks/")
	name = strings.TrimSuffix(name, "/")
	if !ok {
		return name, nil
	}
	return name, s.providers[name]
}

// receive finds the provider that a request of any method is for.
func (s *Server) receive(c *gin.Context) {
	name, a := s.provider(c)
	if a == nil {
		s.noSuchProvider(c)
		return
	}
	methods := append([]string{http.MethodPost}, a.WebhookMethods()...)
	if !slices.Contains(methods, c.Request.Method) {
		closeConnection(c)
		s.delayRefusal()
		c.Header("Allow", strings.Join(methods, ", "))
		c.AbortWithStatus(http.StatusMethodNotAllowed)
		return
	}
	w := &models.Webhook{
		Method: c.Request.Method,
		URL:    s.url + name,
		Header: c.Request.Header,
		At:     time.Now(),
	}
	if q := c.Request.URL.RawQuery; q != "" {
		w.URL += "?" + q
	}
	s.post(c, name, a, w)
}

// post handles one webhook: verify, store, announce, answer. Status 200 means that the post is stored.
func (s *Server) post(c *gin.Context, name string, a *provider, w *models.Webhook) {
	if err := a.VerifyHeader(w); err != nil {
		refused := refusal(err)
		if refused.Code == "stale" {
			s.refusedOne(name, refused.Code)
		}
		closeConnection(c)
		s.refuse(c, name, refused)
		return
	}
	body, release, err := s.read(c, a.MaxWebhook())
	defer release()
	if err != nil {
		release()
		closeConnection(c)
		s.unreadable(c, name, err)
		return
	}
	w.Body, w.At = body, time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, verifyTime)
	defer cancel()
	verified, err := a.Verify(ctx, w)
	if err != nil {
		release()
		refused := refusal(err)
		if slices.Contains(mistakesOfOurs, refused.Code) {
			s.refusedOne(name, refused.Code)
		}
		s.refuse(c, name, refused)
		return
	}
	known.Mark(c.Request.Context())
	s.verifiedOne(name)
	if verified.Status != 0 {
		c.Data(verified.Status, verified.ContentType, verified.Answer)
		return
	}
	if err := a.store(models.Post{Body: body, Replay: verified.Replay}); err != nil {
		s.log.Error("cannot store a webhook post; the provider will repeat it", "provider", name, "err", err)
		s.count("store_unavailable")
		s.outage.note(w.At.UTC())
		c.Header("Retry-After", "10")
		answer(c, a.status(http.StatusServiceUnavailable), "store_unavailable")
		return
	}
	s.accepted.Add(1)
	s.received.note(name, w.At.UTC())
	c.Status(http.StatusOK)
	c.Writer.WriteHeaderNow()
}

// refusedOne counts a post of a provider that was refused although it may be genuine.
func (s *Server) refusedOne(provider, code string) {
	if s.providers[provider].lost.refuse(time.Now().UTC(), code) {
		s.received.wake()
	}
}

// verifiedOne notes that a post of a provider was verified.
func (s *Server) verifiedOne(provider string) {
	if s.providers[provider].lost.verify() {
		s.received.wake()
	}
}

// put stores posts of a provider as one inbox entry and announces it. It does so even if the provider closes the
// connection.
func (s *Server) put(provider string, posts []models.Post) error {
	in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider, Posts: posts}
	ctx, cancel := context.WithTimeout(priority.WithLow(context.Background()), storeTime)
	defer cancel()
	if err := s.inbox.PutInbox(ctx, in); err != nil {
		return err
	}
	// If the announcer is behind, the agenda finds the entry.
	_ = s.announce.Offer(models.Message{Kind: models.EventMessage, Provider: provider, ID: in.ID})
	return nil
}
