package api

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// createBatch is POST /v1/batches.
func (s *Server) createBatch(c *gin.Context) {
	repeat, err := repeatOf(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	in := s.svc.NewIntake()
	defer in.Close()
	d := newDecoder(in)
	if repeat.Key != "" {
		d.hash = sha256.New()
	}
	if err := s.read(c, d); err != nil {
		s.fail(c, err)
		return
	}
	if repeat.Key != "" {
		repeat.Hash = hex.EncodeToString(d.hash.Sum(nil))
	}
	a, replayed, err := s.svc.Accept(c.Request.Context(), caller(c), in, repeat)
	if err != nil {
		s.fail(c, err)
		return
	}
	markReplay(c, replayed)
	c.Header("Location", "/v1/batches/"+a.ID.String())
	c.JSON(http.StatusAccepted, a)
}

// decoder fills an intake from a body.
type decoder struct {
	*service.Intake
	seen map[string]bool // fields that the request has
	hash hash.Hash       // of all that was read; nil if it is not needed
}

func newDecoder(in *service.Intake) *decoder { return &decoder{Intake: in, seen: map[string]bool{}} }

// noted has what is read of r go into the hash, too.
func (d *decoder) noted(r io.Reader) io.Reader {
	if d.hash == nil {
		return r
	}
	return io.TeeReader(r, d.hash)
}

// read fills the intake from whatever form the request has.
func (s *Server) read(c *gin.Context, d *decoder) error {
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
	if d.hash != nil {
		_, _ = io.WriteString(d.hash, kind+"\n") // a hash takes everything
	}
	switch kind {
	case "application/json":
		return d.readJSON(d.noted(body))
	case "application/x-www-form-urlencoded":
		return d.readForm(d.noted(body))
	case "multipart/form-data":
		return d.readMultipart(c.Request)
	}
	return service.Fail(service.Unsupported, "wrong_type",
		"Send application/json, application/x-www-form-urlencoded or multipart/form-data.")
}
