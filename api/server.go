package api

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// Config holds the limits of the API. Zero fields take the defaults.
type Config struct {
	MaxRecipients int           // of one batch; default 1,000,000
	MaxContent    int64         // bytes of subject, text and HTML together; default 5 MiB
	MaxBody       int64         // bytes of a request; default 1 GiB
	SpoolDir      string        // for large requests; default: the system's temporary folder
	Deadline      time.Duration // of a batch; default 7 days
	Recheck       time.Duration // when the agenda first looks at a batch; default 1 minute
	IntakeTime    time.Duration // how long storing a batch may take; default 10 minutes
	SettleTime    time.Duration // how long an unknown outcome of the deciding write is repeated; default 30 seconds
	UrgentUpTo    int           // batches of at most so many recipients are urgent by default; default 100
	Logger        *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxRecipients <= 0 {
		c.MaxRecipients = 1_000_000
	}
	if c.MaxContent <= 0 {
		c.MaxContent = 5 << 20
	}
	if c.MaxBody <= 0 {
		c.MaxBody = 1 << 30
	}
	if c.SpoolDir == "" {
		c.SpoolDir = os.TempDir()
	}
	if c.Deadline <= 0 {
		c.Deadline = 7 * 24 * time.Hour
	}
	if c.Recheck <= 0 {
		c.Recheck = time.Minute
	}
	if c.IntakeTime <= 0 {
		c.IntakeTime = 10 * time.Minute
	}
	if c.SettleTime <= 0 {
		c.SettleTime = 30 * time.Second
	}
	if c.UrgentUpTo <= 0 {
		c.UrgentUpTo = 100
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server serves the API.
type Server struct {
	cfg      Config
	log      *slog.Logger
	store    models.Store
	broker   models.Broker
	accounts func(context.Context) ([]Account, error)
	known    map[string]bool // account names
	engine   *gin.Engine
	keys     keyCache
	announce map[models.Lane]*announcer // bulk never holds up urgent

	closing sync.Once
}

// New builds the API. names are the configured accounts; accounts tells of their
// present health.
func New(store models.Store, broker models.Broker, names []string, accounts func(context.Context) ([]Account, error), cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, log: cfg.Logger, store: store, broker: broker, accounts: accounts, known: map[string]bool{},
		announce: map[models.Lane]*announcer{}}
	for _, n := range names {
		s.known[n] = true
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		s.announce[lane] = newAnnouncer(broker, cfg.Logger)
	}
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.HandleMethodNotAllowed = true
	g.RedirectTrailingSlash = false
	g.Use(s.identify, s.recovered)
	g.NoRoute(func(c *gin.Context) {
		problem(http.StatusNotFound, "no_such_route", "There is nothing at this path.").write(c)
	})
	g.NoMethod(func(c *gin.Context) {
		problem(http.StatusMethodNotAllowed, "method_not_allowed", "This path does not take %s.", c.Request.Method).write(c)
	})
	g.GET("/healthz", s.healthz)
	g.GET("/readyz", s.readyz)
	g.GET("/v1/openapi.yaml", s.openapi)
	v1 := g.Group("/v1", s.authenticate)
	v1.POST("/batches", s.createBatch)
	v1.GET("/batches", s.listBatches)
	v1.GET("/batches/:id", s.getBatch)
	v1.GET("/batches/:id/logs", s.listLogs)
	v1.GET("/logs/:id", s.getLog)
	v1.GET("/stats", s.stats)
	v1.GET("/accounts", s.listAccounts)
	s.engine = g
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.engine.ServeHTTP(w, r) }

// Close publishes what is still to be announced, for a few seconds at most.
func (s *Server) Close() {
	s.closing.Do(func() {
		var g errgroup.Group
		for _, a := range s.announce {
			g.Go(func() error { a.close(); return nil })
		}
		_ = g.Wait() // never an error
	})
}

const requestIDKey = "request_id"

// identify gives every request an id: the client's own where it is harmless.
func (s *Server) identify(c *gin.Context) {
	id := c.GetHeader("X-Request-Id")
	if !harmlessID(id) {
		id = models.NewUserID()
	}
	c.Set(requestIDKey, id)
	c.Header("X-Request-Id", id)
	c.Header("X-Content-Type-Options", "nosniff")
	c.Next()
}

func harmlessID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

func requestID(c *gin.Context) string { return c.GetString(requestIDKey) }

// recovered turns a panic into a 500 without its text.
func (s *Server) recovered(c *gin.Context) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so, too
				panic(v)
			}
			s.log.Error("request panicked", "err", v, "request_id", requestID(c), "path", c.FullPath())
			if !c.Writer.Written() {
				problem(http.StatusInternalServerError, "internal", "Something went wrong here. The request id helps to find it.").write(c)
			}
		}
	}()
	c.Next()
}

func (s *Server) healthz(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok"}) }

// readyz names what is missing. A missing broker does not make the API unready:
// batches are stored and announced later.
func (s *Server) readyz(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), 3*time.Second)
	defer cancel()
	var store, broker error
	var g errgroup.Group
	g.Go(func() error { store = s.store.Ping(ctx); return nil })
	g.Go(func() error { broker = s.broker.Ping(ctx); return nil })
	_ = g.Wait() // never an error
	checks := map[string]string{"store": "ok", "broker": "ok", "accounts": "ok"}
	missing := []string{}
	if store != nil {
		checks["store"], missing = "unavailable", append(missing, "store")
	}
	if len(s.known) == 0 {
		checks["accounts"], missing = "no provider account is configured", append(missing, "accounts")
	}
	ready := len(missing) == 0
	if broker != nil {
		checks["broker"], missing = "unavailable; batches are accepted and announced later", append(missing, "broker")
	}
	status, word := http.StatusOK, "ready"
	if !ready {
		status, word = http.StatusServiceUnavailable, "not ready"
	}
	c.JSON(status, gin.H{"status": word, "missing": missing, "checks": checks})
}
