// Package sendgrid answers applications that speak the API of SendGrid (v3): mail/send and suppression lists.
//
// A personalization is a mail. Those that differ only in the recipient and in values share a batch. Any other one is a
// batch that is one mail, together to all of its addresses.
package sendgrid

import (
	"net/http"
	"strings"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Name is what operators call the dialect.
const Name = "sendgrid"

// New returns the dialect.
func New() *dialect.Dialect {
	return &dialect.Dialect{Name: Name, Prefix: []string{"/v3/mail", "/v3/suppression", "/v3/asm"}, Fail: fail,
		Routes: append(suppressionRoutes(), dialect.Route{
			Method: http.MethodPost, Path: "/v3/mail/send", Scope: models.ScopeSend, Handle: send,
		})}
}

// failure is an error as SendGrid writes it.
type failure struct {
	Message string  `json:"message"`
	Field   *string `json:"field"`
	Help    *string `json:"help"`
}

// fields are SendGrid's names of ours.
var fields = map[string]string{
	"text": "content", "html": "content", "tags": "categories", "metadata": "custom_args", "deliver_at": "send_at",
	"template": "template_id", "email": "email", "track_opens": "tracking_settings", "track_clicks": "tracking_settings",
	"to": "personalizations", "cc": "personalizations", "bcc": "personalizations", "together": "personalizations",
}

// fail returns an error as SendGrid writes it.
func fail(e *problem.Error) (int, any) {
	status, list := e.Kind.Status(), []failure{}
	switch e.Kind {
	case problem.Invalid, problem.Malformed, problem.Conflict:
		status = http.StatusBadRequest
	case problem.Unsupported:
		status = http.StatusUnsupportedMediaType
	}
	if e.Kind == problem.Conflict && e.RetryAfter > 0 { // the same request is still carried out
		status = http.StatusServiceUnavailable
	}
	for _, m := range e.Fields {
		field := strings.ReplaceAll(strings.TrimPrefix(m.Pointer, "/"), "/", ".")
		if first, rest, _ := strings.Cut(field, "."); fields[first] != "" {
			field = strings.TrimSuffix(fields[first]+"."+rest, ".")
		}
		if m.Code == "sender_not_allowed" {
			status = http.StatusForbidden
		}
		list = append(list, failure{Message: m.Detail, Field: &field})
	}
	if len(list) == 0 {
		list = append(list, failure{Message: e.Detail})
	}
	return status, map[string]any{"errors": list}
}

// invalid is the error of a field.
func invalid(field, detail string) error {
	return dialect.Invalid(field, "invalid_value", "%s", detail)
}
