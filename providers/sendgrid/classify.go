package sendgrid

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

var notVerified = regexp.MustCompile(`(?i)verified sender identity`)

// rules are the meanings of answers besides 2xx and 400. 406 means that headers are wrong, 451 is about data residency.
var rules = []kind.Rule{
	{Status: http.StatusUnauthorized, Words: notVerified, Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Status: http.StatusForbidden, Words: notVerified, Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Status: http.StatusNotAcceptable, Class: models.AccountClass},
	{Status: http.StatusUnavailableForLegalReasons, Class: models.AccountClass},
}

// An apiError is one element of {"errors":[…]}. It has no machine-readable code.
type apiError struct {
	Message parse.Str `json:"message"`
	Field   parse.Str `json:"field"`
}

var (
	personalization = regexp.MustCompile(`^personalizations\.(\d{1,4})(?:\.(to|cc|bcc)(?:\.(\d{1,4}))?)?(?:\.|$)`)
	badAddress      = regexp.MustCompile(`(?i)valid (e-?mail|address)|e-?mail address|address is (in|not )valid`)
)

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	errs, said := readErrors(x.Body)
	a := p.Answer(c, x, said, now)
	switch {
	case a.OK():
		return accepted(a)
	case a.Status == http.StatusBadRequest:
		return badRequest(a, errs)
	}
	return a.By(rules)
}

// accepted reads a 2xx. A 202 has its ID in the header, so a body that breaks off does not matter. Any other 2xx counts
// if it has the ID. Without an ID it is from a proxy, and it is not known whether the call reached SendGrid.
func accepted(a *kind.Answer) []models.Part {
	id := parse.Text(a.Header.Get("X-Message-Id"))
	if a.Status != http.StatusAccepted && id == "" {
		return a.Whole(models.Unknown, "")
	}
	parts := a.Whole(models.Accepted, "")
	parts[0].MessageID = id
	return parts
}

// badRequest reads a 400. An error that names a personalization is about that recipient. One about an address without a
// personalization is about some recipient. All others are about the message.
func badRequest(a *kind.Answer, errs []apiError) []models.Part {
	aboutFile := func(e apiError) bool { return strings.HasPrefix(string(e.Field), "attachments.") }
	switch {
	case len(errs) == 0:
		return a.Whole(models.RejectedHereClass, "") // not of SendGrid's API: it says nothing about the message
	case !slices.ContainsFunc(errs, func(e apiError) bool { return !aboutFile(e) }):
		// SendGrid has rules of its own for the names and types of files.
		return a.Whole(models.RejectedHereClass, models.RejectedHere)
	}
	var address, other models.Set // recipients whose address, or whose values, were refused
	unnamed := false              // some recipient was refused
	for _, e := range errs {
		switch r, ofAddress := recipient(a.Call, string(e.Field)); {
		case r != nil && ofAddress:
			address.Add(r.Log.Recipient())
		case r != nil:
			other.Add(r.Log.Recipient())
		default:
			unnamed = unnamed || strings.HasPrefix(string(e.Field), "personalizations") ||
				e.Field == "" && badAddress.MatchString(string(e.Message))
		}
	}
	var bad []models.Part
	if !address.Empty() {
		bad = append(bad, a.Part(models.RejectedRecipient, models.MailboxInvalid, address))
	}
	if other = other.Minus(address); !other.Empty() {
		// Another provider may take the values.
		bad = append(bad, a.Part(models.RejectedHereClass, models.RejectedHere, other))
	}
	switch {
	case bad != nil:
		return message.Without(a.Call.Numbers(), bad...)
	case unnamed && a.Call.Together():
		return a.Whole(models.RejectedHereClass, models.RejectedHere)
	case unnamed:
		return a.BadAddress()
	}
	return a.Whole(models.RejectedRequest, models.InvalidRequest)
}

// recipient returns the recipient that an error's field names, or nil, and whether it is about the address. Of one mail
// to several only an address can be named.
func recipient(c *models.Call, field string) (r *models.CallRecipient, ofAddress bool) {
	m := personalization.FindStringSubmatch(field)
	if m == nil {
		return nil, false
	}
	mail, _ := strconv.Atoi(m[1])
	if !c.Together() {
		if mail < len(c.Recipients) {
			r = &c.Recipients[mail]
		}
		return r, m[2] != ""
	}
	at, err := strconv.Atoi(m[3])
	for i := range c.Recipients {
		if err != nil || mail != 0 || c.Recipients[i].Role != models.Role(m[2]) {
			continue
		}
		if at == 0 {
			return &c.Recipients[i], true
		}
		at--
	}
	return nil, false
}

// readErrors returns the errors of a body, at most one for each recipient, and their words.
func readErrors(body []byte) (errs []apiError, said string) {
	var in struct{ Errors []apiError }
	parse.Into(body, &in)
	var texts []string
	for _, e := range in.Errors[:min(len(in.Errors), Spec.Recipients)] {
		if e == (apiError{}) {
			continue
		}
		errs = append(errs, e)
		text := string(e.Message)
		if e.Field != "" {
			text += " (" + string(e.Field) + ")"
		}
		texts = append(texts, text)
	}
	return errs, strings.Join(texts, "; ")
}
