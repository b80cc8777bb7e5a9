package api

import (
	"net/netip"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/requestlog"
)

const callerKey = "caller"

// authenticate sets the caller from the API key in the header Authorization: Bearer. Requests of Local need none.
func (s *Server) authenticate(c *gin.Context) {
	if isLocal(c) {
		c.Set(callerKey, localCaller(c))
		return
	}
	scheme, secret, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		s.fail(c, service.Fail(service.Unauthorized, "no_key",
			"Send the API key as Authorization: Bearer <key>. Basic and X-API-Key are not read."))
		return
	}
	s.identifyBy(c, secret)
}

// identifyBy sets the caller from an API key.
func (s *Server) identifyBy(c *gin.Context, secret string) {
	var from netip.Addr
	if peer, err := netip.ParseAddrPort(c.Request.RemoteAddr); err == nil {
		from = peer.Addr()
	}
	who, err := s.svc.People.Authenticate(c.Request.Context(), secret, from)
	if err != nil {
		s.fail(c, err)
		return
	}
	known.Mark(c.Request.Context())
	c.Set(callerKey, who)
}

// needs refuses callers without a scope. What belongs to the installation needs operate instead.
func (s *Server) needs(scope models.Scope) gin.HandlerFunc {
	return func(c *gin.Context) {
		need := scope
		if ofInstallation(c) {
			need = models.ScopeOperate
		}
		if err := caller(c).Need(need); err != nil {
			s.fail(c, err)
		}
	}
}

// caller returns the caller that authenticate has set.
func caller(c *gin.Context) service.Caller {
	who, _ := c.MustGet(callerKey).(service.Caller)
	return who
}

// ofInstallation reports whether a request is about the installation in place of its user.
func ofInstallation(c *gin.Context) bool { return c.Query("installation") == "true" }

// Keys of values that the request log needs.
const (
	codeKey  = "code"  // of the error
	batchKey = "batch" // ID of the batch that the request created
)

// logged adds the request to the log of its API key, if it has a valid one.
func (s *Server) logged(c *gin.Context) {
	began := time.Now()
	defer func() { // also after a panic, which recovered answers
		who, ok := c.Get(callerKey)
		if !ok {
			return
		}
		line := requestlog.Line{
			Method:  c.Request.Method,
			Path:    c.FullPath(),
			Status:  c.Writer.Status(),
			Code:    c.GetString(codeKey),
			Request: requestID(c),
			Took:    time.Since(began),
		}
		if v, ok := c.Get(batchKey); ok {
			line.Batch, _ = v.(models.ID)
		} else if strings.HasPrefix(line.Path, "/v1/batches/:id") || strings.HasPrefix(line.Path, "/v1/logs/:id") {
			if id, err := models.ParseID(c.Param("id")); err == nil {
				line.Batch = id.Batch()
			}
		}
		s.svc.People.LogRequest(who.(service.Caller), line) //nolint:forcetypeassert // authenticate has set it
	}()
	c.Next()
}
