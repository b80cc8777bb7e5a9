package mailgun

import (
	"bytes"
	"cmp"
	"encoding/json"
	"mime"
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

// classes maps statuses whose body does not matter. For the others see classify. 404 and
// redirects mean a wrong domain, region or URL. Mail was delivered after 5xx answers, except
// 503.
//
// 420 is not in Mailgun's table of statuses. Its text is "Domain X is not allowed to send:
// recipient limit exceeded, try again after <date>" (mailgun-java issue 50 of 2025, Ghost
// issues 15725 and 24494): the account has used up what it may send until then.
var classes = map[int]models.Class{
	http.StatusUnauthorized:          models.AccountClass,
	http.StatusPaymentRequired:       models.AccountClass,
	http.StatusNotFound:              models.AccountClass,
	http.StatusMethodNotAllowed:      models.AccountClass,
	http.StatusRequestTimeout:        models.Unavailable, // the request did not arrive completely
	http.StatusRequestEntityTooLarge: models.RejectedHereClass,
	http.StatusTooManyRequests:       models.Throttled, // before the text is read, which says "not allowed to send", too
	http.StatusServiceUnavailable:    models.Unavailable,
	limitExceeded:                    models.AccountClass,
}

// limitExceeded is a status that net/http has no name for.
const limitExceeded = 420

// badAddress matches the refusal of an address, which names only the parameter that it is in.
var badAddress = regexp.MustCompile(`(?i)(?:^|[^a-z-])(to|cc|bcc)['"]? parameter is not a valid address`)

// refusals maps the texts of 400 and 403. The first entry that matches counts. A 400
// without an entry refuses the message itself.
var refusals = []struct {
	status int
	text   *regexp.Regexp
	class  models.Class
}{
	{403, tooMany, models.RejectedHereClass},
	{403, regexp.MustCompile(``), models.AccountClass},
	{400, tooMany, models.RejectedHereClass},
	{400, regexp.MustCompile(`(?i)is not allowed to send`), models.AccountClass},
	{400, badAddress, models.Split},
	{400, regexp.MustCompile(`(?i)send options|limited to|header name|too large|exceeds`), models.RejectedHereClass},
}

// tooMany matches the refusal of a call because of the number of its recipients, of which cc and bcc count, too:
// "Domain X is not allowed to send large batches yet" (Mailgun's table of errors), "Too many recipients, max is 1000"
// (the same) and "Only 10 recipients per request is allowed on probation" (mailgun-php issue 787). If it names a
// number, that is how many a call may have.
var tooMany = regexp.MustCompile(`(?i)large batches|` +
	`too many recipients(?:[,;]? max is (\d{1,4}))?|only (\d{1,4}) recipients per request`)

// fewer returns how many recipients a call may have that was refused with a text because it had too many.
func fewer(c *models.Call, text string) int {
	most := len(c.Recipients) - 1
	m := tooMany.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	if n, err := strconv.Atoi(cmp.Or(m[1], m[2])); err == nil && n > 0 {
		return min(n, most)
	}
	return most
}

// magnificent is the answer of Mailgun's root, with status 200, to a URL outside of its API
// (a slash in the domain, a wrong base URL).
const magnificent = "Mailgun Magnificent API"

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, a transport.Answer, now time.Time) []models.Part {
	said, structured := answerText(a)
	text := cmp.Or(p.words(said), http.StatusText(a.Status), "an answer without words")
	at := tryAgain(said, now)
	if at.IsZero() {
		at = parse.RetryAt(a.Header, now)
	}
	parts := meaning(c, a, said, text, structured, !at.IsZero())
	switch parts[0].Class { // no time changes what the others mean
	case models.Throttled, models.Unavailable, models.AccountClass:
		for i := range parts {
			parts[i].RetryAt = at
		}
	}
	return parts
}

// meaning returns the parts of an answer without the time at which Mailgun may be asked again. timed says that the
// answer has one.
func meaning(c *models.Call, a transport.Answer, said, text string, structured, timed bool) []models.Part {
	if class, ok := classes[a.Status]; ok {
		parts := whole(c, class, "", a.Status, text)
		if a.Status == http.StatusRequestEntityTooLarge {
			parts[0].Reason = models.TooLarge
		}
		return parts
	}
	switch {
	case a.Status >= 200 && a.Status < 300:
		return accepted(c, a, text)
	case a.Status >= 300 && a.Status < 400:
		return whole(c, models.AccountClass, "", a.Status, text)
	case a.Status == 400 || a.Status == 403:
		return refused(c, a.Status, said, text, structured)
	case a.Status > 400 && a.Status < 500 && timed:
		return whole(c, models.Throttled, "", a.Status, text) // whatever the status is called
	case a.Status > 400 && a.Status < 500:
		// Mailgun does not document this status, so another provider may take the mail.
		return whole(c, models.RejectedHereClass, "", a.Status, text)
	}
	return whole(c, models.Unknown, "", a.Status, text)
}

// accepted reads a 2xx. The Messages API answers with a JSON object, so the body decides:
//
//	a JSON object                              accepted, with its id
//	the beginning of one, then it broke off    accepted, its id is lost
//	"Mailgun Magnificent API"                  account: the URL is wrong, nothing was accepted
//	anything else                              unknown: it is not from the Messages API, but
//	                                           perhaps from a proxy in front of it
//
// The last one is not accepted, because nothing says that the mail was accepted. It is not
// account, because nothing says that it was not, and it could arrive twice.
func accepted(c *models.Call, a transport.Answer, text string) []models.Part {
	body := bytes.TrimSpace(a.Body)
	var answer struct {
		ID parse.Str `json:"id"`
	}
	kind, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	switch {
	case bytes.HasPrefix(body, []byte(magnificent)):
		return whole(c, models.AccountClass, "", a.Status, text)
	case len(body) > 0 && body[0] == '{' && json.Unmarshal(body, &answer) == nil:
		parts := whole(c, models.Accepted, "", a.Status, "")
		// Events name the id without its angle brackets.
		if id := strings.Trim(strings.TrimSpace(string(answer.ID)), "<>"); len(id) <= 250 {
			parts[0].MessageID = strings.ToValidUTF8(id, "")
		}
		return parts
	case a.Cut && (len(body) > 0 && body[0] == '{' || len(body) == 0 && kind == "application/json"):
		return whole(c, models.Accepted, "", a.Status, "")
	}
	return whole(c, models.Unknown, "", a.Status, text)
}

// refused reads a 400 or a 403.
func refused(c *models.Call, status int, said, text string, structured bool) []models.Part {
	for _, r := range refusals {
		if r.status != status || !r.text.MatchString(said) {
			continue
		}
		switch {
		case r.text == tooMany:
			parts := whole(c, r.class, "", status, text)
			parts[0].Fewer = fewer(c, said)
			return parts
		case r.class != models.Split:
			return whole(c, r.class, "", status, text)
		case len(c.Recipients) == 1:
			return whole(c, models.RejectedRecipient, models.MailboxInvalid, status, text)
		case c.Together():
			return badMail(c, status, said, text)
		}
		return whole(c, models.Split, models.InvalidRequest, status, text)
	}
	if !structured {
		// This is not an answer of Mailgun's API. It says nothing about the message,
		// only that it was refused here.
		return whole(c, models.RejectedHereClass, "", status, text)
	}
	return whole(c, models.RejectedRequest, models.InvalidRequest, status, text)
}

// badMail reads the refusal of an address of one mail to several. If the parameter has one address,
// that is refused, and the others are tried again. A mail is not divided to find an address.
func badMail(c *models.Call, status int, said, text string) []models.Part {
	role := models.Role(strings.ToLower(badAddress.FindStringSubmatch(said)[1]))
	var bad models.Set
	for i := range c.Recipients {
		if c.Recipients[i].Role == role {
			bad.Add(c.Recipients[i].Log.Recipient())
		}
	}
	if bad.Len() != 1 {
		return whole(c, models.RejectedHereClass, models.RejectedHere, status, text)
	}
	return message.Without(c.Numbers(), models.Part{
		Class:      models.RejectedRecipient,
		Recipients: bad,
		Reason:     models.MailboxInvalid,
		Status:     status,
		Text:       text,
	})
}

// answerText returns the text of an answer and whether it has the form of the API.
func answerText(a transport.Answer) (text string, structured bool) {
	var m struct {
		Message parse.Str `json:"message"`
	}
	parse.Into(a.Body, &m)
	if m.Message != "" {
		return string(m.Message), true
	}
	if text = strings.TrimSpace(string(a.Body)); text == "" {
		text = http.StatusText(a.Status)
	}
	return text, false
}

// tryAgain reads "… try again after Mon, 02 Jan 2006 15:04:05 UTC". Of a date far ahead, as that of a monthly limit, it
// returns the longest time that is believed.
func tryAgain(text string, now time.Time) time.Time {
	_, date, ok := strings.Cut(text, "try again after ")
	if len(date) > len(time.RFC1123) {
		date = date[:len(time.RFC1123)]
	}
	t, err := time.Parse(time.RFC1123, strings.TrimSpace(date))
	if !ok || err != nil {
		return time.Time{}
	}
	return parse.Believable(models.EarlierOf(t, now.Add(parse.Longest)), now)
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

// words returns a text for storing: without addresses and without the API key.
func (p *Adapter) words(text string) string {
	k := p.keys.Load()
	return parse.Text(text, k.api, k.before)
}
