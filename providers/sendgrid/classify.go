package sendgrid

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// classes says what a status means, whatever the body says. Those that are not
// listed: see classify.
//
// 404, 405 and 406 mean that our URL or headers are wrong, as 3xx does: a matter
// of configuration, which the class provider makes known. 451 is data residency.
// 500, 502 and 504 may come after the mail was taken.
var classes = map[int]models.Class{
	http.StatusUnauthorized:               models.AccountClass,
	http.StatusPaymentRequired:            models.AccountClass,
	http.StatusForbidden:                  models.AccountClass,
	http.StatusNotFound:                   models.AccountClass,
	http.StatusMethodNotAllowed:           models.AccountClass,
	http.StatusNotAcceptable:              models.AccountClass,
	http.StatusRequestTimeout:             models.Unavailable, // it says that the request did not arrive whole
	http.StatusRequestEntityTooLarge:      models.RejectedHereClass,
	http.StatusTooManyRequests:            models.Throttled,
	http.StatusUnavailableForLegalReasons: models.AccountClass,
	http.StatusServiceUnavailable:         models.Unavailable,
}

// An apiError is one element of {"errors":[…]}. There are no machine codes.
type apiError struct {
	Message parse.Str `json:"message"`
	Field   parse.Str `json:"field"`
}

var (
	onePersonalization = regexp.MustCompile(`^personalizations\.(\d{1,4})(?:\.|$)`)
	ofAddress          = regexp.MustCompile(`^personalizations\.\d{1,4}\.(?:to|cc|bcc)(?:\.|$)`)
	notVerified        = regexp.MustCompile(`(?i)verified sender identity`)
	badAddress         = regexp.MustCompile(`(?i)valid (e-?mail|address)|e-?mail address|address is (in|not )valid`)
)

// classify says what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, a transport.Answer, now time.Time) []models.Part {
	var errs []apiError
	if a.Status >= 300 {
		errs = readErrors(a.Body)
	}
	text := p.words(says(errs, a))
	if class, ok := classes[a.Status]; ok {
		parts := whole(c, class, "", a.Status, text)
		switch {
		case class == models.Throttled || class == models.Unavailable:
			parts[0].RetryAt = parse.RetryAt(a.Header, now)
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
	case a.Status > 400 && a.Status < 500:
		// Refused for a reason that is not in SendGrid's list: another provider
		// may know better.
		return whole(c, models.RejectedHereClass, "", a.Status, text)
	}
	return whole(c, models.Unknown, "", a.Status, text)
}

// accepted reads a 2xx. The body of a 202 is empty and means nothing, and the id
// is in the header: nothing is lost if the body breaks off. Any other 2xx counts
// if it carries the id; without one it is not SendGrid that spoke (a proxy, a
// captive portal), and whether the call reached it is not known.
func accepted(c *models.Call, a transport.Answer, text string) []models.Part {
	id := parse.Text(a.Header.Get("X-Message-Id"))
	if a.Status != http.StatusAccepted && id == "" {
		return whole(c, models.Unknown, "", a.Status, text)
	}
	parts := whole(c, models.Accepted, "", a.Status, "")
	parts[0].MessageID = id
	return parts
}

// badRequest reads a 400. An error that names a personalization concerns that
// recipient, and the others go again; one about an address that names none
// concerns somebody; the rest is about the message.
func badRequest(c *models.Call, errs []apiError, text string) []models.Part {
	if len(errs) == 0 {
		// Not SendGrid's words: nothing can be concluded about the message, only
		// that it was refused here.
		return whole(c, models.RejectedHereClass, "", 400, text)
	}
	var address, other models.Set
	somebody := false
	for _, e := range errs {
		field := string(e.Field)
		if m := onePersonalization.FindStringSubmatch(field); m != nil {
			i, _ := strconv.Atoi(m[1])
			switch {
			case i >= len(c.Recipients):
				somebody = true
			case ofAddress.MatchString(field):
				address.Add(c.Recipients[i].Log.Recipient())
			default:
				other.Add(c.Recipients[i].Log.Recipient())
			}
			continue
		}
		general := field == "" || strings.HasPrefix(field, "personalizations")
		somebody = somebody || general && (field != "" || badAddress.MatchString(string(e.Message)))
	}
	var bad []models.Part
	if !address.Empty() {
		bad = append(bad, models.Part{Class: models.RejectedRecipient, Recipients: address, Reason: models.MailboxInvalid, Status: 400, Text: text})
	}
	if other = other.Minus(address); !other.Empty() {
		// Its values, not its address: another provider may take them.
		bad = append(bad, models.Part{Class: models.RejectedHereClass, Recipients: other, Reason: models.RejectedHere, Status: 400, Text: text})
	}
	switch {
	case bad != nil:
		return message.Without(c.Numbers(), bad...)
	case somebody && len(c.Recipients) > 1:
		return whole(c, models.Split, models.InvalidRequest, 400, text)
	case somebody:
		return whole(c, models.RejectedRecipient, models.MailboxInvalid, 400, text)
	}
	return whole(c, models.RejectedRequest, models.InvalidRequest, 400, text)
}

func whole(c *models.Call, class models.Class, reason models.Reason, status int, text string) []models.Part {
	return []models.Part{{Class: class, Recipients: c.Numbers(), Reason: reason, Status: status, Text: text}}
}

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

// says is what the answer says, for people.
func says(errs []apiError, a transport.Answer) string {
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

// words makes a text fit to be kept: no addresses, and not our key, should the
// provider repeat it.
func (p *Adapter) words(text string) string { return parse.Text(text, p.key) }
