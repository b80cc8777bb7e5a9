package api

import (
	"github.com/gin-gonic/gin"
)

// listAccounts is GET /v1/accounts.
func (s *Server) listAccounts(c *gin.Context) {
	accounts, err := s.svc.Accounts(c.Request.Context())
	answer(s, c, gin.H{"accounts": accounts}, err)
}
