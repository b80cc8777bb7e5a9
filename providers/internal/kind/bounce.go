package kind

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// A Bounce is why a mail was not delivered, in the words of Amazon SES, which providers that send through it use, too.
type Bounce struct {
	Type, SubType parse.Str
	Status        parse.Str // enhanced status code
	Server        parse.Str // what the server said, perhaps after "smtp;"
	Text          parse.Str // what the provider says otherwise
}

// bounceReasons maps the sub types of bounces. For General and Undetermined the server's reply decides.
var bounceReasons = map[parse.Str]models.Reason{
	"NoEmail":                  models.MailboxInvalid,
	"MailboxFull":              models.MailboxFull,
	"MessageTooLarge":          models.TooLarge,
	"ContentRejected":          models.PolicyContent,
	"AttachmentRejected":       models.PolicyContent,
	"Suppressed":               models.SuppressedBounce,
	"OnAccountSuppressionList": models.SuppressedBounce,
	"UnsubscribedRecipient":    models.SuppressedUnsubscribe,
	"CustomTimeoutExceeded":    models.DeliveryTimeout,
}

// Explain fills in a bounce of an event, whose Kind is Bounced before. A known reason is that of the event. Only a
// permanent bounce may say that the mailbox is invalid. Without any other reason it is otherwise.
func (b *Bounce) Explain(ev *models.Event, known, otherwise models.Reason) {
	text := strings.TrimSpace(strings.TrimPrefix(string(b.Server), "smtp;"))
	reply := parse.NewReply("", string(b.Status), text)
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(cmp.Or(text, string(b.Text)))
	ev.BounceClass = parse.Text(strings.TrimSpace(string(b.Type + " " + b.SubType)))
	permanent, reason := b.Type == "Permanent", cmp.Or(known, bounceReasons[b.SubType], reply.Reason())
	switch {
	case reason == "" && permanent:
		reason = models.MailboxInvalid
	case reason == models.MailboxInvalid && !permanent:
		reason = ""
	}
	ev.Reason = cmp.Or(reason, otherwise)
	switch ev.Reason {
	case models.SuppressedBounce, models.SuppressedComplaint, models.SuppressedUnsubscribe:
		ev.Kind = models.Dropped
	case models.PolicyContent, models.PolicyReputation:
		ev.Kind = models.Blocked
	}
}

// drops are the reasons of dropped mail by the words of a provider without codes.
var drops = []struct {
	words  *regexp.Regexp
	reason models.Reason
}{
	{regexp.MustCompile(`(?i)spam|complain`), models.SuppressedComplaint},
	{regexp.MustCompile(`(?i)unsubscri`), models.SuppressedUnsubscribe},
	{regexp.MustCompile(`(?i)bounce|suppress`), models.SuppressedBounce},
}

// Dropped returns why a provider dropped a mail, by its words.
func Dropped(words string) models.Reason {
	for i := range drops {
		if drops[i].words.MatchString(words) {
			return drops[i].reason
		}
	}
	return models.ProviderDropped
}
