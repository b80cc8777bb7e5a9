package api

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
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
	s.fail(c, s.refusal(c.Writer, c.Request, s.methods(c.Request.URL.EscapedPath())))
}

// Refuse answers a program that asks the dashboard for a path of no page, or for one that has only these methods.
func (s *Server) Refuse(w http.ResponseWriter, r *http.Request, methods []string) {
	writeProblem(w, s.refusal(w, r, methods), "")
}

// refusal returns the error for a path that has only these methods, and sets the header Allow.
func (s *Server) refusal(w http.ResponseWriter, r *http.Request, methods []string) *service.Error {
	if len(methods) == 0 {
		w.Header().Del("Allow") // that of gin may have methods of other paths
		return service.Fail(service.NotFound, "no_such_route",
			"There is no resource at this path.%s See /v1/openapi.yaml.", s.meantPath(r.URL.EscapedPath()))
	}
	all := strings.Join(methods, ", ")
	w.Header().Set("Allow", all)
	return service.Fail(problem.NotAllowed, "method_not_allowed",
		"This path does not support the method %s, but %s.", r.Method, all)
}

// HasKey reports whether a request has an API key, so that it comes from no browser.
func HasKey(r *http.Request) bool {
	return models.LooksLikeSecret(dialect.Secret(r)) || models.LooksLikeSecret(r.Header.Get("X-Api-Key"))
}

// methods returns the methods of the routes that a path fits.
func (s *Server) methods(path string) (out []string) {
	parts := strings.Split(path, "/")
	for _, r := range s.engine.Routes() {
		if fits(r.Path, parts) && !slices.Contains(out, r.Method) {
			out = append(out, r.Method)
		}
	}
	slices.Sort(out)
	return out
}

// fits reports whether the parts of a path fit a route, whose parameters have any value.
func fits(route string, parts []string) bool {
	return slices.EqualFunc(strings.Split(route, "/"), parts, func(want, have string) bool {
		return want == have || strings.HasPrefix(want, ":") && have != ""
	})
}

// meantPath says which path a client may have meant: one without a slash at the end, with the version, or with a similar
// name. Parameters have the values of the path, so they are not compared.
func (s *Server) meantPath(path string) string {
	path = strings.TrimRight(path, "/")
	meant := func(route string) string {
		return " Did you mean " + parameter.ReplaceAllString(route, "{$1}") + "?"
	}
	routes, paths := s.engine.Routes(), [][]string{}
	for _, path := range []string{path, "/v1" + path, strings.TrimPrefix(path, "/v1")} {
		if len(path) <= longestPath {
			paths = append(paths, strings.Split(path, "/"))
		}
	}
	for _, parts := range paths {
		for _, r := range routes {
			if fits(r.Path, parts) {
				return meant(r.Path)
			}
		}
	}
	for _, parts := range paths {
		similar := map[string][]string{} // routes by the path with the names of their parameters
		for _, r := range routes {
			name, ok := named(r.Path, parts)
			if ok && !slices.Contains(similar[name], r.Path) {
				similar[name] = append(similar[name], r.Path)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(similar)) {
			if route := nearest.Of(name, similar[name]); route != "" {
				return meant(route)
			}
		}
	}
	return ""
}

// longestPath is the length in bytes of the longest path for which a hint is searched.
const longestPath = 256

// parameter is a parameter of a route.
var parameter = regexp.MustCompile(`:(\w+)`)

// named returns a path with the names of a route's parameters in place of their values. It reports false if the path has
// more or fewer parts.
func named(route string, parts []string) (string, bool) {
	wanted := strings.Split(route, "/")
	if len(wanted) != len(parts) {
		return "", false
	}
	for i, part := range wanted {
		if !strings.HasPrefix(part, ":") {
			wanted[i] = parts[i]
		}
	}
	return strings.Join(wanted, "/"), true
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
