package api

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Config holds the limits of the API. Zero fields take the defaults.
type Config struct {
	MaxBody int64        // size in bytes of the largest request; default: that of settings.Limits
	Logger  *slog.Logger // nil: logs are discarded
	Refused func()       // called for each request over a limit of its caller; nil: not called
	// Dialects are the APIs of other services that are answered, too.
	Dialects []*dialect.Dialect
	// Work is what a process with the role worker does; its functions are nil in others.
	Work struct {
		Check  Work[client.NewCheck, client.Check]
		Replay Work[client.NewReplay, client.Replayed]
	}
}

// Work is long work. It reports its steps, one at a time, and returns what it has done, also before an error.
type Work[In, Out any] func(ctx context.Context, in In, report func(*client.Step[Out])) (Out, error)

func (c Config) withDefaults() Config {
	if c.MaxBody <= 0 {
		c.MaxBody = settings.Default[settings.Limits]().Body
	}
	if c.Refused == nil {
		c.Refused = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server is the HTTP handler of the API.
type Server struct {
	cfg    Config
	log    *slog.Logger
	svc    *service.Service
	engine *gin.Engine

	parameters map[string][]string // of queries, by route
	flags      map[string]bool     // parameters that are true or false
	replays    dialect.Replays
}

// New returns the handler of the API over svc.
func New(svc *service.Service, cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, log: cfg.Logger, svc: svc, parameters: maps.Clone(parameters), flags: maps.Clone(flags)}
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	s.engine = g
	g.HandleMethodNotAllowed = true
	g.RedirectTrailingSlash = false
	g.UseRawPath = true // ids of messages may have slashes, which are escaped
	g.Use(s.identify, s.recovered)
	g.NoRoute(s.noRoute)
	g.NoMethod(s.noRoute)
	g.GET("/healthz", s.healthz)
	g.GET("/readyz", s.readyz)
	g.GET("/v1/openapi.yaml", s.openapi)
	v1 := g.Group("/v1", s.logged, s.authenticate, s.limit, s.checkQuery)
	s.routes(v1)
	for _, d := range cfg.Dialects {
		s.speak(d)
	}
	for _, o := range service.Operations(svc) {
		s.register(v1, &o)
	}
	return s
}

// noRoute answers a request for a path, or for a method of a path, that does not exist.
func (s *Server) noRoute(c *gin.Context) {
	if d := s.dialectOf(c.Request.URL.Path); d != nil {
		c.Set(dialectKey, d)
	}
	methods := s.methods(c.Request.URL.EscapedPath())
	if len(methods) == 0 {
		c.Writer.Header().Del("Allow")
		s.fail(c, service.Fail(service.NotFound, "no_such_route",
			"There is no resource at this path.%s See /v1/openapi.yaml.", s.meantPath(c.Request.URL.Path)))
		return
	}
	c.Header("Allow", strings.Join(methods, ", ")) // that of gin may have methods of other paths
	s.fail(c, service.Fail(problem.NotAllowed, "method_not_allowed",
		"This path does not support the method %s, but %s.", c.Request.Method, strings.Join(methods, ", ")))
}

// methods returns the methods of the routes that a path fits.
func (s *Server) methods(path string) (out []string) {
	parts := strings.Split(path, "/")
	for _, r := range s.engine.Routes() {
		same := func(want, have string) bool { return want == have || strings.HasPrefix(want, ":") && have != "" }
		if slices.EqualFunc(strings.Split(r.Path, "/"), parts, same) && !slices.Contains(out, r.Method) {
			out = append(out, r.Method)
		}
	}
	slices.Sort(out)
	return out
}

// meantPath says which path a client may have meant.
func (s *Server) meantPath(path string) string {
	path = strings.TrimRight(path, "/")
	var paths []string
	for _, r := range s.engine.Routes() {
		if r.Path == path || r.Path == "/v1"+path { // with a slash at the end, or without the version
			return " Did you mean " + r.Path + "?"
		}
		if !slices.Contains(paths, r.Path) {
			paths = append(paths, r.Path)
		}
	}
	return nearest.Meant(path, paths).String()
}

// routes registers the routes that need a key, by the scope that they need.
func (s *Server) routes(v1 *gin.RouterGroup) {
	send := v1.Group("", s.needs(models.ScopeSend))
	send.POST("/batches", s.createBatch)
	send.PUT("/messages", s.putMessages)
	send.POST("/suppressions/import", s.importSuppressions)
	v1.GET("/suppressions/export", s.needs(models.ScopeRead), s.exportSuppressions)

	// The service checks the scope: send for the caller and its mail, operate for others.
	v1.PATCH("/batches/:id", s.rescheduleBatch)

	v1.PUT("/users/:id/defaults", s.setDefaults)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.dialectOf(r.URL.Path) != nil {
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = dialect.Clean(r.URL.Path), dialect.Clean(r.URL.RawPath)
	}
	s.engine.ServeHTTP(w, r)
}

const requestIDKey = "request_id"

// identify gives each request an ID: that of the client if it is safe to log.
func (s *Server) identify(c *gin.Context) {
	id := c.GetHeader("X-Request-Id")
	if !safeID(id) {
		id = models.NewUserID()
	}
	c.Set(requestIDKey, id)
	c.Header("X-Request-Id", id)
	c.Header("X-Content-Type-Options", "nosniff")
	c.Next()
}

func safeID(s string) bool {
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

// recovered answers a panic with status 500. It logs the value of the panic.
func (s *Server) recovered(c *gin.Context) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it in the same way
				panic(v)
			}
			s.log.Error("request panicked", "err", v, "request_id", requestID(c), "path", c.FullPath())
			if !c.Writer.Written() {
				s.fail(c, internal())
			}
		}
	}()
	c.Next()
}

// healthz is GET /healthz.
func (s *Server) healthz(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok"}) }

// readyz is GET /readyz.
func (s *Server) readyz(c *gin.Context) {
	r := s.svc.Ready(c.Request.Context())
	status, word := http.StatusOK, "ready"
	if !r.Ready {
		status, word = http.StatusServiceUnavailable, "not ready"
	}
	c.JSON(status, gin.H{"status": word, "missing": r.Missing, "checks": r.Checks})
}
