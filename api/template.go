package api

import (
	"encoding/json"
	"reflect"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/templates"
)

// sample is the recipient of a preview that names none.
const sample = `{"email": "ann@example.com", "name": "Ann"}`

// preview is POST /v1/preview. It changes nothing, so a repeat is carried out again.
func (s *Server) preview(c *gin.Context) {
	var in client.NewPreview
	to := json.RawMessage(sample)
	fields := operation.Pointers(reflect.ValueOf(&in))
	fields["to"] = &to
	_, err := s.readFieldsUpTo(c, fields, templates.MaxBody)
	out := templates.Sample{Template: in.Template, Language: in.Language, Source: in.TemplateSource}
	if err == nil {
		err = s.sampleRecipient(c, &out, to)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	v, _, err := s.svc.Templates.Preview(c.Request.Context(), caller(c).User, out)
	answer(s, c, v, err)
}

// sampleRecipient decodes and checks the recipient of a preview as that of a batch.
func (s *Server) sampleRecipient(c *gin.Context, out *templates.Sample, to json.RawMessage) error {
	d := newDecoder(s.svc.NewIntake(c.Request.Context(), caller(c)))
	defer d.Close()
	r := d.jsonRecipient(to)
	out.To, _ = d.Recipient(r)
	out.JSON = r.JSON
	var form problem.Form
	form.Add(&d.Mistakes.Mistakes, "/to/0", "/to")
	return form.Err()
}
