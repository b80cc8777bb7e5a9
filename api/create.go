package api

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// createBatch is POST /v1/batches.
func (s *Server) createBatch(c *gin.Context) {
	repeat, err := repeatOf(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	d := newDecoder(s.svc.NewIntake(c.Request.Context(), caller(c)))
	defer d.Close()
	permissive, err := permissiveMode(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	if permissive {
		d.Permit()
	}
	if repeat.Key != "" {
		d.hash = sha256.New()
		fmt.Fprintf(d.hash, "permissive: %t\n", permissive)
	}
	if err := s.read(c, d); err != nil {
		s.fail(c, err)
		return
	}
	if repeat.Key != "" {
		repeat.Hash = hex.EncodeToString(d.hash.Sum(nil))
	}
	if c.Query("dry_run") == "true" {
		v, err := s.svc.NewTrial(caller(c)).DryRun(c.Request.Context(), d.Intake)
		answer(s, c, v, err)
		return
	}
	a, replayed, err := s.svc.Accept(c.Request.Context(), caller(c), d.Intake, repeat)
	if err != nil {
		s.fail(c, err)
		return
	}
	markReplay(c, replayed)
	c.Header("Location", "/v1/batches/"+a.ID.String())
	c.Set(batchKey, a.ID)
	c.JSON(http.StatusAccepted, a)
}

// permissiveMode reports whether the request wants bad recipients to be left out.
func permissiveMode(c *gin.Context) (bool, error) {
	switch c.Query("mode") {
	case "", "strict":
		return false, nil
	case "permissive":
		return true, nil
	}
	var wrong problem.Mistakes
	wrong.Wrong("/mode", "invalid_value", "mode must be strict or permissive.")
	return false, wrong.In(invalidQuery())
}

// decoder reads a request from its body: it fills the fields of the batch and adds the recipients.
type decoder struct {
	*intake.Intake
	add       func(r *intake.Recipient) error
	recipient intake.Recipient // the present one
	names     []string         // of the fields that the request may have
	seen      []string         // fields that the request has
	hash      hash.Hash        // of the request; nil if it is not needed

	formFiles int  // attachments of a form
	tables    bool // the form has a table of recipients
	columns   *intake.Columns
}

func newDecoder(in *intake.Intake) *decoder { return &decoder{Intake: in, names: intake.FieldNames} }

// errEnough means that no more recipients are wanted.
var errEnough = errors.New("enough")

// read reads the request by decode, which calls add for each recipient.
func (d *decoder) read(decode func() error) error {
	return d.Read(func(yield func(*intake.Recipient, error) bool) {
		d.add = func(r *intake.Recipient) error {
			if !yield(r, nil) {
				return errEnough
			}
			return nil
		}
		if err := decode(); err != nil && !errors.Is(err, errEnough) {
			yield(nil, err)
		}
	})
}

// again reports whether the request has had a field before.
func (d *decoder) again(name string) bool {
	if slices.Contains(d.seen, name) {
		return true
	}
	if name == "columns" || slices.Contains(intake.FieldNames, name) { // other names are mistakes, and may be many
		d.seen = append(d.seen, name)
	}
	return false
}

// hashed returns a reader that adds what it reads from r to the hash.
func (d *decoder) hashed(r io.Reader) io.Reader {
	if d.hash == nil {
		return r
	}
	return io.TeeReader(r, d.hash)
}

// read decodes the body of the request, which may have any of the supported types.
func (s *Server) read(c *gin.Context, d *decoder) error {
	if c.Request.ContentLength > s.cfg.MaxBody {
		return bodyTooLarge(s.cfg.MaxBody)
	}
	body := d.Body(http.MaxBytesReader(c.Writer, c.Request.Body, s.cfg.MaxBody))
	defer d.Pause()
	c.Request.Body = io.NopCloser(body)
	kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	if err != nil {
		kind = ""
	}
	if e := c.GetHeader("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return wrongEncoding()
	}
	if d.hash != nil {
		mode := ""
		if d.Permissive() {
			mode = " permissive"
		}
		_, _ = io.WriteString(d.hash, kind+mode+"\n") // a hash never fails
	}
	switch kind {
	case "application/json":
		return d.readJSON(d.hashed(body))
	case "application/x-www-form-urlencoded":
		peeked := bufio.NewReader(d.hashed(body))
		if err := looksLikeJSON(firstByte(peeked), asJSON); err != nil {
			return err
		}
		return d.readForm(peeked)
	case "multipart/form-data":
		return d.readMultipart(c.Request)
	}
	return wrongType(c, body, asJSON,
		"The Content-Type must be application/json, application/x-www-form-urlencoded or multipart/form-data.")
}
