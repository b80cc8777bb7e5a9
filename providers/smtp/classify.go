package smtp

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/esmtp"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// stage is a step of a session.
type stage int

const (
	connecting stage = iota // until the server takes a transaction
	sender                  // MAIL
	recipient               // RCPT
	content                 // DATA and its end
)

// rules are what replies mean, the first that fits. A reply fits if it came at one of the stages, and has one of the
// codes or matches the words. An enhanced code ends with "." if it stands for all that begin with it.
var rules = []struct {
	at     []stage
	codes  []string
	words  *regexp.Regexp
	class  models.Class
	reason models.Reason
}{
	{nil, []string{"530", "534", "535", "538", "5.7.0", "5.7.8", "5.7.9", "5.7.11"}, nil, models.AccountClass, ""},
	{[]stage{connecting}, []string{"."}, nil, models.Unavailable, ""},
	{nil, nil, regexp.MustCompile(`relay(ing)? (access )?(denied|not permitted|not allowed)`), models.AccountClass, ""},
	{[]stage{sender}, []string{"5.1.7", "5.1.8", "5.7.1", "5.7.27"}, nil, models.AccountClass, models.SenderNotVerified},
	{nil, []string{"421"}, nil, models.Unavailable, ""},
	{nil, []string{"5.7.28", "4.7.28", "4.5.3", "452"}, nil, models.Throttled, models.RateLimited},
	{nil, []string{"4."}, nil, models.Throttled, ""},
	{[]stage{recipient}, []string{"5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10"}, nil, models.RejectedRecipient,
		models.MailboxInvalid},
	{[]stage{recipient, content}, []string{"5.2.1", "5.2.2"}, nil, models.RejectedRecipient, models.MailboxFull},
	{nil, []string{"5.2.3", "5.3.4", "552"}, nil, models.RejectedHereClass, models.TooLarge},
	{nil, []string{"5.6.7"}, nil, models.RejectedHereClass, ""},
	{[]stage{content}, []string{"5.6."}, nil, models.RejectedRequest, models.InvalidRequest},
	{nil, []string{"."}, nil, models.RejectedHereClass, ""},
}

// refused returns the part of a reply that refuses a mail to who.
func (p *Adapter) refused(at stage, e *textproto.Error, who models.Set) models.Part {
	reply := parse.NewReply(strconv.Itoa(e.Code), "", e.Msg)
	text := strings.ReplaceAll("\n"+e.Msg, "\n"+reply.Enhanced+" ", "\n")[1:] // it is in each line (RFC 2034, 4)
	part := models.Part{Recipients: who, Status: e.Code, Reason: reply.Reason(), Text: p.words(text)}
	if at == recipient && reply.Permanent() && part.Reason == models.MailboxInvalid { // by its words
		part.Class = models.RejectedRecipient
		return part
	}
	words := strings.ToLower(text[:min(len(text), 1024)])
	for _, rule := range rules {
		if len(rule.at) > 0 && !slices.Contains(rule.at, at) ||
			!(rule.words != nil && rule.words.MatchString(words) || fits(rule.codes, reply)) {
			continue
		}
		part.Class = rule.class
		if rule.reason != "" || rule.class == models.AccountClass || at == connecting && e.Code == 454 { // no TLS, no login
			part.Reason = rule.reason
		}
		break
	}
	if part.Reason == models.MailboxInvalid && part.Class != models.RejectedRecipient {
		part.Reason = "" // it marks the address, and the reply was not about that
	}
	return part
}

// fits reports whether a reply has one of the codes.
func fits(codes []string, r parse.Reply) bool {
	code := strconv.Itoa(r.Code)
	return slices.ContainsFunc(codes, func(c string) bool {
		switch {
		case c == ".":
			return true
		case !strings.HasSuffix(c, "."):
			return c == code || c == r.Enhanced
		case r.Enhanced != "":
			return strings.HasPrefix(r.Enhanced, c)
		}
		return len(c) == 2 && code[0] == c[0]
	})
}

// failed returns the part of a call to who that failed before its final dot. Nothing was kept.
func (p *Adapter) failed(at stage, err error, who models.Set) models.Part {
	var reply *textproto.Error
	var certificate *tls.CertificateVerificationError
	var noToken *oauth.RefusedError
	switch {
	case errors.As(err, &reply):
		return p.refused(at, reply, who)
	case errors.As(err, &certificate):
		return models.Part{Class: models.AccountClass, Recipients: who,
			Text: "the certificate of the server is not valid: " + parse.Text(certificate.Err.Error())}
	case errors.Is(err, esmtp.ErrNoLogin), errors.As(err, &noToken):
		return models.Part{Class: models.AccountClass, Recipients: who, Status: http.StatusUnauthorized, Text: err.Error()}
	}
	return models.Part{Class: models.Unavailable, Recipients: who,
		Text: "the mail could not be handed over: " + p.words(err.Error())}
}
