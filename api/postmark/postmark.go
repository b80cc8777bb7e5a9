// Package postmark answers applications that speak the API of Postmark: mail, also many at once and from templates,
// the events of a message, and the suppression list.
//
// A message is a batch that is one mail, together to all of its addresses. Its MessageID is the id of that batch.
package postmark

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Name is what operators call the dialect.
const Name = "postmark"

// New returns the dialect.
func New() *dialect.Dialect {
	d := &dialect.Dialect{Name: Name, Prefix: []string{"/email", "/messages/outbound", "/message-streams"}}
	d.Fail = func(e *problem.Error) (int, any) { return fail(e) }
	add := func(method, path string, scope models.Scope, handle func(*dialect.Request) (dialect.Answer, error)) {
		d.Routes = append(d.Routes, dialect.Route{Method: method, Path: path, Scope: scope, Handle: handle})
	}
	add(http.MethodPost, "/email", models.ScopeSend, send)
	add(http.MethodPost, "/email/withTemplate", models.ScopeSend, send)
	add(http.MethodPost, "/email/batch", models.ScopeSend, sendBatch)
	add(http.MethodPost, "/email/batchWithTemplates", models.ScopeSend, sendBatch)
	add(http.MethodGet, "/messages/outbound/:id/details", models.ScopeRead, missing(get))
	const list = "/message-streams/:stream/suppressions"
	add(http.MethodGet, list+"/dump", models.ScopeRead, dump)
	add(http.MethodPost, list, models.ScopeSend, change("Suppressed", suppress))
	add(http.MethodPost, list+"/delete", models.ScopeSend, change("Deleted", unsuppress))
	return d
}

// result is the answer to a message.
type result struct {
	To          string `json:"To,omitempty"`
	Cc          string `json:"Cc,omitempty"`
	Bcc         string `json:"Bcc,omitempty"`
	SubmittedAt string `json:"SubmittedAt,omitempty"`
	MessageID   string `json:"MessageID,omitempty"`
	ErrorCode   int    `json:"ErrorCode"`
	Message     string `json:"Message"`
}

// Error codes of Postmark.
const (
	badToken     = 10
	maintenance  = 100
	invalidMail  = 300
	notAllowed   = 400
	badJSON      = 402
	overLimit    = 405
	inactive     = 406
	tooMany      = 410
	badFile      = 411
	noTemplate   = 1101
	unknownError = 500
)

// fields are Postmark's names of ours.
var fields = map[string]string{
	"from": "From", "to": "To", "cc": "Cc", "bcc": "Bcc", "reply_to": "ReplyTo", "subject": "Subject", "html": "HtmlBody",
	"text": "TextBody", "headers": "Headers", "tags": "Tag", "metadata": "Metadata", "attachments": "Attachments",
	"template": "TemplateAlias", "together": "To",
}

// fail returns an error as Postmark writes it.
func fail(e *problem.Error) (int, result) {
	status, f := http.StatusUnprocessableEntity, result{ErrorCode: invalidMail, Message: e.Detail}
	switch e.Kind {
	case problem.Unauthorized, problem.Forbidden:
		status, f.ErrorCode = http.StatusUnauthorized, badToken
	case problem.Malformed, problem.Unsupported:
		f.ErrorCode = badJSON
	case problem.TooMany:
		status, f.ErrorCode = http.StatusTooManyRequests, overLimit
	case problem.TooLarge:
		status = http.StatusRequestEntityTooLarge
	case problem.Unavailable:
		status, f.ErrorCode = http.StatusServiceUnavailable, maintenance
	case problem.NotFound, problem.NotAllowed, problem.Gone:
		status = e.Kind.Status()
	case problem.Internal:
		status, f.ErrorCode = http.StatusInternalServerError, unknownError
	}
	if e.Kind == problem.Conflict && e.RetryAfter > 0 { // the same request is still carried out
		status, f.ErrorCode = http.StatusServiceUnavailable, maintenance
	}
	if e.Code == "inactive_recipients" {
		f.ErrorCode = inactive
	}
	if len(e.Fields) > 0 {
		f.ErrorCode, f.Message = describe(e.Fields[0])
	}
	return status, f
}

// describe returns the code and the text of a mistake.
func describe(m problem.FieldError) (code int, text string) {
	field := strings.Split(m.Pointer+"/", "/")[1]
	name := fields[field]
	if name == "" {
		name = field
	}
	switch {
	case m.Code == "sender_not_allowed":
		return notAllowed, m.Detail
	case field == "template":
		return noTemplate, m.Detail
	case field == "attachments":
		return badFile, m.Detail
	case m.Code == "invalid_address":
		address := m.Detail
		if quoted, err := strconv.QuotedPrefix(m.Detail); err == nil {
			address = quoted[1 : len(quoted)-1]
		}
		// Clients read the address between the quotes.
		return invalidMail, fmt.Sprintf("Invalid '%s' address: '%s'.", name, address)
	case m.Code == "too_many" && (name == "To" || name == "Cc" || name == "Bcc" || field == "messages"):
		return tooMany, m.Detail
	}
	return invalidMail, fmt.Sprintf("Invalid '%s' value. %s", name, m.Detail)
}
