package sendgrid

import (
	"net/http"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// helpURL is the beginning of the links to the documentation of errors.
const helpURL = "http://sendgrid.com/docs/API_Reference/Web_API_v3/Mail/errors.html#"

// An apiError is one entry of SendGrid's list of errors. An empty field or help
// is null.
type apiError struct{ message, field, help string }

// errorList returns the answer with the errors.
func errorList(status int, list ...apiError) provider.Answer {
	body := []byte(`{"errors":[`)
	for i, e := range list {
		if i > 0 {
			body = append(body, ',')
		}
		body = jsontext.AppendQuoted(append(body, `{"message":`...), e.message)
		for _, member := range []struct{ name, value string }{{"field", e.field}, {"help", e.help}} {
			if member.value == "" {
				body = append(body, `,"`+member.name+`":null`...)
			} else {
				body = jsontext.AppendField(body, member.name, member.value)
			}
		}
		body = append(body, '}')
	}
	return provider.Answer{Status: status, Type: typeJSON, Body: string(append(body, ']', '}'))}
}

// text returns the answer with one error that has no field.
func text(status int, message string) provider.Answer {
	return errorList(status, apiError{message: message})
}

// page returns the answer of a proxy.
func page(status int, title string) provider.Answer {
	body := "<html><head><title>" + title + "</title></head><body><h1>" + title + "</h1></body></html>"
	return provider.Answer{Status: status, Type: typeHTML, Body: body}
}

// statuses are the answers that SendGrid has for a status.
var statuses = map[int]provider.Answer{
	202: {Status: 202, Type: typeText},
	400: text(400, "Bad Request"),
	401: text(401, "The provided authorization grant is invalid, expired, or revoked"),
	403: text(403, "access forbidden"),
	404: text(404, "not found"),
	405: text(405, "POST method allowed only"),
	406: text(406, "Missing Accept header"),
	413: text(413, "The request body exceeds 30 MB"),
	415: text(415, "Content-Type should be application/json."),
	429: {Status: 429, Type: typeJSON, Body: `{"errors":[{"field":null,"message":"too many requests"}]}`},
	451: text(451, "unavailable for legal reasons"),
	500: {Status: 500, Type: typeJSON, Body: `{"errors":[{"message":"Internal Server Error"}]}`},
	502: page(502, "502 Bad Gateway"),
	503: {Status: 503, Type: typeText, Body: "Service Unavailable"},
	504: page(504, "504 Gateway Time-out"),
}

const badIdentity = "The from address does not match a verified Sender Identity. " +
	"Mail cannot be sent until this error is resolved. " +
	"Visit https://sendgrid.com/docs/for-developers/sending-email/sender-identity/ to see the Sender Identity requirements"

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   text(401, "Maximum credits exceeded"),
	provider.Full:        text(401, "Maximum credits exceeded"),
	provider.Unverified:  errorList(403, apiError{badIdentity, "from", helpURL + "message.from"}),
	provider.Blocked:     statuses[403],
	provider.NotAllowed:  text(401, "Authenticated user is not authorized to send mail"),
	provider.LargeBatch:  statuses[403],
	provider.TooLarge:    statuses[413],
	provider.RateLimited: statuses[429],
	provider.Garbage:     {Status: 200, Type: typeHTML, Body: "<html><body>It works!</body></html>"},
}

// Refused implements provider.Provider.
func (g *SendGrid) Refused(c provider.Condition) provider.Answer {
	if c.Kind == provider.HasStatus {
		if a, ok := statuses[c.Status]; ok {
			return a
		}
		return provider.Answer{Status: c.Status, Type: typeText, Body: http.StatusText(c.Status)}
	}
	a := conditions[c.Kind]
	if c.Kind == provider.RateLimited && c.RetryAfter > 0 {
		a.Header = map[string]string{
			"X-RateLimit-Limit":     "600",
			"X-RateLimit-Remaining": "0",
			"X-RateLimit-Reset":     strconv.FormatInt(time.Now().Add(c.RetryAfter).Unix(), 10),
		}
	}
	return a
}

// Accepted implements provider.Provider.
func (g *SendGrid) Accepted(b *message.Batch) provider.Answer {
	return provider.Answer{Status: 202, Type: typeText, Header: map[string]string{"X-Message-Id": g.ID(b)}}
}
