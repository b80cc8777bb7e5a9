package api

import (
	"encoding/csv"
	"errors"
	"mime"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// importSuppressions is POST /v1/suppressions/import.
func (s *Server) importSuppressions(c *gin.Context) {
	if kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type")); err != nil || kind != "text/csv" {
		s.fail(c, service.Fail(service.Unsupported, "wrong_type", "The Content-Type must be text/csv."))
		return
	}
	body := http.MaxBytesReader(c.Writer, c.Request.Body, s.cfg.MaxBody)
	v, err := s.svc.Suppressions.Import(c.Request.Context(), caller(c), body, models.FromImport)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		err = bodyTooLarge(tooLarge.Limit)
	}
	answer(s, c, v, err)
}

// exportSuppressions is GET /v1/suppressions/export.
func (s *Server) exportSuppressions(c *gin.Context) {
	s.streamCSV(c, "suppressions.csv", func(row func([]string) error) error {
		return s.svc.Suppressions.Export(c.Request.Context(), caller(c), row)
	})
}

// streamCSV answers with the rows that export writes. If they cannot be read to their end, the connection is closed
// before the end of the answer.
func (s *Server) streamCSV(c *gin.Context, filename string, export func(row func([]string) error) error) {
	out := csv.NewWriter(c.Writer)
	begun := false
	err := export(func(row []string) error {
		if !begun {
			c.Header("Content-Type", "text/csv; charset=utf-8")
			c.Header("Content-Disposition", `attachment; filename="`+filename+`"`)
			begun = true
		}
		return out.Write(row)
	})
	if err != nil && !begun {
		s.fail(c, err)
		return
	}
	out.Flush()
	if errors.Join(err, out.Error()) != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}
