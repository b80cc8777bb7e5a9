// Package mailgun answers applications that speak the API of Mailgun (v3): messages, events and suppressions.
//
// A message with recipient-variables is a batch with a mail to each recipient. Any other one is one mail, together to
// all of its addresses. The id of a message is its Message-ID, as at Mailgun. So what an application reads back in
// answers and events is what the recipients see.
package mailgun

import (
	"net/http"
	"strings"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Name is what operators call the dialect.
const Name = "mailgun"

// New returns the dialect.
func New() *dialect.Dialect {
	d := &dialect.Dialect{Name: Name, Prefix: []string{"/v3", "/v1/analytics"}, Fail: fail}
	add := func(method, path string, scope models.Scope, handle func(*dialect.Request) (dialect.Answer, error)) {
		d.Routes = append(d.Routes, dialect.Route{Method: method, Path: path, Scope: scope, Handle: inDomain(handle)})
	}
	add(http.MethodPost, "/v3/:domain/messages", models.ScopeSend, send)
	add(http.MethodPost, "/v3/:domain/messages.mime", models.ScopeSend, sendMIME)
	add(http.MethodGet, "/v3/:domain/events", models.ScopeRead, events)
	add(http.MethodGet, "/v3/:domain/events/:token", models.ScopeRead, events)
	for _, list := range lists {
		path := "/v3/:domain/" + list.name
		add(http.MethodGet, path, models.ScopeRead, list.list)
		add(http.MethodPost, path, models.ScopeSend, list.add)
		add(http.MethodGet, path+"/*address", models.ScopeRead, list.get)
		add(http.MethodDelete, path+"/*address", models.ScopeSend, list.remove)
	}
	d.Routes = append(d.Routes, dialect.Route{
		Method: http.MethodPost, Path: "/v1/analytics/logs", Scope: models.ScopeRead, Handle: logs,
	})
	return d
}

// inDomain refuses requests about a domain from which the caller may not send.
func inDomain(handle func(*dialect.Request) (dialect.Answer, error)) func(*dialect.Request) (dialect.Answer, error) {
	return func(r *dialect.Request) (dialect.Answer, error) {
		allowed, err := r.Service.People.AllowedSenders(r.Context(), r.Who)
		if err != nil {
			return dialect.Answer{}, err
		}
		domain, may := strings.ToLower(r.Param("domain")), allowed.Anyone
		for _, sender := range allowed.Senders { // an address, or @ and a domain
			may = may || strings.EqualFold(sender[strings.LastIndexByte(sender, '@')+1:], domain)
		}
		if !may || !strings.Contains(domain, ".") && domain != "localhost" {
			return dialect.Answer{}, service.Fail(problem.NotFound, "not_found", "Domain not found: %s", r.Param("domain"))
		}
		return handle(r)
	}
}

// reply is the body of most answers.
type reply struct {
	ID      string `json:"id,omitempty"`
	Address string `json:"address,omitempty"`
	Message string `json:"message"`
}

// fail returns an error as Mailgun writes it: the name of the field first.
func fail(e *problem.Error) (int, any) {
	status, text := e.Kind.Status(), e.Detail
	switch e.Kind {
	case problem.Unauthorized, problem.Forbidden:
		return http.StatusUnauthorized, reply{Message: "Forbidden"}
	case problem.Conflict:
		status = http.StatusBadRequest
		if e.RetryAfter > 0 { // the same request is still carried out, and clients repeat after 503
			status = http.StatusServiceUnavailable
		}
	case problem.Invalid, problem.Unsupported:
		status = http.StatusBadRequest
	}
	if len(e.Fields) > 0 {
		text = describe(e.Fields[0])
	}
	return status, reply{Message: text}
}

// describe returns a mistake in a request.
func describe(m problem.FieldError) string {
	parts := strings.Split(strings.TrimPrefix(m.Pointer, "/"), "/")
	field := parts[0]
	switch {
	case field == "headers" && len(parts) > 1:
		field = "h:" + parts[1]
	case field == "metadata" && len(parts) > 1:
		field = "v:" + parts[1]
	case field == "to" && len(parts) > 2 && parts[2] == "vars":
		field = "recipient-variables"
	case field == "attachments":
		field = "attachment"
	case options[field] != "":
		field = options[field]
	}
	if m.Code == "invalid_address" {
		return field + " parameter is not a valid address. " + m.Detail
	}
	return field + " parameter is not valid. " + m.Detail
}

// options are Mailgun's names of fields that ours have other names for.
var options = map[string]string{
	"reply_to": "h:Reply-To", "tags": "o:tag", "deliver_at": "o:deliverytime", "track_opens": "o:tracking-opens",
	"track_clicks": "o:tracking-clicks", "metadata": "v", "email": "address", "category": "tag", "together": "to",
	"expires_at": "o:deliver-within",
}
