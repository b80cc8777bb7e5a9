package kind

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// Send implements Send of models.Adapter. It composes a call, makes its request with do, and returns the answer as
// classify reads it. do sends the request through the Client at most once. It ends with ctx or after the provider's
// time-out.
func Send[K, R any](
	ctx context.Context, b *Base[K], c *models.Call, compose func(*models.Call) (R, []models.Part),
	do func(ctx context.Context, r R) error, classify func(*models.Call, transport.Answer, time.Time) []models.Part,
) []models.Part {
	if len(c.Recipients) == 0 {
		return nil
	}
	r, refused := compose(c)
	if refused != nil {
		return refused
	}
	ctx, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	ctx, x := transport.Record(ctx, c.StartBy)
	err := do(ctx, r)
	if x.Status != 0 {
		return classify(c, x.Answer, time.Now())
	}
	class, reason, text := x.NoAnswer(err)
	return (&Answer{Call: c, Text: b.Words(text)}).Whole(class, reason)
}

// Request returns a request with JSON for a path of the API.
func (b *Base[K]) Request(path string, body []byte) models.Request {
	return models.Request{Method: http.MethodPost, URL: b.Root + path, ContentType: "application/json", Body: body}
}

// Post sends a request with the API key and a header. Use it in Send.
func (b *Base[K]) Post(ctx context.Context, r models.Request, h http.Header) error {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	for name, values := range h {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", r.ContentType)
	req.Header.Set("Accept", "application/json")
	b.Authorize(req.Header, b.Keys().API)
	resp, err := b.Client.HTTP.Do(req)
	if err == nil {
		_ = resp.Body.Close() // it was read
	}
	return err
}

// An Answer is the answer to a call, or a part of it about one mail.
type Answer struct {
	transport.Answer
	Call    *models.Call
	Code    string    // the provider's for the error, if it has codes
	Said    string    // its words
	Text    string    // its words for storing; never empty
	RetryAt time.Time // when it wants to be asked again; zero: it does not say
}

// Answer returns the answer to a call. said are the words that the kind has read in it. If there are none, they are the
// body, or the name of the status.
func (b *Base[K]) Answer(c *models.Call, a transport.Answer, said string, now time.Time) *Answer {
	said = cmp.Or(said, strings.TrimSpace(string(a.Body)), http.StatusText(a.Status))
	text := cmp.Or(b.Words(said), http.StatusText(a.Status), "an answer without words")
	return &Answer{Answer: a, Call: c, Said: said, Text: text, RetryAt: parse.RetryAt(a.Header, now)}
}

// About returns a part of an answer with a code, a text and a time of its own.
func (b *Base[K]) About(a *Answer, code, said string) *Answer {
	own := *a
	own.Code, own.Said, own.Text = code, said, cmp.Or(b.Words(said), a.Text)
	return &own
}

// OK reports whether the status is a success.
func (a *Answer) OK() bool { return a.Status >= 200 && a.Status < 300 }

// Part returns a part for some recipients of the call. Only an acceptance has no text, and only a class that may pass
// has a time.
func (a *Answer) Part(class models.Class, reason models.Reason, of models.Set) models.Part {
	p := models.Part{Class: class, Recipients: of, Reason: reason, Status: a.Status, Text: a.Text}
	switch class {
	case models.Accepted:
		p.Text = ""
	case models.Throttled, models.Unavailable, models.AccountClass:
		p.RetryAt = a.RetryAt
	case models.RejectedRecipient, models.RejectedRequest, models.RejectedHereClass, models.Unknown, models.Split:
	}
	return p
}

// Accepted returns the part of a mail that was accepted under an ID.
func (a *Answer) Accepted(mail models.Set, id parse.Str) models.Part {
	p := a.Part(models.Accepted, "", mail)
	p.MessageID = parse.Text(string(id))
	return p
}

// Whole returns one part with all recipients of the call.
func (a *Answer) Whole(class models.Class, reason models.Reason) []models.Part {
	return []models.Part{a.Part(class, reason, a.Call.Numbers())}
}

// A Rule says what a refusal means. Each of Status, Code and Words that is not zero must fit.
type Rule struct {
	Status int
	Code   string
	Words  *regexp.Regexp // of what was said
	Class  models.Class
	Reason models.Reason
}

// usual are the meanings of statuses that all kinds share. 404 and 405 mean that the URL is wrong, as 3xx does. That is
// a mistake in the configuration, which the class account reports. After 408 the request did not arrive completely.
var usual = []Rule{
	{Status: http.StatusUnauthorized, Class: models.AccountClass},
	{Status: http.StatusPaymentRequired, Class: models.AccountClass},
	{Status: http.StatusForbidden, Class: models.AccountClass},
	{Status: http.StatusNotFound, Class: models.AccountClass},
	{Status: http.StatusMethodNotAllowed, Class: models.AccountClass},
	{Status: http.StatusRequestTimeout, Class: models.Unavailable},
	{Status: http.StatusRequestEntityTooLarge, Class: models.RejectedHereClass, Reason: models.TooLarge},
	{Status: http.StatusTooManyRequests, Class: models.Throttled},
	{Status: http.StatusServiceUnavailable, Class: models.Unavailable},
}

// Meaning returns what an answer means that accepts nothing: by the first of the kind's rules that fits, by the usual
// ones, or by the range of its status.
func (a *Answer) Meaning(own []Rule) (models.Class, models.Reason) {
	for _, rules := range [2][]Rule{own, usual} {
		for i := range rules {
			if rules[i].fits(a) {
				return rules[i].Class, rules[i].Reason
			}
		}
	}
	switch {
	case a.Status >= 300 && a.Status < 400:
		return models.AccountClass, ""
	case a.Status >= 400 && a.Status < 500 && !a.RetryAt.IsZero():
		return models.Throttled, "" // with any 4xx status
	case a.Status >= 400 && a.Status < 500:
		return models.RejectedHereClass, "" // no documented status, so another provider may take the mail
	}
	return models.Unknown, "" // mail was delivered after 500, 502 and 504
}

func (r *Rule) fits(a *Answer) bool {
	return (r.Status == 0 || r.Status == a.Status) && (r.Code == "" || r.Code == a.Code) &&
		(r.Words == nil || r.Words.MatchString(a.Said))
}

// By returns the parts of an answer that accepts nothing, by what it means by rules. Those with the class split are
// about an address that is not named.
func (a *Answer) By(own []Rule) []models.Part {
	class, reason := a.Meaning(own)
	if class == models.Split {
		return a.BadAddress()
	}
	return a.Whole(class, reason)
}

// Refused returns the part of one mail of the call that is refused, by rules. Those with the class split are about its
// address.
func (a *Answer) Refused(mail models.Set, own []Rule) models.Part {
	class, reason := a.Meaning(own)
	switch {
	case class == models.Split && a.Call.Together():
		class, reason = models.RejectedHereClass, models.RejectedHere
	case class == models.Split:
		class, reason = models.RejectedRecipient, models.MailboxInvalid
	}
	return a.Part(class, reason, mail)
}

// BadAddress returns the parts of an answer that refuses an address without naming it. Of several mails all are split;
// one mail to several is not divided to find the address.
func (a *Answer) BadAddress() []models.Part {
	switch {
	case len(a.Call.Recipients) == 1:
		return a.Whole(models.RejectedRecipient, models.MailboxInvalid)
	case a.Call.Together():
		return a.Whole(models.RejectedHereClass, models.RejectedHere)
	}
	return a.Whole(models.Split, models.InvalidRequest)
}
