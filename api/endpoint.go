package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/endpoints"
)

// endpointFields returns the fields of an endpoint, which are decoded into n.
func endpointFields(n *endpoints.Settings) map[string]any {
	return map[string]any{
		"url":         &n.URL,
		"description": &n.Description,
		"events":      &n.Events,
		"tags":        &n.Tags,
		"categories":  &n.Categories,
		"batch":       &n.Batch,
		"ordered":     &n.Ordered,
		"headers":     &n.Headers,
	}
}

// createEndpoint is POST /v1/endpoints.
func (s *Server) createEndpoint(c *gin.Context) {
	var n endpoints.Settings
	repeat, err := s.readFields(c, endpointFields(&n))
	if err != nil {
		s.fail(c, err)
		return
	}
	who := caller(c)
	v, replayed, err := service.Once(c.Request.Context(), s.svc, who, repeat,
		func(ctx context.Context) (endpoints.View, error) { return s.svc.Endpoints().Create(ctx, who.User, n) })
	if err != nil {
		s.fail(c, err)
		return
	}
	markReplay(c, replayed)
	c.Header("Location", "/v1/endpoints/"+v.ID)
	c.JSON(http.StatusCreated, v)
}

// listEndpoints is GET /v1/endpoints.
func (s *Server) listEndpoints(c *gin.Context) {
	list, err := s.svc.Endpoints().List(c.Request.Context(), caller(c).User)
	answer(s, c, gin.H{"endpoints": list}, err)
}

// getEndpoint is GET /v1/endpoints/{id}.
func (s *Server) getEndpoint(c *gin.Context) {
	v, err := s.svc.Endpoints().Get(c.Request.Context(), caller(c).User, c.Param("id"))
	answer(s, c, v, err)
}

// updateEndpoint is PUT /v1/endpoints/{id}.
func (s *Server) updateEndpoint(c *gin.Context) {
	var n endpoints.Settings
	if _, err := s.readFields(c, endpointFields(&n)); err != nil {
		s.fail(c, err)
		return
	}
	v, err := s.svc.Endpoints().Update(c.Request.Context(), caller(c).User, c.Param("id"), n)
	answer(s, c, v, err)
}

// removeEndpoint is DELETE /v1/endpoints/{id}.
func (s *Server) removeEndpoint(c *gin.Context) {
	s.empty(c, s.svc.Endpoints().Remove(c.Request.Context(), caller(c).User, c.Param("id")))
}

// endpointAttempts is GET /v1/endpoints/{id}/attempts.
func (s *Server) endpointAttempts(c *gin.Context) {
	list, err := s.svc.Endpoints().Attempts(c.Request.Context(), caller(c).User, c.Param("id"))
	answer(s, c, gin.H{"attempts": list}, err)
}

// commandEndpoint returns the handler of a command about an endpoint. fields are those of its body.
func commandEndpoint[T any](
	s *Server, do func(ctx context.Context, user, id string, body *endpointCommand) (T, error), fields ...string,
) gin.HandlerFunc {
	return func(c *gin.Context) {
		var body endpointCommand
		into := map[string]any{}
		for _, name := range fields {
			into[name] = map[string]any{"from": &body.From, "why": &body.Why}[name]
		}
		giveCommand(s, c, into, func(r service.Repeat) (T, bool, error) {
			return service.Once(c.Request.Context(), s.svc, caller(c), r, func(ctx context.Context) (T, error) {
				return do(ctx, caller(c).User, c.Param("id"), &body)
			})
		}, nil)
	}
}

// endpointCommand is the body of a command about an endpoint.
type endpointCommand struct {
	From time.Time
	Why  string
}

// endpointRoutes registers the routes of endpoints.
func (s *Server) endpointRoutes(read, send *gin.RouterGroup) {
	type view = endpoints.View
	e := s.svc.Endpoints()
	read.GET("/endpoints", s.listEndpoints)
	read.GET("/endpoints/:id", s.getEndpoint)
	read.GET("/endpoints/:id/attempts", s.endpointAttempts)
	send.POST("/endpoints", s.createEndpoint)
	send.PUT("/endpoints/:id", s.updateEndpoint)
	send.DELETE("/endpoints/:id", s.removeEndpoint)
	send.POST("/endpoints/:id/rotate", commandEndpoint(s,
		func(ctx context.Context, user, id string, _ *endpointCommand) (view, error) {
			return e.Rotate(ctx, user, id)
		}))
	send.POST("/endpoints/:id/enable", commandEndpoint(s,
		func(ctx context.Context, user, id string, _ *endpointCommand) (view, error) {
			return e.Enable(ctx, user, id)
		}))
	send.POST("/endpoints/:id/disable", commandEndpoint(s,
		func(ctx context.Context, user, id string, b *endpointCommand) (view, error) {
			return e.Disable(ctx, user, id, b.Why)
		}, "why"))
	send.POST("/endpoints/:id/replay", commandEndpoint(s,
		func(ctx context.Context, user, id string, b *endpointCommand) (view, error) {
			return e.Replay(ctx, user, id, b.From)
		}, "from"))
	send.POST("/endpoints/:id/test", commandEndpoint(s,
		func(ctx context.Context, user, id string, _ *endpointCommand) (endpoints.TestResult, error) {
			return e.Test(ctx, user, id)
		}))
}
