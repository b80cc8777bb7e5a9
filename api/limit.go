package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/quota"
)

// limit admits the request within the limits of its caller. The answer says how much of them is left.
func (s *Server) limit(c *gin.Context) {
	if isLocal(c) {
		c.Set(countKey, nil)
		return
	}
	end, known, err := s.svc.Limits.Admit(c.Request.Context(), caller(c))
	setRateLimit(c, known)
	if err != nil {
		var e *service.Error
		if errors.As(err, &e) && e.Kind == problem.TooMany {
			s.cfg.Refused()
			models.Pause(c.Request.Context(), refusalPause)
		}
		s.fail(c, err)
		return
	}
	counted := &count{end}
	c.Set(countKey, counted)
	defer func() { counted.end() }()
	c.Next()
}

// count is that of a request while it runs.
type count struct{ end func() }

const countKey = "count"

// idle ends the count of a request that will only wait. Then the request takes none of those that its caller may make
// at once. resume waits until it may be counted again.
func (s *Server) idle(c *gin.Context) (resume func(ctx context.Context) error) {
	counted, ok := c.MustGet(countKey).(*count)
	if !ok {
		return func(context.Context) error { return nil }
	}
	counted.end()
	counted.end = func() {}
	return func(ctx context.Context) error {
		end, err := s.svc.Limits.Resume(ctx, caller(c))
		if err == nil {
			counted.end = end
		}
		return err
	}
}

// refusalPause is the time for which a request over a limit waits for its answer, so that a
// client that repeats it at once costs little.
const refusalPause = 250 * time.Millisecond

// setRateLimit sets the headers RateLimit-Policy and RateLimit, as draft-ietf-httpapi-ratelimit-headers describes them.
// They list the limits that count something in a time and refuse what is over them.
func setRateLimit(c *gin.Context, known []quota.Usage) {
	var policies, states []string
	for i := range known {
		u := &known[i]
		left := u.Ends.Sub(u.Now)
		window := 1.0
		switch {
		case u.Limit == models.UrgentRecipientsPerHour:
			continue
		case u.Limit == models.RecipientsPerHour:
			window = 3600
		case !u.Ends.IsZero():
			window = 86400
		case u.Limit != models.RequestsPerSecond:
			continue
		}
		policies = append(policies, fmt.Sprintf("%q;q=%d;w=%.0f", u.Limit, u.Value, window))
		states = append(states, fmt.Sprintf("%q;r=%d;t=%.0f", u.Limit, u.Left(), max(1, math.Ceil(left.Seconds()))))
	}
	if len(policies) > 0 {
		c.Header("RateLimit-Policy", strings.Join(policies, ", "))
		c.Header("RateLimit", strings.Join(states, ", "))
	}
}
