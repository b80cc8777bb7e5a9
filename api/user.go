package api

import (
	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/people"
)

// setDefaults is PUT /v1/users/{id}/defaults.
func (s *Server) setDefaults(c *gin.Context) {
	var why string
	var times intake.Times
	fields := timeFields(&times, intake.TimeZone)
	fields["why"] = &why
	giveCommand(s, c, fields, func(service.Repeat) (people.Defaults, bool, error) {
		v, err := s.svc.People.SetDefaults(c.Request.Context(), caller(c), c.Param("id"), times, why)
		return v, false, err
	}, nil)
}
