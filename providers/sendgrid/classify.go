package sendgrid

import (
	"cmp"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// classes maps statuses whose body does not matter. For the others see classify.
//
// 404, 405 and 406 mean that URL or headers are wrong, as 3xx does. That is a mistake in
// the configuration, which the class account reports. 451 is about data residency. 500,
// 502 and 504 may come after the mail was accepted.
var classes = map[int]models.Class{
	http.StatusUnauthorized:               models.AccountClass,
	http.StatusPaymentRequired:            models.AccountClass,
	http.StatusForbidden:                  models.AccountClass,
	http.StatusNotFound:                   models.AccountClass,
	http.StatusMethodNotAllowed:           models.AccountClass,
	http.StatusNotAcceptable:              models.AccountClass,
	http.StatusRequestTimeout:             models.Unavailable, // the request did not arrive completely
	http.StatusRequestEntityTooLarge:      models.RejectedHereClass,
	http.StatusTooManyRequests:            models.Throttled,
	http.StatusUnavailableForLegalReasons: models.AccountClass,
	http.StatusServiceUnavailable:         models.Unavailable,
}

// An apiError is one element of {"errors":[…]}. It has no machine-readable code.
type apiError struct {
	Message parse.Str `json:"message"`
	Field   parse.Str `json:"field"`
}

var (
	onePersonalization = regexp.MustCompile(`^personalizations\.(\d{1,4})(?:\.|$)`)
	ofAddress          = regexp.MustCompile(`^personalizations\.\d{1,4}\.(?:to|cc|bcc)(?:\.|$)`)
	oneOfMail          = regexp.MustCompile(`^personalizations\.0\.(to|cc|bcc)\.(\d{1,4})(?:\.|$)`)
	notVerified        = regexp.MustCompile(`(?i)verified sender identity`)
	badAddress         = regexp.MustCompile(`(?i)valid (e-?mail|address)|e-?mail address|address is (in|not )valid`)
)

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, a transport.Answer, now time.Time) []models.Part {
	var errs []apiError
	if a.Status >= 300 {
		errs = readErrors(a.Body)
	}
	text := cmp.Or(p.words(answerText(errs, a)), http.StatusText(a.Status), "an answer without words")
	at := parse.RetryAt(a.Header, now)
	if class, ok := classes[a.Status]; ok {
		parts := whole(c, class, "", a.Status, text)
		if class != models.RejectedHereClass {
			parts[0].RetryAt = at
		}
		switch {
		case class == models.AccountClass && notVerified.MatchString(text):
			parts[0].Reason = models.SenderNotVerified
		case a.Status == http.StatusRequestEntityTooLarge:
			parts[0].Reason = models.TooLarge
		}
		return parts
	}
	switch {
	case a.Status >= 200 && a.Status < 300:
		return accepted(c, a, text)
	case a.Status >= 300 && a.Status < 400:
		return whole(c, models.AccountClass, "", a.Status, text)
	case a.Status == http.StatusBadRequest:
		return badRequest(c, errs, text)
	case a.Status > 400 && a.Status < 500 && !at.IsZero():
		parts := whole(c, models.Throttled, "", a.Status, text) // whatever the status is called
		parts[0].RetryAt = at
		return parts
	case a.Status > 400 && a.Status < 500:
		// SendGrid does not document this status, so another provider may take the mail.
		return whole(c, models.RejectedHereClass, "", a.Status, text)
	}
	return whole(c, models.Unknown, "", a.Status, text)
}

// accepted reads a 2xx. The body of a 202 is empty and its ID is in the header, so a body
// that breaks off does not matter. Any other 2xx counts if it has the ID. Without one it is
// not from SendGrid (but from a proxy or a captive portal), and it is not known whether the
// call reached SendGrid.
func accepted(c *models.Call, a transport.Answer, text string) []models.Part {
	id := parse.Text(a.Header.Get("X-Message-Id"))
	if a.Status != http.StatusAccepted && id == "" {
		return whole(c, models.Unknown, "", a.Status, text)
	}
	parts := whole(c, models.Accepted, "", a.Status, "")
	parts[0].MessageID = id
	return parts
}

// badRequest reads a 400. An error that names a personalization is about that recipient,
// and the others are tried again. An error about an address without a personalization is
// about some recipient. All others are about the message.
func badRequest(c *models.Call, errs []apiError, text string) []models.Part {
	if len(errs) == 0 {
		// This is not an answer of SendGrid's API. It says nothing about the message,
		// only that it was refused here.
		return whole(c, models.RejectedHereClass, "", 400, text)
	}
	if !slices.ContainsFunc(errs, apiError.notAboutFile) {
		// SendGrid has rules of its own for the names and types of files.
		return whole(c, models.RejectedHereClass, models.RejectedHere, 400, text)
	}
	if c.Together() {
		return badMail(c, errs, text)
	}
	var address, other models.Set
	unnamed := false
	for _, e := range errs {
		field := string(e.Field)
		if m := onePersonalization.FindStringSubmatch(field); m != nil {
			i, _ := strconv.Atoi(m[1])
			switch {
			case i >= len(c.Recipients):
				unnamed = true
			case ofAddress.MatchString(field):
				address.Add(c.Recipients[i].Log.Recipient())
			default:
				other.Add(c.Recipients[i].Log.Recipient())
			}
			continue
		}
		general := field == "" || strings.HasPrefix(field, "personalizations")
		unnamed = unnamed || general && (field != "" || badAddress.MatchString(string(e.Message)))
	}
	var bad []models.Part
	if !address.Empty() {
		bad = append(bad, models.Part{
			Class:      models.RejectedRecipient,
			Recipients: address,
			Reason:     models.MailboxInvalid,
			Status:     400,
			Text:       text,
		})
	}
	if other = other.Minus(address); !other.Empty() {
		// The values, not the address, were refused. Another provider may take them.
		bad = append(bad, models.Part{
			Class:      models.RejectedHereClass,
			Recipients: other,
			Reason:     models.RejectedHere,
			Status:     400,
			Text:       text,
		})
	}
	switch {
	case bad != nil:
		return message.Without(c.Numbers(), bad...)
	case unnamed && len(c.Recipients) > 1:
		return whole(c, models.Split, models.InvalidRequest, 400, text)
	case unnamed:
		return whole(c, models.RejectedRecipient, models.MailboxInvalid, 400, text)
	}
	return whole(c, models.RejectedRequest, models.InvalidRequest, 400, text)
}

// notAboutFile reports whether an error is about something else than an attachment.
func (e apiError) notAboutFile() bool { return !strings.HasPrefix(string(e.Field), "attachments.") }

// badMail reads a 400 to one mail to several recipients. Errors that name addresses are about
// these, and the others are tried again. A mail is not divided to find an address that is not named.
func badMail(c *models.Call, errs []apiError, text string) []models.Part {
	var address models.Set
	here := false
	for _, e := range errs {
		field := string(e.Field)
		if m := oneOfMail.FindStringSubmatch(field); m != nil {
			i, _ := strconv.Atoi(m[2])
			if r := nth(c, models.Role(m[1]), i); r != nil {
				address.Add(r.Log.Recipient())
				continue
			}
		}
		here = here || strings.HasPrefix(field, "personalizations") || badAddress.MatchString(string(e.Message)) &&
			field == ""
	}
	switch {
	case !address.Empty():
		return message.Without(c.Numbers(), models.Part{
			Class:      models.RejectedRecipient,
			Recipients: address,
			Reason:     models.MailboxInvalid,
			Status:     400,
			Text:       text,
		})
	case here:
		return whole(c, models.RejectedHereClass, models.RejectedHere, 400, text)
	}
	return whole(c, models.RejectedRequest, models.InvalidRequest, 400, text)
}

// nth returns the recipient of a call that is number i, from 0, of those with a role, or nil.
func nth(c *models.Call, role models.Role, i int) *models.CallRecipient {
	for k := range c.Recipients {
		if c.Recipients[k].Role != role {
			continue
		}
		if i == 0 {
			return &c.Recipients[k]
		}
		i--
	}
	return nil
}

// whole returns one part with all recipients of the call.
func whole(c *models.Call, class models.Class, reason models.Reason, status int, text string) []models.Part {
	return []models.Part{{
		Class:      class,
		Recipients: c.Numbers(),
		Reason:     reason,
		Status:     status,
		Text:       text,
	}}
}

// readErrors returns the errors of a body, at most maxRecipients.
func readErrors(body []byte) []apiError {
	var e struct {
		Errors json.RawMessage `json:"errors"`
	}
	var list []json.RawMessage
	parse.Into(body, &e)
	parse.Into(e.Errors, &list)
	out := make([]apiError, 0, min(len(list), maxRecipients))
	for _, raw := range list[:min(len(list), maxRecipients)] {
		var one apiError
		parse.Into(raw, &one)
		if one != (apiError{}) {
			out = append(out, one)
		}
	}
	return out
}

// answerText returns the text of an answer.
func answerText(errs []apiError, a transport.Answer) string {
	if len(errs) == 0 {
		if text := strings.TrimSpace(string(a.Body)); text != "" {
			return text
		}
		return http.StatusText(a.Status)
	}
	var b strings.Builder
	for _, e := range errs {
		if b.Len() > 2*models.MaxText {
			break
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(string(e.Message))
		if e.Field != "" {
			b.WriteString(" (" + string(e.Field) + ")")
		}
	}
	return b.String()
}

// words returns a text for storing: without addresses and without the API key.
func (p *Adapter) words(text string) string {
	k := p.keys.Load()
	return parse.Text(text, k.api, k.before)
}
