package api

import (
	"encoding/json"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service"
)

// runCheck is POST /v1/check.
func (s *Server) runCheck(c *gin.Context) {
	var in client.NewCheck
	_, err := s.readFields(c, map[string]any{"since": &in.Since, "user": &in.User, "repair": &in.Repair})
	if err == nil && in.User != "" {
		u, wrong := s.svc.People.User(c.Request.Context(), caller(c), in.User)
		in.User, err = u.ID, wrong
	}
	longWork(s, c, s.cfg.Work.Check, in, err)
}

// runReplay is POST /v1/replay.
func (s *Server) runReplay(c *gin.Context) {
	var in client.NewReplay
	_, err := s.readFields(c, map[string]any{"since": &in.Since, "until": &in.Until})
	longWork(s, c, s.cfg.Work.Replay, in, err)
}

// longWork does long work and answers with a line for each step. The last line has what was done, or the error.
func longWork[In, Out any](s *Server, c *gin.Context, do Work[In, Out], in In, err error) {
	if err == nil && do == nil {
		err = service.Fail(service.Conflict, "no_worker_role", "This process does not have the role worker.")
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Content-Type", ndjson)
	c.Header("Cache-Control", "no-store")
	enc := json.NewEncoder(c.Writer)
	enc.SetEscapeHTML(false)
	say := func(step *client.Step[Out]) {
		_ = enc.Encode(step) // the client may be gone: then the context ends the work
		c.Writer.Flush()
	}
	out, err := do(c.Request.Context(), in, say)
	if err != nil {
		say(&client.Step[Out]{Progress: &out})
		say(&client.Step[Out]{Error: err.Error()})
		return
	}
	say(&client.Step[Out]{Done: &out})
}
