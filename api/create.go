package api

import (
	"mime"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// createBatch is POST /v1/batches.
func (s *Server) createBatch(c *gin.Context) {
	in := s.svc.NewIntake()
	defer in.Close()
	if err := s.read(c, in); err != nil {
		s.fail(c, err)
		return
	}
	a, err := s.svc.Accept(c.Request.Context(), caller(c), in)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Location", "/v1/batches/"+a.ID.String())
	c.JSON(http.StatusAccepted, a)
}

// decoder fills an intake from a body.
type decoder struct {
	*service.Intake
	seen map[string]bool // fields that stand in the request
}

func newDecoder(in *service.Intake) *decoder { return &decoder{Intake: in, seen: map[string]bool{}} }

// read fills the intake from whatever form the request has.
func (s *Server) read(c *gin.Context, in *service.Intake) error {
	if c.Request.ContentLength > s.cfg.MaxBody {
		return bodyTooLarge(s.cfg.MaxBody)
	}
	body := http.MaxBytesReader(c.Writer, c.Request.Body, s.cfg.MaxBody)
	c.Request.Body = body
	kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	if err != nil {
		kind = ""
	}
	if e := c.GetHeader("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return service.Fail(service.Unsupported, "wrong_encoding", "Send the body as it is, without Content-Encoding.")
	}
	d := newDecoder(in)
	switch kind {
	case "application/json":
		return d.readJSON(body)
	case "application/x-www-form-urlencoded":
		return d.readForm(body)
	case "multipart/form-data":
		return d.readMultipart(c.Request)
	}
	return service.Fail(service.Unsupported, "wrong_type",
		"Send application/json, application/x-www-form-urlencoded or multipart/form-data.")
}
