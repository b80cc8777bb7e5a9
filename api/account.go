package api

import (
	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// listAccounts is GET /v1/accounts.
func (s *Server) listAccounts(c *gin.Context) {
	accounts, err := s.svc.Accounts(c.Request.Context(), caller(c))
	answer(s, c, gin.H{"accounts": accounts}, err)
}

// history is GET /v1/accounts/history?range=hour, day, week or month.
func (s *Server) history(c *gin.Context) {
	v, err := s.svc.History(c.Request.Context(), service.HistoryRange(c.Query("range")))
	answer(s, c, v, err)
}
