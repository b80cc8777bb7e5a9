package api

import (
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

const callerKey = "caller"

// authenticate finds who calls by the API key in Authorization: Bearer.
func (s *Server) authenticate(c *gin.Context) {
	scheme, secret, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		s.fail(c, service.Fail(service.Unauthorized, "no_key", "Send the API key as Authorization: Bearer <key>."))
		return
	}
	who, err := s.svc.Authenticate(c.Request.Context(), secret)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Set(callerKey, who)
	c.Next()
}

// caller is who calls; authenticate has set it.
func caller(c *gin.Context) service.Caller {
	who, _ := c.MustGet(callerKey).(service.Caller)
	return who
}
