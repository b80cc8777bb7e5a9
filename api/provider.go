package api

import (
	"github.com/gin-gonic/gin"
)

// listProviderSuppressions is GET /v1/providers/{id}/suppressions.
func (s *Server) listProviderSuppressions(c *gin.Context) {
	v, err := s.svc.ProviderSuppressions(c.Request.Context(), caller(c), c.Param("id"), page(c))
	answer(s, c, v, err)
}

// clearProviderSuppression is DELETE /v1/providers/{id}/suppressions/{email}.
func (s *Server) clearProviderSuppression(c *gin.Context) {
	s.empty(c, s.svc.ClearProviderSuppression(
		c.Request.Context(), caller(c), c.Param("id"), c.Param("email"), c.Query("list"), c.Query("why")))
}
