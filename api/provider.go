package api

import (
	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// listProviders is GET /v1/providers.
func (s *Server) listProviders(c *gin.Context) {
	providers, err := s.svc.Providers(c.Request.Context(), caller(c))
	answer(s, c, gin.H{"providers": providers}, err)
}

// history is GET /v1/providers/history.
func (s *Server) history(c *gin.Context) {
	v, err := s.svc.History(c.Request.Context(), service.HistoryRange(c.Query("range")))
	answer(s, c, v, err)
}
