package api

import (
	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/intake"
)

// giveCommand decodes the body of a command into fields, gives the command or makes a dry run of it, and answers the
// request. A nil dryRun means that the command has none.
func giveCommand[T any](
	s *Server,
	c *gin.Context,
	fields map[string]any,
	do func(r service.Repeat) (T, bool, error),
	dryRun func() (T, error),
) {
	repeat, err := s.readFields(c, fields)
	if err != nil {
		s.fail(c, err)
		return
	}
	if c.Query("dry_run") == "true" { // checkQuery refuses it where there is no dry run
		v, err := dryRun()
		answer(s, c, v, err)
		return
	}
	v, replayed, err := do(repeat)
	markReplay(c, replayed && err == nil)
	answer(s, c, v, err)
}

// rescheduleBatch is PATCH /v1/batches/{id}.
func (s *Server) rescheduleBatch(c *gin.Context) {
	in := commands.Reschedule{Batch: c.Param("id")}
	fields := timeFields(&in.Times, intake.DeliverAt, intake.TimeZone, intake.ExpiresAt)
	fields["why"] = &in.Why
	giveCommand(s, c, fields, func(r service.Repeat) (commands.Result, bool, error) {
		return s.svc.Commands.Reschedule(c.Request.Context(), caller(c), in, r)
	}, func() (commands.Result, error) {
		return s.svc.Commands.DryRunReschedule(c.Request.Context(), caller(c), in)
	})
}
