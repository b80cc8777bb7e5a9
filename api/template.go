package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/templates"
)

// maxTemplateBody is the size in bytes of the largest request with a template. A template
// may have 1 MiB, and its characters may be escaped.
const maxTemplateBody = 8 << 20

// languages are the contents of a template by language. Other members are mistakes.
type languages map[string]templates.Content

// UnmarshalJSON implements json.Unmarshaler.
func (l *languages) UnmarshalJSON(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return d.Decode((*map[string]templates.Content)(l))
}

// sourceFields returns the fields of a version, which are decoded into src.
func sourceFields(src *templates.Source) map[string]any {
	return map[string]any{
		"subject":   &src.Subject,
		"html":      &src.HTML,
		"text":      &src.Text,
		"sender":    &src.Sender,
		"category":  &src.Category,
		"defaults":  &src.Defaults,
		"schema":    &src.Schema,
		"languages": (*languages)(&src.Languages),
		"allow_raw": &src.AllowRaw,
	}
}

// storeTemplate decodes a version and stores it by do.
func (s *Server) storeTemplate(
	c *gin.Context,
	do func(ctx context.Context, name string, src templates.Source, publish bool) (templates.Template, error),
) {
	var src templates.Source
	var publish bool
	name := c.Param("name")
	fields := sourceFields(&src)
	fields["publish"] = &publish
	if name == "" {
		fields["name"] = &name
	}
	repeat, err := s.readFieldsUpTo(c, fields, maxTemplateBody)
	if err != nil {
		s.fail(c, err)
		return
	}
	who := caller(c)
	v, replayed, err := service.Once(c.Request.Context(), s.svc, who, repeat,
		func(ctx context.Context) (templates.Template, error) { return do(ctx, name, src, publish) })
	if err != nil {
		s.fail(c, err)
		return
	}
	markReplay(c, replayed)
	c.Header("Location", "/v1/templates/"+v.Name+"?version="+strconv.Itoa(v.Version))
	c.JSON(http.StatusCreated, v)
}

// createTemplate is POST /v1/templates.
func (s *Server) createTemplate(c *gin.Context) {
	s.storeTemplate(c, func(
		ctx context.Context, name string, src templates.Source, publish bool,
	) (templates.Template, error) {
		return s.svc.Templates().Create(ctx, caller(c).User, name, src, publish)
	})
}

// addTemplateVersion is POST /v1/templates/{name}/versions.
func (s *Server) addTemplateVersion(c *gin.Context) {
	s.storeTemplate(c, func(
		ctx context.Context, name string, src templates.Source, publish bool,
	) (templates.Template, error) {
		return s.svc.Templates().AddVersion(ctx, caller(c).User, name, src, publish)
	})
}

// listTemplates is GET /v1/templates.
func (s *Server) listTemplates(c *gin.Context) {
	p := page(c)
	list, next, err := s.svc.Templates().List(c.Request.Context(), caller(c).User, p.Limit, p.Cursor)
	answer(s, c, gin.H{"templates": list, "next_cursor": next}, err)
}

// templateVersions is GET /v1/templates/{name}/versions.
func (s *Server) templateVersions(c *gin.Context) {
	p := page(c)
	list, next, err := s.svc.Templates().Versions(c.Request.Context(), caller(c).User, c.Param("name"), p.Limit, p.Cursor)
	answer(s, c, gin.H{"versions": list, "next_cursor": next}, err)
}

// getTemplate is GET /v1/templates/{name}.
func (s *Server) getTemplate(c *gin.Context) {
	number := 0
	if text := c.Query("version"); text != "" {
		var err error
		if number, err = strconv.Atoi(text); err != nil || number < 1 {
			var wrong service.Mistakes
			wrong.Wrong("/version", "invalid_value", "version must be a number from 1.")
			s.fail(c, wrong.In(invalidQuery()))
			return
		}
	}
	v, err := s.svc.Templates().Get(c.Request.Context(), caller(c).User, c.Param("name"), number)
	answer(s, c, v, err)
}

// publishTemplate is POST /v1/templates/{name}/publish.
func (s *Server) publishTemplate(c *gin.Context) {
	var version int
	giveCommand(s, c, map[string]any{"version": &version}, func(r service.Repeat) (templates.Info, bool, error) {
		return service.Once(c.Request.Context(), s.svc, caller(c), r, func(ctx context.Context) (templates.Info, error) {
			return s.svc.Templates().Publish(ctx, caller(c).User, c.Param("name"), version)
		})
	}, nil)
}

// archiveTemplate is POST /v1/templates/{name}/archive.
func (s *Server) archiveTemplate(c *gin.Context) {
	giveCommand(s, c, map[string]any{}, func(r service.Repeat) (templates.Info, bool, error) {
		return service.Once(c.Request.Context(), s.svc, caller(c), r, func(ctx context.Context) (templates.Info, error) {
			return s.svc.Templates().Archive(ctx, caller(c).User, c.Param("name"))
		})
	}, nil)
}

// preview is POST /v1/preview. It changes nothing, so a repeat is carried out again.
func (s *Server) preview(c *gin.Context) {
	var sample templates.Sample
	var to json.RawMessage
	fields := sourceFields(&sample.Source)
	fields["template"], fields["language"], fields["to"] = &sample.Template, &sample.Language, &to
	_, err := s.readFieldsUpTo(c, fields, maxTemplateBody)
	if err == nil {
		err = s.sampleRecipient(c, &sample, to)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	v, err := s.svc.Templates().Preview(c.Request.Context(), caller(c).User, sample)
	answer(s, c, v, err)
}

// sampleRecipient decodes and checks the recipient of a preview as that of a batch.
func (s *Server) sampleRecipient(c *gin.Context, sample *templates.Sample, to json.RawMessage) error {
	if len(to) == 0 {
		to = json.RawMessage(`{"email": "ann@example.com", "name": "Ann"}`)
	}
	d := newDecoder(s.svc.NewIntake(c.Request.Context(), caller(c)))
	defer d.Close()
	if err := d.jsonRecipient(to); err != nil {
		return err
	}
	var form service.Form
	form.Add(&d.Mistakes, "/to/0", "/to")
	if err := form.Err(); err != nil {
		return err
	}
	return d.Typed(func(r models.Recipient, names []string) { sample.To, sample.JSON = r, names })
}
