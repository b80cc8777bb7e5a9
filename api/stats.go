package api

import (
	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service/stats"
)

// stats is GET /v1/stats.
func (s *Server) stats(c *gin.Context) {
	v, err := s.svc.Stats.Of(c.Request.Context(), caller(c), stats.Query{
		From: c.Query("from"),
		To:   c.Query("to"),
		By:   c.Query("by"),
		Name: c.Query("name"),
	})
	answer(s, c, v, err)
}
