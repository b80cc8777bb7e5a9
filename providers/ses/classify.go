package ses

import (
	"cmp"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

var (
	aboutSender  = regexp.MustCompile(`(?i)\bfrom|sender|reply-?to`)
	aboutAddress = regexp.MustCompile(`(?i)final '@domain'|\b(illegal|invalid) (email )?address|` +
		`(local address|domain) (name )?(contains|starts|ends)|(illegal|invalid|bad) (destination|recipient)`)
	aboutFile   = regexp.MustCompile(`(?i)attachment|file ?name|file extension|content ?type`)
	notVerified = regexp.MustCompile(`(?i)not (been )?verified`)
	dailyQuota  = regexp.MustCompile(`(?i)(daily|24.hour)[^.]*quota`)
	aboutVirus  = regexp.MustCompile(`(?i)virus`)
	aboutLayout = regexp.MustCompile(`(?i)template`)
)

// badRequest is the code of most mistakes in a request.
const badRequest = "BadRequestException"

// rules are the meanings of errors, by the code of the header X-Amzn-ErrorType. An address that is not verified may be
// that of a recipient, if the account is in the sandbox. A refused file is a limit of Amazon SES.
var rules = []kind.Rule{
	{Status: http.StatusBadRequest, Words: notVerified, Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Status: http.StatusBadRequest, Code: "MailFromDomainNotVerifiedException", Class: models.AccountClass,
		Reason: models.SenderNotVerified},
	{Status: http.StatusBadRequest, Code: "AccountSuspendedException", Class: models.AccountClass},
	{Status: http.StatusBadRequest, Code: "SendingPausedException", Class: models.AccountClass},
	{Status: http.StatusBadRequest, Words: dailyQuota, Class: models.AccountClass},
	{Status: http.StatusTooManyRequests, Words: dailyQuota, Class: models.AccountClass},
	{Status: http.StatusBadRequest, Code: "ThrottlingException", Class: models.Throttled},
	{Status: http.StatusBadRequest, Code: "LimitExceededException", Class: models.Throttled},
	{Status: http.StatusBadRequest, Code: badRequest, Words: aboutSender, Class: models.RejectedRequest,
		Reason: models.InvalidRequest},
	{Status: http.StatusBadRequest, Code: badRequest, Words: aboutAddress, Class: models.Split},
	{Status: http.StatusBadRequest, Words: aboutFile, Class: models.RejectedHereClass},
	{Status: http.StatusBadRequest, Words: aboutLayout, Class: models.RejectedHereClass},
	{Status: http.StatusBadRequest, Words: aboutVirus, Class: models.RejectedRequest, Reason: models.Virus},
	{Status: http.StatusBadRequest, Code: "MessageRejected", Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Status: http.StatusBadRequest, Code: badRequest, Class: models.RejectedRequest,
		Reason: models.InvalidRequest},
}

// results are the meanings of the statuses of the mails of a bulk call. The documentation and the SDK call some of them
// by different names.
var results = []kind.Rule{
	{Code: "MESSAGE_REJECTED", Words: notVerified, Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "MESSAGE_REJECTED", Class: models.RejectedRequest, Reason: models.Virus},
	{Code: "MAIL_FROM_DOMAIN_NOT_VERIFIED", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "CONFIGURATION_SET_NOT_FOUND", Class: models.AccountClass},
	{Code: "CONFIGURATION_SET_DOES_NOT_EXIST", Class: models.AccountClass},
	{Code: "CONFIGURATION_SET_SENDING_PAUSED", Class: models.AccountClass},
	{Code: "TEMPLATE_NOT_FOUND", Class: models.RejectedHereClass},
	{Code: "TEMPLATE_DOES_NOT_EXIST", Class: models.RejectedHereClass},
	{Code: "INVALID_SENDING_POOL_NAME", Class: models.AccountClass},
	{Code: "ACCOUNT_SUSPENDED", Class: models.AccountClass},
	{Code: "ACCOUNT_SENDING_PAUSED", Class: models.AccountClass},
	{Code: "ACCOUNT_DAILY_QUOTA_EXCEEDED", Class: models.AccountClass},
	{Code: "ACCOUNT_THROTTLED", Class: models.Throttled},
	{Code: "TRANSIENT_FAILURE", Class: models.Unavailable},
	{Code: "FAILED", Class: models.RejectedHereClass},
	{Code: "INVALID_PARAMETER", Words: aboutSender, Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Code: "INVALID_PARAMETER", Words: aboutAddress, Class: models.RejectedRecipient, Reason: models.MailboxInvalid},
	{Code: "INVALID_PARAMETER", Words: aboutFile, Class: models.RejectedHereClass},
	{Code: "INVALID_PARAMETER", Class: models.RejectedRequest, Reason: models.InvalidRequest},
}

// A result is the answer about a mail of a bulk call.
type result struct {
	Status    parse.Str
	Error     parse.Str
	MessageID parse.Str `json:"MessageId"`
}

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in struct {
		Type      parse.Str `json:"__type"`
		Message   parse.Str
		MessageID parse.Str `json:"MessageId"`
		Results   []result  `json:"BulkEmailEntryResults"`
	}
	parse.Into(x.Body, &in)
	a := p.Answer(c, x, string(in.Message), now)
	if a.OK() {
		if mails := a.Mails(); len(mails) == 1 && in.MessageID != "" {
			return []models.Part{a.Accepted(mails[0], in.MessageID)}
		}
		return p.results(a, in.Results)
	}
	code, _, _ := strings.Cut(cmp.Or(x.Header.Get("X-Amzn-Errortype"), string(in.Type)), ":")
	a.Code = code[strings.LastIndexByte(code, '#')+1:]
	parts := a.By(rules)
	if parts[0].Class == models.RejectedRequest && a.Code == badRequest && len(a.Mails()) > 1 &&
		!aboutSender.MatchString(a.Said) {
		return a.Whole(models.Split, models.InvalidRequest) // one of the mails may be the reason
	}
	return parts
}

// results reads the results of a bulk call, in the order of its mails. If their number is not that of the mails, it is
// not known which were accepted. A failure that has a message ID proves nothing.
func (p *Adapter) results(a *kind.Answer, list []result) (parts []models.Part) {
	mails := a.Mails()
	if len(mails) == 1 || len(list) != len(mails) {
		return a.Whole(models.Unknown, "")
	}
	for i, mail := range mails {
		code := string(list[i].Status)
		if code == "SUCCESS" {
			parts = append(parts, a.Accepted(mail, list[i].MessageID))
			continue
		}
		own := p.About(a, strings.TrimSuffix(code, "_VALUE"), string(cmp.Or(list[i].Error, list[i].Status)))
		class, reason := own.Meaning(results)
		if list[i].MessageID != "" {
			class, reason = models.Unknown, ""
		}
		parts = append(parts, own.Part(class, reason, mail))
	}
	return parts
}
