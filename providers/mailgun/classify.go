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
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// rules are the meanings of refusals. 404 and redirects mean a wrong domain, region or URL. The text of a 429 says "not
// allowed to send", too.
//
// 420 is not in Mailgun's table of statuses. Its text is "Domain X is not allowed to send: recipient limit exceeded,
// try again after <date>" (mailgun-java issue 50 of 2025, Ghost issues 15725 and 24494): the account has used up what
// it may send until then.
var rules = []kind.Rule{
	{Status: 400, Words: regexp.MustCompile(`(?i)is not allowed to send`), Class: models.AccountClass},
	{Status: 400, Words: badAddress, Class: models.Split},
	{Status: 400, Words: regexp.MustCompile(`(?i)send options|limited to|header name|too large|exceeds`),
		Class: models.RejectedHereClass},
	{Status: 400, Code: "api", Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Status: 400, Class: models.RejectedHereClass}, // only refused here, perhaps by a proxy
	{Status: 420, Class: models.AccountClass},
}

// badAddress matches the refusal of an address, which names only the parameter that it is in.
var badAddress = regexp.MustCompile(`(?i)(?:^|[^a-z-])(to|cc|bcc)['"]? parameter is not a valid address`)

// tooMany matches the refusal of a call because of the number of its recipients, including cc and bcc. The texts are
// "Domain X is not allowed to send large batches yet" (Mailgun's table of errors), "Too many recipients, max is 1000"
// (the same) and "Only 10 recipients per request is allowed on probation" (mailgun-php issue 787). If it names a
// number, that is how many a call may have.
var tooMany = regexp.MustCompile(`(?i)large batches|` +
	`too many recipients(?:[,;]? max is (\d{1,4}))?|only (\d{1,4}) recipients per request`)

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in struct {
		Message parse.Str `json:"message"`
	}
	parse.Into(x.Body, &in)
	a := p.Answer(c, x, string(in.Message), now)
	if in.Message != "" {
		a.Code = "api" // the answer has the form of Mailgun's API
	}
	if at := tryAgain(a.Said, now); !at.IsZero() {
		a.RetryAt = at
	}
	if a.OK() {
		return accepted(a)
	}
	m := tooMany.FindStringSubmatch(a.Said)
	if m != nil && (a.Status == http.StatusBadRequest || a.Status == http.StatusForbidden) {
		parts := a.Whole(models.RejectedHereClass, "")
		parts[0].Fewer = len(c.Recipients) - 1
		if n, err := strconv.Atoi(cmp.Or(m[1], m[2])); err == nil && n > 0 {
			parts[0].Fewer = min(n, parts[0].Fewer)
		}
		return parts
	}
	class, reason := a.Meaning(rules)
	if class == models.Split {
		return badRecipient(a)
	}
	return a.Whole(class, reason)
}

// accepted reads a 2xx. The Messages API answers with a JSON object, so the body decides:
//
//	a JSON object                              accepted, with its id
//	the beginning of one, then it broke off    accepted, its id is lost
//	"Mailgun Magnificent API"                  account: the URL is wrong, nothing was accepted
//	anything else                              unknown: perhaps of a proxy, which proves nothing
func accepted(a *kind.Answer) []models.Part {
	body := bytes.TrimSpace(a.Body)
	var answer struct {
		ID parse.Str `json:"id"`
	}
	object := len(body) > 0 && body[0] == '{'
	kind, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	switch {
	case bytes.HasPrefix(body, []byte("Mailgun Magnificent API")):
		return a.Whole(models.AccountClass, "")
	case object && json.Unmarshal(body, &answer) == nil:
		parts := a.Whole(models.Accepted, "")
		// Events name the id without its angle brackets.
		if id := strings.Trim(strings.TrimSpace(string(answer.ID)), "<>"); len(id) <= 250 {
			parts[0].MessageID = strings.ToValidUTF8(id, "")
		}
		return parts
	case a.Cut && (object || len(body) == 0 && kind == "application/json"):
		return a.Whole(models.Accepted, "")
	}
	return a.Whole(models.Unknown, "")
}

// badRecipient reads the refusal of an address. Of one mail to several, the only one of the parameter is refused alone.
func badRecipient(a *kind.Answer) []models.Part {
	role := models.Role(strings.ToLower(badAddress.FindStringSubmatch(a.Said)[1]))
	var bad models.Set
	for i := range a.Call.Recipients {
		if a.Call.Recipients[i].Role == role {
			bad.Add(a.Call.Recipients[i].Log.Recipient())
		}
	}
	if bad.Len() != 1 {
		return a.BadAddress()
	}
	return message.Without(a.Call.Numbers(), a.Part(models.RejectedRecipient, models.MailboxInvalid, bad))
}

// tryAgain reads "… try again after Mon, 02 Jan 2006 15:04:05 UTC". A date far ahead, as that of a monthly limit,
// becomes the longest time that is believed.
func tryAgain(text string, now time.Time) time.Time {
	_, date, ok := strings.Cut(text, "try again after ")
	t, err := time.Parse(time.RFC1123, strings.TrimSpace(date[:min(len(date), len(time.RFC1123))]))
	if !ok || err != nil {
		return time.Time{}
	}
	return parse.Believable(models.EarlierOf(t, now.Add(parse.Longest)), now)
}
