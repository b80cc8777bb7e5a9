package smtp2go

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The codes of errors that say why.
const (
	denied  = "ENDPOINT_PERMISSION_DENIED"
	invalid = "NON_VALIDATING_IN_PAYLOAD"
)

var (
	noKey   = regexp.MustCompile(`(?i)\bapi[_ ]?(key|user)\b.{0,80} not found`)
	address = regexp.MustCompile(`(?s)valid RFC-?822 .*but found '(.*?)'(?:, Please|$)`)
	many    = regexp.MustCompile(`(?i)\bfield '?emails\b`)
)

// rules are the meanings of an answer that refuses all mails of a call, because SMTP2GO checks key, payload and sender
// first. A payload that it cannot read is a mistake of ours, so that another provider may take the mail.
var rules = []kind.Rule{
	{Code: denied, Class: models.AccountClass},
	{Words: noKey, Class: models.AccountClass},
	{Code: invalid, Words: regexp.MustCompile(`(?i)\bfield '?sender\b`), Class: models.RejectedHereClass},
	{Code: invalid, Words: address, Class: models.Split},
	{Code: invalid, Class: models.RejectedHereClass},
	{Words: regexp.MustCompile(`(?i)\bsender\b.{0,120} not verified|domain verify fail`), Class: models.AccountClass,
		Reason: models.SenderNotVerified},
}

// spoken are the meanings of the words about one mail, which are those of SMTP2GO's mail server.
var spoken = []kind.Rule{
	{Words: regexp.MustCompile(`(?i)rate ?limit`), Class: models.Throttled},
	{Words: regexp.MustCompile(`(?i)\b(quota|allowance|suspended)\b`), Class: models.AccountClass},
	{Words: regexp.MustCompile(`\b55\d[ -]`), Class: models.RejectedHereClass},
}

// doubt is the meaning of all other words, after which the mail may have been taken.
var doubt = []kind.Rule{{Class: models.Unknown}}

// A problem is an error of an answer: in its data, or beside it as one page of the documentation shows.
type problem struct {
	Data  json.RawMessage
	Code  parse.Str `json:"error_code"`
	Error parse.Str
	Field struct{ Message parse.Str } `json:"field_validation_errors"`
}

// errorOf returns the code and the words of the error in an answer, or empty ones.
func errorOf(body []byte) (code, words string) {
	var in problem
	parse.Into(body, &in)
	parse.Into(in.Data, &in)
	words = string(in.Error)
	if in.Field.Message != "" {
		words = string(in.Field.Message)
	}
	return strings.TrimPrefix(string(in.Code), "E_ApiResponseCodes."), words
}

// classify returns what an answer means for the recipients of the call. After 429 SMTP2GO takes nothing for a minute or
// more. What it refuses with words of its own may be a part of a batch.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	code, words := errorOf(x.Body)
	a := p.Answer(c, x, words, now)
	if a.Code = code; a.Status == http.StatusTooManyRequests && a.RetryAt.IsZero() {
		a.RetryAt = now.Add(time.Minute)
	}
	switch {
	case a.OK() && code == "":
		return p.results(a)
	case a.OK(), a.Status == http.StatusBadRequest && code != "" && !single(c):
		return refuse(a, slices.Concat(rules, doubt))
	case a.Status == http.StatusBadRequest:
		return refuse(a, slices.Concat(rules, spoken))
	}
	return a.By(nil)
}

// refuse returns the parts of an answer with an error. It may show the address of a recipient, who is rejected then.
func refuse(a *kind.Answer, own []kind.Rule) []models.Part {
	class, reason := a.Meaning(own)
	parts := a.Whole(class, reason)
	switch {
	case class == models.Split:
		bad := address.FindStringSubmatch(a.Said)[1]
		for i := range a.Call.Recipients {
			r := &a.Call.Recipients[i]
			if !single(a.Call) && (bad == r.Email || bad == message.Named(r.Name, r.Email)) {
				return message.Without(a.Call.Numbers(),
					a.Part(models.RejectedRecipient, models.MailboxInvalid, models.SetOf(r.Log.Recipient())))
			}
		}
		return a.BadAddress()
	case a.Code == invalid && !single(a.Call) && many.MatchString(a.Said):
		parts[0].Fewer = len(a.Call.Recipients) - 1
	}
	return parts
}

// results reads a 2xx: the result of the mail, or a list. If the number of results is not that of the mails, it is not
// known which were taken. A mail that was taken has an ID.
func (p *Adapter) results(a *kind.Answer) (parts []models.Part) {
	var in problem
	var list []struct {
		ID                parse.Str `json:"email_id"`
		Succeeded, Failed parse.Str
		Failures          []string
	}
	mails := a.Mails()
	err := json.Unmarshal(a.Body, &in)
	if single(a.Call) {
		in.Data = slices.Concat([]byte("["), in.Data, []byte("]"))
	}
	if err != nil || json.Unmarshal(in.Data, &list) != nil || len(list) != len(mails) {
		return a.Whole(models.Unknown, "")
	}
	for i, mail := range mails {
		r, no := &list[i], func(count parse.Str) bool { return count == "" || count == "0" }
		own := p.About(a, "", strings.Join(r.Failures, "; "))
		switch {
		case r.ID != "" && no(r.Failed) && own.Said == "":
			parts = append(parts, own.Accepted(mail, r.ID))
		case r.ID == "" && no(r.Succeeded) && own.Said != "":
			parts = append(parts, own.Refused(mail, slices.Concat(rules, spoken, doubt)))
		default:
			parts = append(parts, own.Part(models.Unknown, "", mail))
		}
	}
	return parts
}
