package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/service"
)

// dialectKey is the key of the dialect in which a request is answered.
const dialectKey = "dialect"

// speak registers the routes of a dialect.
func (s *Server) speak(d *dialect.Dialect) {
	group := s.engine.Group("", func(c *gin.Context) { c.Set(dialectKey, d) }, s.logged, s.authenticateIn, s.limit)
	for i := range d.Routes {
		r := &d.Routes[i]
		group.Handle(r.Method, r.Path, s.needs(r.Scope), s.carryOutIn(r))
	}
}

// Speaks reports whether a path is that of a dialect.
func (s *Server) Speaks(path string) bool { return s.dialectOf(path) != nil }

// dialectOf returns the dialect that answers a path, or nil.
func (s *Server) dialectOf(path string) *dialect.Dialect {
	path = dialect.Clean(path)
	var found *dialect.Dialect
	longest := 0
	for _, d := range s.cfg.Dialects {
		if n := d.Owns(path); n > longest {
			found, longest = d, n
		}
	}
	return found
}

// authenticateIn is authenticate for a dialect, whose clients send the key in several ways.
func (s *Server) authenticateIn(c *gin.Context) {
	if isLocal(c) {
		c.Set(callerKey, localCaller(c))
		return
	}
	secret := dialect.Secret(c.Request)
	if secret == "" {
		s.fail(c, service.Fail(service.Unauthorized, "no_key",
			"Send the API key as the password of any user (Basic), or as Bearer."))
		return
	}
	if s.identifyBy(c, secret); c.IsAborted() {
		return
	}
	who := caller(c)
	who.Via = c.MustGet(dialectKey).(*dialect.Dialect).Name //nolint:forcetypeassert // as it was set
	c.Set(callerKey, who)
}

// carryOutIn handles the requests of a call of a dialect.
func (s *Server) carryOutIn(r *dialect.Route) gin.HandlerFunc {
	return func(c *gin.Context) {
		repeat, err := repeatOf(c)
		if err == nil && c.Request.ContentLength > s.cfg.MaxBody {
			err = bodyTooLarge(s.cfg.MaxBody)
		}
		if err != nil {
			s.fail(c, err)
			return
		}
		c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, s.cfg.MaxBody)
		repeat.Route = r.Method + " " + r.Path
		request := dialect.Request{
			Request: c.Request, Service: s.svc, Who: caller(c), Param: c.Param, Repeat: repeat, Replays: &s.replays,
		}
		defer request.Close()
		a, err := r.Handle(&request)
		if len(request.Ignored) > 0 {
			list := strings.Join(request.Ignored, ", ")
			c.Header(dialect.IgnoredField, list)
			s.log.Debug("fields of a request ignored", "path", r.Path, "user", caller(c).User, "fields", list)
		}
		if err != nil {
			s.fail(c, err)
			return
		}
		if !a.Batch.IsZero() {
			c.Set(batchKey, a.Batch)
		}
		for name, values := range a.Header {
			c.Writer.Header()[name] = values
		}
		writeJSON(c, a.Status, a.Body)
	}
}

// failIn answers a request with an error in the shape of a dialect.
func failIn(c *gin.Context, d *dialect.Dialect, e *service.Error) {
	status, body := d.Fail(e)
	if e.RetryAfter > 0 || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		c.Header("Retry-After", strconv.Itoa(max(e.RetryAfter, 1)))
	}
	if status == http.StatusUnauthorized {
		c.Header("WWW-Authenticate", `Basic realm="safedelivr"`)
	}
	c.Header("Cache-Control", "no-store")
	writeJSON(c, status, body)
}

// writeJSON answers a request with JSON as the services write it: without escaped characters of HTML.
func writeJSON(c *gin.Context, status int, body any) {
	if status == 0 {
		status = http.StatusOK
	}
	if body == nil {
		c.Status(status)
		return
	}
	c.Header("Content-Type", "application/json; charset=utf-8")
	c.Status(status)
	enc := json.NewEncoder(c.Writer)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // the client may be gone
}
