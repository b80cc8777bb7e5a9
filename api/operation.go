package api

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
)

// colons writes parts of a path as gin does: {id} is :id.
var colons = strings.NewReplacer("{", ":", "}", "")

// register adds the route of an operation and the parameters of its query.
func (s *Server) register(v1 *gin.RouterGroup, o *operation.Operation) {
	path := colons.Replace(o.Path())
	route := o.Method() + " " + path
	for _, p := range o.Parameters() {
		if p.In == "query" {
			s.parameters[route] = append(s.parameters[route], p.Name)
			s.flags[p.Name] = s.flags[p.Name] || p.Field.Type.Kind() == reflect.Bool
		}
	}
	handlers := []gin.HandlerFunc{s.carryOut(o)}
	if o.Scope != "" {
		handlers = append([]gin.HandlerFunc{s.needs(o.Scope)}, handlers...)
	}
	v1.Handle(o.Method(), strings.TrimPrefix(path, "/v1"), handlers...)
}

// carryOut handles the requests of an operation.
func (s *Server) carryOut(o *operation.Operation) gin.HandlerFunc {
	return func(c *gin.Context) {
		in := o.New()
		repeat, err := s.readRequest(c, o, reflect.ValueOf(in).Elem())
		if err != nil {
			s.fail(c, err)
			return
		}
		out, replayed, err := o.Run(c.Request.Context(), caller(c), in, repeat)
		if err != nil {
			s.fail(c, err)
			return
		}
		markReplay(c, replayed)
		if o.Out == nil {
			c.Status(o.Status)
			return
		}
		if o.Status == http.StatusCreated {
			c.Header("Location", locationOf(c, reflect.ValueOf(out)))
		}
		c.JSON(o.Status, out)
	}
}

// locationOf returns the path of what a request created.
func locationOf(c *gin.Context, out reflect.Value) string {
	at := c.Request.URL.Path + "/" + out.FieldByName("ID").String()
	if ofInstallation(c) {
		at += "?installation=true"
	}
	return at
}

// readRequest decodes a request into the struct of an operation.
func (s *Server) readRequest(c *gin.Context, o *operation.Operation, in reflect.Value) (service.Repeat, error) {
	var wrong service.Mistakes
	for _, p := range o.Parameters() {
		field := in.FieldByIndex(p.Field.Index)
		if p.In == "path" {
			field.SetString(c.Param(p.Name))
			continue
		}
		text, ok := c.GetQuery(p.Name)
		if !ok {
			continue
		}
		switch field.Kind() {
		case reflect.Bool:
			field.SetBool(text == "true") // checkQuery refuses anything but true and false
		case reflect.Int:
			n, err := strconv.Atoi(text)
			if err != nil {
				wrong.Wrong(service.Pointer(p.Name), "invalid_value", "%s must be a whole number.", p.Name)
			}
			field.SetInt(int64(n))
		default:
			field.SetString(text)
		}
	}
	if err := wrong.In(invalidQuery()); err != nil {
		return service.Repeat{}, err
	}
	if !o.HasBody() {
		return service.Repeat{}, nil
	}
	if o.Body() == nil {
		return s.readFields(c, nil)
	}
	return s.readFields(c, operation.Pointers(in.FieldByName("Body").Addr()))
}
