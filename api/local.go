package api

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// The headers of requests that only the handler of Local reads.
const (
	ByHeader   = "Safedelivr-By"   // name of the person who gives the command, for the audit trail
	UserHeader = "Safedelivr-User" // ID of the user on whose behalf the request is; absent: none
)

// localKey marks requests of Local.
type localKey struct{}

// Local returns the handler for those who may open the data folder: they are operators and need no API key. No limits
// of users hold for their requests.
func (s *Server) Local() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), localKey{}, true)))
	})
}

// isLocal reports whether a request came through Local.
func isLocal(c *gin.Context) bool { return c.Request.Context().Value(localKey{}) != nil }

// localCaller returns the caller of a request that came through Local.
func localCaller(c *gin.Context) service.Caller {
	return service.Caller{By: "cli:" + c.GetHeader(ByHeader), User: c.GetHeader(UserHeader), Operator: true}
}
