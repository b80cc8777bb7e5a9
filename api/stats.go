package api

import (
	"github.com/gin-gonic/gin"
)

// stats is GET /v1/stats?from=2026-01-01&to=2026-01-31: a line per UTC day, both
// days included, and the totals.
func (s *Server) stats(c *gin.Context) {
	v, err := s.svc.Stats(c.Request.Context(), caller(c), c.Query("from"), c.Query("to"))
	answer(s, c, v, err)
}
