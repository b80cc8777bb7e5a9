package api

import (
	"github.com/gin-gonic/gin"
)

// stats is GET /v1/stats.
func (s *Server) stats(c *gin.Context) {
	v, err := s.svc.Stats(c.Request.Context(), caller(c), c.Query("from"), c.Query("to"))
	answer(s, c, v, err)
}
