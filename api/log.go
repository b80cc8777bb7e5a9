package api

import (
	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
)

// listLogs is GET /v1/batches/{id}/logs.
func (s *Server) listLogs(c *gin.Context) {
	v, err := s.svc.Logs(c.Request.Context(), caller(c), c.Param("id"), models.State(c.Query("state")), page(c))
	answer(s, c, v, err)
}

// searchLogs is GET /v1/logs.
func (s *Server) searchLogs(c *gin.Context) {
	v, err := s.svc.Search(c.Request.Context(), caller(c), emailOf(c), page(c))
	answer(s, c, v, err)
}

// getLog is GET /v1/logs/{id}.
func (s *Server) getLog(c *gin.Context) {
	v, err := s.svc.Log(c.Request.Context(), caller(c), c.Param("id"))
	answer(s, c, v, err)
}
