package api

import (
	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/intake"
)

// listUsers is GET /v1/users.
func (s *Server) listUsers(c *gin.Context) {
	v, err := s.svc.ListUsers(c.Request.Context(), caller(c), page(c))
	answer(s, c, v, err)
}

// controlUser is POST /v1/users/{id}/pause and resume.
func (s *Server) controlUser(do models.CommandKind) gin.HandlerFunc {
	return func(c *gin.Context) {
		command(s, c, func(why string, r service.Repeat) (service.ControlResult, bool, error) {
			return s.svc.ControlUser(c.Request.Context(), caller(c), do, c.Param("id"), why, r)
		}, nil)
	}
}

// switchUser is POST /v1/users/{id}/disable and enable.
func (s *Server) switchUser(do models.CommandKind) gin.HandlerFunc {
	return func(c *gin.Context) {
		command(s, c, func(why string, r service.Repeat) (service.ControlResult, bool, error) {
			return s.svc.SwitchUser(c.Request.Context(), caller(c), do, c.Param("id"), why, r)
		}, nil)
	}
}

// endSessions is POST /v1/users/{id}/end-sessions.
func (s *Server) endSessions(c *gin.Context) {
	command(s, c, func(why string, r service.Repeat) (service.ControlResult, bool, error) {
		return s.svc.EndSessions(c.Request.Context(), caller(c), c.Param("id"), why, r)
	}, nil)
}

// listKeys is GET /v1/keys.
func (s *Server) listKeys(c *gin.Context) {
	v, err := s.svc.AllKeys(c.Request.Context(), caller(c), page(c))
	answer(s, c, v, err)
}

// listUserKeys is GET /v1/users/{id}/keys.
func (s *Server) listUserKeys(c *gin.Context) {
	v, err := s.svc.KeysOf(c.Request.Context(), caller(c), c.Param("id"))
	answer(s, c, gin.H{"keys": v}, err)
}

// revokeKey is DELETE /v1/users/{id}/keys/{key}.
func (s *Server) revokeKey(c *gin.Context) {
	s.empty(c, s.svc.RevokeKeyOf(c.Request.Context(), caller(c), c.Param("id"), c.Param("key"), c.Query("why")))
}

// accessLog is GET /v1/audit/access.
func (s *Server) accessLog(c *gin.Context) {
	v, err := s.svc.AccessLog(c.Request.Context(), caller(c), accesslog.Kind(c.Query("kind")), page(c))
	answer(s, c, v, err)
}

// defaults is GET /v1/users/{id}/defaults.
func (s *Server) defaults(c *gin.Context) {
	v, err := s.svc.Defaults(c.Request.Context(), caller(c), c.Param("id"))
	answer(s, c, v, err)
}

// setDefaults is PUT /v1/users/{id}/defaults.
func (s *Server) setDefaults(c *gin.Context) {
	d := newDecoder(s.svc.NewIntake(c.Request.Context(), caller(c)))
	defer d.Close()
	var why string
	fields := d.timeFields(intake.TimeZone)
	fields["why"] = &why
	giveCommand(s, c, fields, func(service.Repeat) (service.DefaultsView, bool, error) {
		v, err := s.svc.SetDefaults(c.Request.Context(), caller(c), c.Param("id"), d.Builder, why)
		return v, false, err
	}, nil)
}
