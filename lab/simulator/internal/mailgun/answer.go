package mailgun

import (
	"fmt"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// say returns the answer {"message":"..."}.
func say(status int, format string, args ...any) provider.Answer {
	body := jsontext.AppendQuoted([]byte(`{"message":`), fmt.Sprintf(format, args...))
	return provider.Answer{Status: status, Type: typeJSON, Body: string(append(body, '}'))}
}

// page returns the answer of a proxy.
func page(status int, title string) provider.Answer {
	body := "<html><head><title>" + title + "</title></head><body><h1>" + title + "</h1></body></html>"
	return provider.Answer{Status: status, Type: typeHTML, Body: body}
}

var (
	forbidden    = provider.Answer{Status: 401, Type: typeText, Body: "Forbidden"}
	magnificent  = provider.Answer{Status: 200, Type: typeText, Body: "Mailgun Magnificent API"}
	notFound     = provider.Answer{Status: 404, Type: typeText, Body: "404 page not found\n"}
	malformed    = say(400, "Malformed form data")
	bodyTooLarge = say(413, "request size exceeds 52.4MiB limit")
)

func domainNotFound(domain string) provider.Answer { return say(404, "Domain not found: %s", domain) }

// domainAnswer returns the answer to a request for the domain.
func (g *Mailgun) domainAnswer() provider.Answer {
	body := fmt.Sprintf(`{"domain":{"name":%[1]q,"state":"active","type":"custom",`+
		`"created_at":"Thu, 01 Jan 2026 00:00:00 GMT"},"receiving_dns_records":[],"sending_dns_records":[`+
		`{"record_type":"TXT","valid":"valid","name":%[1]q,"value":"v=spf1 include:mailgun.org ~all"},`+
		`{"record_type":"TXT","valid":"valid","name":%[2]q,"value":"k=rsa; p=MIGf"}]}`, g.domain, "mx._domainkey."+g.domain)
	return provider.Answer{Status: 200, Type: typeJSON, Body: body}
}

// statuses are the answers that Mailgun has for a status.
var statuses = map[int]provider.Answer{
	200: magnificent,
	400: say(400, "Bad Request"),
	401: forbidden,
	402: say(402, "Request Failed"),
	403: say(403, "Forbidden"),
	404: notFound,
	413: bodyTooLarge,
	500: say(500, "Internal Server Error"),
	502: page(502, "502 Bad Gateway"),
	503: page(503, "503 Service Temporarily Unavailable"),
	504: {Status: 504, Type: typeHTML},
}

// Refused implements provider.Provider.
func (g *Mailgun) Refused(c provider.Condition) provider.Answer {
	const notAllowed = "Domain %s is not allowed to send: "
	switch c.Kind {
	case provider.HasStatus:
		if c.Status == http.StatusTooManyRequests {
			return g.rateLimited(c.RetryAfter)
		}
		if a, ok := statuses[c.Status]; ok {
			return a
		}
		return say(c.Status, "%s", http.StatusText(c.Status))
	case provider.RateLimited:
		return g.rateLimited(c.RetryAfter)
	case provider.Full:
		text := fmt.Sprintf(notAllowed+"recipient limit exceeded", g.domain)
		if c.RetryAfter > 0 {
			text += ", try again after " + inWholeSeconds(c.RetryAfter)
		}
		return say(420, "%s", text)
	case provider.NoCredits:
		return say(402, "Payment Required")
	case provider.Unverified:
		return say(400, notAllowed+"The domain is unverified and requires DNS configuration. "+
			"Log in to your control panel to view required DNS records.", g.domain)
	case provider.NotAllowed:
		return say(400, notAllowed+"Please activate your Mailgun account. "+
			"Check your inbox or log in to your control panel to resend the activation email.", g.domain)
	case provider.Blocked:
		return say(403, "Rejected: IP 203.0.113.25 can't be used to send the message")
	case provider.LargeBatch:
		return say(403, "Domain %s is not allowed to send large batches yet", g.domain)
	case provider.TooLarge:
		return bodyTooLarge
	case provider.Garbage:
		return magnificent
	}
	return provider.Answer{}
}

// rateLimited returns the answer to a call over the limit. It names the time of
// the next try in whole seconds, rounded up.
func (g *Mailgun) rateLimited(wait time.Duration) provider.Answer {
	if wait == 0 {
		wait = g.account.Scale(time.Minute)
	}
	return say(429, "Domain %s is not allowed to send: request limit exceeded, try again after %s",
		g.domain, inWholeSeconds(wait))
}

// inWholeSeconds returns the time after a wait as Mailgun writes it, rounded up.
func inWholeSeconds(wait time.Duration) string {
	return time.Now().Add(wait + time.Second - 1).UTC().Truncate(time.Second).Format(time.RFC1123)
}

// Accepted implements provider.Provider.
func (g *Mailgun) Accepted(b *message.Batch) provider.Answer {
	body := jsontext.AppendQuoted([]byte(`{"id":`), g.ID(b))
	return provider.Answer{
		Status: 200,
		Type:   typeJSON,
		Body:   string(append(body, `,"message":"Queued. Thank you."}`...)),
	}
}
