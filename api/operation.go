package api

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
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
	if !o.Runs() {
		handlers[0] = s.declared()[o.Name]
	}
	if o.Scope != "" {
		handlers = append([]gin.HandlerFunc{s.needs(o.Scope)}, handlers...)
	}
	v1.Handle(o.Method(), strings.TrimPrefix(path, "/v1"), handlers...)
}

// declared are the handlers of operations that the table only declares, by their names.
func (s *Server) declared() map[string]gin.HandlerFunc {
	return map[string]gin.HandlerFunc{
		"preview": s.preview, "listRejected": s.listRejected, "exportRejected": s.exportRejected,
		"listUpdates":  s.listUpdates,
		"countUpdates": s.countUpdates, "listNotices": s.listNotices, "runCheck": s.runCheck, "runReplay": s.runReplay,
	}
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
			c.Header("Location", locationOf(c, o, out))
		}
		c.JSON(o.Status, out)
	}
}

// locationOf returns the path of what a request created. Its query says whose it is, as that of the request does.
func locationOf(c *gin.Context, o *operation.Operation, out any) string {
	var at string
	if o.Location != nil {
		at = o.Location(out)
	} else {
		at = c.Request.URL.Path + "/" + reflect.ValueOf(out).FieldByName("ID").String()
	}
	if query := c.Request.URL.RawQuery; query != "" {
		at += "?" + query
	}
	return at
}

// readRequest decodes a request into the struct of an operation.
func (s *Server) readRequest(c *gin.Context, o *operation.Operation, in reflect.Value) (service.Repeat, error) {
	var wrong problem.Mistakes
	for _, p := range o.Parameters() {
		field := in.FieldByIndex(p.Field.Index)
		if p.In == "path" {
			field.SetString(c.Param(p.Name))
			continue
		}
		if text, ok := c.GetQuery(p.Name); ok {
			// The function names a wrong limit, with the other mistakes that only it finds.
			if bad := setParameter(field, p.Field.Tag, text); bad != "" && p.Name != "limit" {
				wrong.Wrong(problem.Pointer(p.Name), "invalid_value", "%s must be %s.", p.Name, bad)
			}
		}
	}
	if err := wrong.In(invalidQuery()); err != nil {
		return service.Repeat{}, err
	}
	if !o.HasBody() {
		return service.Repeat{}, nil
	}
	most := cmp.Or(o.MaxBody, maxFieldsBody)
	if o.Body() == nil {
		return s.readFieldsUpTo(c, nil, most)
	}
	return s.readFieldsUpTo(c, operation.Pointers(in.FieldByName("Body").Addr()), most)
}

// setParameter decodes a parameter of a query. It returns what the parameter must be, if it is something else.
func setParameter(field reflect.Value, tag reflect.StructTag, text string) (bad string) {
	switch v := field.Addr().Interface().(type) {
	case *bool:
		*v = text == "true" // checkQuery refuses anything but true and false
	case *time.Time:
		var err error
		if *v, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return operation.ATime
		}
	case *int:
		least, _ := strconv.Atoi(tag.Get("min"))
		most, err := strconv.Atoi(tag.Get("max"))
		if err != nil {
			most = math.MaxInt
		}
		if *v, err = strconv.Atoi(text); err != nil || *v < least || *v > most {
			*v = -1
			if most == math.MaxInt {
				return fmt.Sprintf("a number from %d", least)
			}
			return fmt.Sprintf("a number from %d to %d", least, most)
		}
	default:
		field.SetString(text)
	}
	return ""
}
