package api

import (
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// page returns the page that ?limit and ?cursor select.
func page(c *gin.Context) service.Page {
	p := service.Page{Cursor: c.Query("cursor")}
	if text := c.Query("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			n = -1
		}
		p.Limit = n
	}
	return p
}

// listRejected is GET /v1/batches/{id}/rejected, as JSON or CSV.
func (s *Server) listRejected(c *gin.Context) {
	if c.NegotiateFormat("application/json", csvType) == csvType {
		s.exportRejected(c)
		return
	}
	v, err := s.svc.Mail.Rejected(c.Request.Context(), caller(c), c.Param("id"), page(c))
	answer(s, c, v, err)
}

// csvType is the media type of tables.
const csvType = "text/csv"

// exportRejected is GET /v1/batches/{id}/rejected.csv: all of them.
func (s *Server) exportRejected(c *gin.Context) {
	id := c.Param("id")
	s.streamCSV(c, "rejected.csv", func(row func([]string) error) error {
		return s.svc.Mail.ExportRejected(c.Request.Context(), caller(c), id, row)
	})
}
