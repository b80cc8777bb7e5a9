// Package ses imitates Amazon SES: SendEmail and SendBulkEmail of its API v2 with signed requests, the suppression
// list, and events that Amazon SNS posts and signs. The key of an account is ID:SECRET, its topic Topic and its name.
package ses

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// Topic begins the ARN of the topic of an account.
const Topic = "arn:aws:sns:us-east-1:123456789012:"

const (
	maxPage  = 1000
	certFile = "SimpleNotificationService-0000000000000000000000000000ab01.pem"
)

func fail(status int, code, text string) provider.Answer {
	a := provider.JSON(status, map[string]string{"message": text})
	a.Header = map[string]string{"x-amzn-ErrorType": code + ":http://internal.amazon.com/coral/com.amazonaws.sesv2/"}
	return a
}

// statuses are the answers that Amazon SES has for a status.
var statuses = map[int]provider.Answer{
	400: fail(400, "BadRequestException", "1 validation error detected."),
	403: fail(403, "UnrecognizedClientException", "The security token included in the request is invalid."),
	404: fail(404, "NotFoundException", "The resource does not exist."),
	413: fail(413, "RequestEntityTooLarge", "The request is too large."),
	429: fail(429, "TooManyRequestsException", "Maximum sending rate exceeded."),
	500: fail(500, "InternalFailure", "The request processing has failed because of an unknown error."),
	503: fail(503, "ServiceUnavailable", "The request has failed due to a temporary failure of the server."),
}

var daily = fail(400, "ThrottlingException", "Daily message quota exceeded.")

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits: daily,
	provider.Full:      daily,
	provider.Unverified: fail(400, "MessageRejected",
		"Email address is not verified. The following identities failed the check in region US-EAST-1: <domain>"),
	provider.Blocked:     fail(403, "AccessDeniedException", "User is not authorized to perform: ses:SendEmail"),
	provider.NotAllowed:  fail(400, "AccountSuspendedException", "Sending suspended for this account."),
	provider.LargeBatch:  statuses[400],
	provider.TooLarge:    statuses[413],
	provider.RateLimited: statuses[429],
}

const to = `[{"emailAddress":<address>,"action":"failed","status":"<enhanced>",` +
	`"diagnosticCode":"smtp; <code> <enhanced> <text>"}]`

// bounced returns the word for a bounce.
func bounced(kind, subtype string) provider.Word {
	return provider.Word{Event: "Bounce", Fields: `"bounce":{"bounceType":"` + kind + `","bounceSubType":"` + subtype +
		`","bouncedRecipients":` + to + `,"timestamp":"<time>","feedbackId":"<feedback>",` +
		`"reportingMTA":"dns; a8-70.smtp-out.test"}`}
}

// complained returns the word for a complaint.
func complained(subtype string) provider.Word {
	return provider.Word{Event: "Complaint", Fields: `"complaint":{"complainedRecipients":[{"emailAddress":<address>}],` +
		`"timestamp":"<time>","feedbackId":"<feedback>","complaintSubType":` + subtype + `,"complaintFeedbackType":"abuse"}`}
}

// wording holds what Amazon SES reports. It accepts mail to suppressed addresses, and reports a bounce or a complaint.
var wording = provider.Wording{
	Hook: `{"eventType":"<event>","mail":{"timestamp":"<sent>","source":<from>,"messageId":"<id>",` +
		`"destination":<all>,"headersTruncated":false,"tags":<tagged>},<fields>}`,
	Retry:  5 * time.Minute,
	Expire: []time.Duration{time.Hour, 12 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken: {Event: "Send", Fields: `"send":{}`},
		provider.Delivered: {Event: "Delivery", Fields: `"delivery":{"timestamp":"<time>","processingTimeMillis":546,` +
			`"recipients":[<address>],"smtpResponse":"250 2.6.0 Message received","reportingMTA":"a8-70.smtp-out.test"}`},
		provider.Deferred: {Event: "DeliveryDelay", Fields: `"deliveryDelay":{"timestamp":"<time>","delayType":"General",` +
			`"expirationTime":"<time>","delayedRecipients":` + to + `}`},
		provider.Expired:        bounced("Transient", "General"),
		provider.BouncedHard:    bounced("Permanent", "General"),
		provider.BouncedBlocked: bounced("Transient", "General"),
		provider.BouncedFull:    bounced("Transient", "MailboxFull"),
		provider.BouncedLate:    bounced("Permanent", "General"),
		provider.DroppedBounce:  bounced("Permanent", "OnAccountSuppressionList"),
		provider.DroppedSpam:    complained(`"OnAccountSuppressionList"`),
		provider.DroppedUnsub:   bounced("Permanent", "UnsubscribedRecipient"),
		provider.DroppedInvalid: bounced("Permanent", "General"),
		provider.DroppedContent: {Event: "Reject", Fields: `"reject":{"reason":"Bad content"}`},
		provider.Complained:     complained("null"),
		provider.Unsubscribed: {Event: "Subscription", Fields: `"subscription":{"contactList":"list","timestamp":"<time>",` +
			`"source":"UnsubscribeHeader","newTopicPreferences":{"unsubscribeAll":true}}`},
		provider.Opened: {Event: "Open", Fields: `"open":{"ipAddress":"198.51.100.7","timestamp":"<time>","userAgent":"x"}`},
		provider.Clicked: {Event: "Click", Fields: `"click":{"ipAddress":"198.51.100.7","timestamp":"<time>",` +
			`"userAgent":"x","link":"https://example.com/","linkTags":null}`},
	},
	Holes: provider.Holes{
		Event: map[string]provider.Hole{
			"feedback": func(dst []byte, v *provider.View) []byte {
				return append(append(dst, "fb-"...), v.IDs.Hex(24, provider.ForEvent, v.Batch.Serial, uint64(v.Event.Stage))...)
			},
			"all": func(dst []byte, v *provider.View) []byte {
				var list []string
				for i := range v.Batch.Copies {
					list = append(list, v.Batch.Copies[i].Address)
				}
				return provider.AppendList(dst, list)
			},
		},
		Copy: map[string]provider.Hole{"tagged": func(dst []byte, v *provider.View) []byte {
			dst = append(dst, `{"ses:configuration-set":["sim"]`...)
			for key, value := range v.Batch.Metadata(v.Copy) {
				dst = provider.AppendList(append(provider.Quote(append(dst, ','), key), ':'), []string{value})
			}
			return append(dst, '}')
		}},
	},
}

var stages = sync.OnceValue(wording.Stages)

const entry = `{"EmailAddress":<address>,"Reason":<list>,"LastUpdateTime":<unix>}`

// lists are the reasons of the entries of the suppression list.
var lists = []provider.List{
	{Name: "BOUNCE", Drops: message.SuppressedBounce, Item: entry,
		Of: []message.Outcome{message.HardBounce, message.Async, message.Invalid, message.SuppressedBounce}},
	{Name: "COMPLAINT", Drops: message.SuppressedSpam, Item: entry,
		Of: []message.Outcome{message.Complain, message.SuppressedSpam}},
}

// SES is an account at Amazon SES.
type SES struct{ *provider.Provider }

// New returns the provider for an account.
func New(a *provider.Account) (*provider.Provider, error) {
	g := SES{&provider.Provider{
		Account:    a,
		Stages:     stages(),
		Suppress:   lists,
		Statuses:   statuses,
		Conditions: conditions,
		Hooks: provider.Hooks{
			ClientErrorsEnd: true,
			Gaps:            func(*provider.Stage) []time.Duration { return gaps },
			Sign:            func(p provider.Post) ([]byte, http.Header, error) { return post(a, p) },
		},
	}}
	g.Unauthorized = func(r *http.Request) int {
		if r.Method != http.MethodPost && !signed(a.Key, r, "") || !named(a.Key, r) {
			return http.StatusForbidden
		}
		return 0 // the signature of a post is checked with its body
	}
	g.Routes = []provider.Route{
		{Path: "POST v2/email/outbound-emails", Send: &provider.Send{Limit: maxBody, Parse: g.parse}},
		{Path: "POST v2/email/outbound-bulk-emails", Send: &provider.Send{Limit: maxBody, Parse: g.parse}},
		{Path: "GET v2/email/suppression/addresses", Access: provider.UsesLists, Answer: g.showList},
		{Path: "GET v2/email/suppression/addresses/{address}", Access: provider.UsesLists, Answer: g.showEntry},
		{Path: "GET " + certFile, Access: provider.Open, Answer: func(*http.Request) provider.Answer {
			_, cert := notary()
			return provider.Answer{Status: 200, Type: "application/x-pem-file", Body: cert}
		}},
		{Path: "GET v2/email/account", Static: `{"ProductionAccessEnabled":true,"SendingEnabled":true,` +
			`"EnforcementStatus":"HEALTHY","SendQuota":{"Max24HourSend":200000,"MaxSendRate":100,"SentLast24Hours":7}}`},
		{Path: "GET v2/email/identities", Static: `{"EmailIdentities":[{"IdentityType":"DOMAIN","IdentityName":"<domain>",` +
			`"SendingEnabled":true,"VerificationStatus":"SUCCESS"}]}`},
		{Path: "GET v2/email/configuration-sets/{name}/event-destinations", Static: `{"EventDestinations":[{"Name":"sns",` +
			`"Enabled":<enabled>,"MatchingEventTypes":["SEND","REJECT","BOUNCE","COMPLAINT","DELIVERY","OPEN","CLICK",` +
			`"RENDERING_FAILURE","DELIVERY_DELAY","SUBSCRIPTION"],"SnsDestination":{"TopicArn":"` + Topic + a.Name + `"}}]}`},
		{Path: "DELETE v2/email/suppression/addresses/{address}", Access: provider.UsesLists, Answer: g.unlist},
	}
	return g.Provider, nil
}

// gaps are those of a subscription without a policy of its own.
var gaps = []time.Duration{20 * time.Second, 20 * time.Second, 20 * time.Second}

// showList answers with a page of the suppression list. Its bounds are not part of what they select.
func (g SES) showList(r *http.Request) provider.Answer {
	q := r.URL.Query()
	size, err := strconv.Atoi(cmp.Or(q.Get("PageSize"), "100"))
	from, err1 := time.Parse(time.RFC3339, cmp.Or(q.Get("StartDate"), "1970-01-01T00:00:00Z"))
	end, err2 := time.Parse(time.RFC3339, cmp.Or(q.Get("EndDate"), "9999-01-01T00:00:00Z"))
	at, err3 := strconv.Atoi(cmp.Or(q.Get("NextToken"), "0"))
	switch {
	case err != nil || err1 != nil || err2 != nil || size < 1 || size > maxPage:
		return statuses[400]
	case err3 != nil || at < 0:
		return fail(400, "InvalidNextTokenException", "The token is not valid.")
	}
	var list []provider.Listed
	for _, e := range g.Entries(time.Now()) {
		if named := q["Reason"]; len(named) > 0 && !slices.Contains(named, e.List) {
			continue
		}
		if e.At.After(from) && e.At.Before(end) {
			list = append(list, e)
		}
	}
	out := map[string]any{"SuppressedDestinationSummaries": g.Items(provider.Part(list, at, size))}
	if at+size < len(list) {
		out["NextToken"] = strconv.Itoa(at + size)
	}
	return provider.JSON(200, out)
}

// suppressed returns the entry of an address, or nil.
func (g SES) suppressed(address string) *provider.Listed {
	for _, e := range g.Entries(time.Now()) {
		if strings.EqualFold(e.Address, address) {
			return &e
		}
	}
	return nil
}

func (g SES) showEntry(r *http.Request) provider.Answer {
	if e := g.suppressed(r.PathValue("address")); e != nil {
		return provider.JSON(200, map[string]any{"SuppressedDestination": g.Items([]provider.Listed{*e})[0]})
	}
	return statuses[404]
}

func (g SES) unlist(r *http.Request) provider.Answer {
	e := g.suppressed(r.PathValue("address"))
	if e == nil {
		return statuses[404]
	}
	g.Lists.Remove(e.List, e.Address, time.Now())
	return provider.JSON(200, map[string]any{})
}
