package api

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// logFilter returns the filter in the query.
func logFilter(c *gin.Context) (service.LogFilter, error) {
	var wrong service.Mistakes
	f := service.LogFilter{
		State:     models.State(c.Query("state")),
		Reason:    models.Reason(c.Query("reason")),
		Provider:  c.Query("provider"),
		Result:    service.ProviderResult(c.Query("result")),
		Rerouted:  c.Query("rerouted") == "true",
		MayDouble: c.Query("possible_duplicate") == "true",
		Doubled:   c.Query("doubled") == "true",
		Email:     emailOf(c),
		Part:      c.Query("q"),
		Tag:       c.Query("tag"),
		From:      moment(c, "from", &wrong),
		To:        moment(c, "to", &wrong),
	}
	return f, wrong.In(invalidQuery())
}

// moment returns the time in a parameter of the query; zero: there is none.
func moment(c *gin.Context, name string, wrong *service.Mistakes) time.Time {
	text := c.Query(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		wrong.Wrong(service.Pointer(name), "invalid_value", "%s must be a time like 2026-01-31T12:00:00Z.", name)
	}
	return t
}

// listLogs is GET /v1/batches/{id}/logs.
func (s *Server) listLogs(c *gin.Context) {
	f, err := logFilter(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	v, err := s.svc.Logs(c.Request.Context(), caller(c), c.Param("id"), f, page(c))
	answer(s, c, v, err)
}

// findLogs is GET /v1/logs.
func (s *Server) findLogs(c *gin.Context) {
	f, err := logFilter(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	v, err := s.svc.FindLogs(c.Request.Context(), caller(c), f, page(c))
	answer(s, c, v, err)
}

// getLog is GET /v1/logs/{id}.
func (s *Server) getLog(c *gin.Context) {
	v, err := s.svc.Log(c.Request.Context(), caller(c), c.Param("id"))
	answer(s, c, v, err)
}

// getMessage is GET /v1/messages/{id}.
func (s *Server) getMessage(c *gin.Context) {
	v, err := s.svc.Message(c.Request.Context(), caller(c), c.Param("id"))
	answer(s, c, v, err)
}
