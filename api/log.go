package api

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service/problem"
)

// moment returns the time in a parameter of the query; zero: there is none.
func moment(c *gin.Context, name string, wrong *problem.Mistakes) time.Time {
	text := c.Query(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		wrong.Wrong(problem.Pointer(name), "invalid_value", "%s must be a time like 2026-01-31T12:00:00Z.", name)
	}
	return t
}
