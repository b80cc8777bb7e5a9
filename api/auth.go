package api

import (
	"net/netip"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

const callerKey = "caller"

// authenticate sets the caller from the API key in the header Authorization: Bearer.
func (s *Server) authenticate(c *gin.Context) {
	scheme, secret, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		s.fail(c, service.Fail(service.Unauthorized, "no_key", "Send the API key as Authorization: Bearer <key>."))
		return
	}
	var from netip.Addr
	if peer, err := netip.ParseAddrPort(c.Request.RemoteAddr); err == nil {
		from = peer.Addr()
	}
	who, err := s.svc.Authenticate(c.Request.Context(), secret, from)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Set(callerKey, who)
	c.Next()
}

// needs refuses callers without a scope.
func (s *Server) needs(scope models.Scope) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := caller(c).Need(scope); err != nil {
			s.fail(c, err)
		}
	}
}

// caller returns the caller that authenticate has set.
func caller(c *gin.Context) service.Caller {
	who, _ := c.MustGet(callerKey).(service.Caller)
	return who
}
