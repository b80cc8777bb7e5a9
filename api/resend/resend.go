// Package resend answers applications that speak the API of Resend: emails, also many at once, their status, new times
// and cancellation.
//
// An email is a batch that is one mail, together to all of its addresses. Its id is that of the batch.
package resend

import (
	"net/http"
	"strings"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Name is what operators call the dialect.
const Name = "resend"

// New returns the dialect.
func New() *dialect.Dialect {
	d := &dialect.Dialect{Name: Name, Prefix: []string{"/emails"}, Fail: fail}
	add := func(method, path string, scope models.Scope, handle func(*dialect.Request) (dialect.Answer, error)) {
		d.Routes = append(d.Routes, dialect.Route{Method: method, Path: path, Scope: scope, Handle: handle})
	}
	add(http.MethodPost, "/emails", models.ScopeSend, send)
	add(http.MethodPost, "/emails/batch", models.ScopeSend, sendBatch)
	add(http.MethodGet, "/emails", models.ScopeRead, list)
	add(http.MethodGet, "/emails/:id", models.ScopeRead, get)
	add(http.MethodPatch, "/emails/:id", models.ScopeSend, reschedule)
	add(http.MethodPost, "/emails/:id/cancel", models.ScopeSend, cancel)
	return d
}

// failure is an error as Resend writes it.
type failure struct {
	Status  int    `json:"statusCode"`
	Name    string `json:"name"`
	Message string `json:"message"`
}

// names are the names of errors at Resend that have no better one, by status.
var names = map[int]string{
	http.StatusBadRequest: "validation_error", http.StatusForbidden: "invalid_api_key", http.StatusNotFound: "not_found",
	http.StatusMethodNotAllowed: "method_not_allowed", http.StatusConflict: "concurrent_idempotent_requests",
	http.StatusRequestEntityTooLarge: "validation_error", http.StatusUnprocessableEntity: "validation_error",
	http.StatusTooManyRequests: "rate_limit_exceeded", http.StatusServiceUnavailable: "service_unavailable",
}

// codes are the statuses and names of some errors, by our codes.
var codes = map[string]failure{
	"no_key":                  {http.StatusUnauthorized, "missing_api_key", ""},
	"scope_missing":           {http.StatusUnauthorized, "restricted_api_key", ""},
	"sender_not_allowed":      {http.StatusForbidden, "validation_error", ""},
	"invalid_idempotency_key": {http.StatusBadRequest, "invalid_idempotency_key", ""},
	"idempotency_key_reused":  {http.StatusConflict, "invalid_idempotent_request", ""},
	"required":                {http.StatusUnprocessableEntity, "missing_required_field", ""},
}

// fail returns an error as Resend writes it.
func fail(e *problem.Error) (int, any) {
	f := failure{Status: e.Kind.Status(), Message: e.Detail}
	switch e.Kind {
	case problem.Unauthorized:
		f.Status = http.StatusForbidden
	case problem.Conflict, problem.Gone:
		if e.Code != "request_running" {
			f.Status = http.StatusUnprocessableEntity // it was sent already
		}
	}
	code := e.Code
	if len(e.Fields) > 0 {
		m := e.Fields[0]
		if code = m.Code; m.Pointer == "/template" {
			return http.StatusNotFound, failure{http.StatusNotFound, "not_found", m.Detail}
		}
		f.Message = "Invalid `" + strings.Split(m.Pointer+"/", "/")[1] + "` field. " + m.Detail
		if code == "invalid_address" && m.Pointer == "/from" {
			f.Name = "invalid_from_address"
		}
	}
	if known, ok := codes[code]; ok {
		f.Status, f.Name = known.Status, known.Name
	}
	if f.Name == "" {
		f.Name = names[f.Status]
	}
	if f.Name == "" {
		f.Name = "application_error"
	}
	return f.Status, f
}

// invalid is the error of a field.
func invalid(field, format string, args ...any) error {
	return dialect.Invalid(field, "validation_error", format, args...)
}
