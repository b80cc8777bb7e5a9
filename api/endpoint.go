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
		"rate":        &n.Rate,
		"at_once":     &n.AtOnce,
		"headers":     &n.Headers,
		"format":      &n.Format,
		"signature":   &n.Signature,
		"user":        &n.User,
		"sender":      &n.Sender,
		"everyone":    &n.Everyone,
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
		func(ctx context.Context) (endpoints.View, error) {
			return s.svc.Endpoints(who).Create(ctx, owner(c), n)
		})
	if err != nil {
		s.fail(c, err)
		return
	}
	markReplay(c, replayed)
	at := "/v1/endpoints/" + v.ID
	if ofInstallation(c) {
		at += "?installation=true"
	}
	c.Header("Location", at)
	c.JSON(http.StatusCreated, v)
}

// listEndpoints is GET /v1/endpoints.
func (s *Server) listEndpoints(c *gin.Context) {
	list, err := s.svc.Endpoints(caller(c)).List(c.Request.Context(), owner(c))
	answer(s, c, gin.H{"endpoints": list}, err)
}

// getEndpoint is GET /v1/endpoints/{id}.
func (s *Server) getEndpoint(c *gin.Context) {
	v, err := s.svc.Endpoints(caller(c)).Get(c.Request.Context(), owner(c), c.Param("id"))
	answer(s, c, v, err)
}

// updateEndpoint is PUT /v1/endpoints/{id}.
func (s *Server) updateEndpoint(c *gin.Context) {
	var n endpoints.Settings
	if _, err := s.readFields(c, endpointFields(&n)); err != nil {
		s.fail(c, err)
		return
	}
	v, err := s.svc.Endpoints(caller(c)).Update(c.Request.Context(), owner(c), c.Param("id"), n)
	answer(s, c, v, err)
}

// removeEndpoint is DELETE /v1/endpoints/{id}.
func (s *Server) removeEndpoint(c *gin.Context) {
	s.empty(c, s.svc.Endpoints(caller(c)).Remove(c.Request.Context(), owner(c), c.Param("id")))
}

// endpointAttempts is GET /v1/endpoints/{id}/attempts.
func (s *Server) endpointAttempts(c *gin.Context) {
	list, err := s.svc.Endpoints(caller(c)).Attempts(c.Request.Context(), owner(c), c.Param("id"))
	answer(s, c, gin.H{"attempts": list}, err)
}

// endpointCommand gives a command about an endpoint. fields are those of its body.
func endpointCommand[T any](
	s *Server, c *gin.Context, fields map[string]any, do func(ctx context.Context, user, id string) (T, error),
) {
	giveCommand(s, c, fields, func(r service.Repeat) (T, bool, error) {
		who := caller(c)
		return service.Once(c.Request.Context(), s.svc, who, r, func(ctx context.Context) (T, error) {
			return do(ctx, owner(c), c.Param("id"))
		})
	}, nil)
}

// rotateEndpoint is POST /v1/endpoints/{id}/rotate.
func (s *Server) rotateEndpoint(c *gin.Context) {
	endpointCommand(s, c, nil, s.svc.Endpoints(caller(c)).Rotate)
}

// enableEndpoint is POST /v1/endpoints/{id}/enable.
func (s *Server) enableEndpoint(c *gin.Context) {
	endpointCommand(s, c, nil, s.svc.Endpoints(caller(c)).Enable)
}

// testEndpoint is POST /v1/endpoints/{id}/test.
func (s *Server) testEndpoint(c *gin.Context) {
	endpointCommand(s, c, nil, s.svc.Endpoints(caller(c)).Test)
}

// disableEndpoint is POST /v1/endpoints/{id}/disable.
func (s *Server) disableEndpoint(c *gin.Context) {
	var why string
	endpointCommand(s, c, map[string]any{"why": &why},
		func(ctx context.Context, user, id string) (endpoints.View, error) {
			if err := service.CheckWhy(why); err != nil {
				return endpoints.View{}, err
			}
			return s.svc.Endpoints(caller(c)).Disable(ctx, user, id, why)
		})
}

// replayEndpoint is POST /v1/endpoints/{id}/replay.
func (s *Server) replayEndpoint(c *gin.Context) {
	var from time.Time
	var post string
	endpointCommand(s, c, map[string]any{"from": &from, "post": &post},
		func(ctx context.Context, user, id string) (endpoints.View, error) {
			e := s.svc.Endpoints(caller(c))
			if post == "" {
				return e.Replay(ctx, user, id, from)
			}
			if !from.IsZero() {
				var f service.Form
				f.Wrong("/post", "invalid_value", "Name from or post, not both.")
				return endpoints.View{}, f.Err()
			}
			return e.ReplayPost(ctx, user, id, post)
		})
}

// endpointPost is GET /v1/endpoints/{id}/posts/{post}.
func (s *Server) endpointPost(c *gin.Context) {
	v, err := s.svc.Endpoints(caller(c)).Request(c.Request.Context(), owner(c), c.Param("id"), c.Param("post"))
	answer(s, c, v, err)
}
