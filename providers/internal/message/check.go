package message

import (
	"fmt"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// Check returns the parts of a call that cannot be made, or nil if it can be made.
// Mistakes of the caller (an address or a log twice, too many recipients) refuse the
// whole call as rejected_here, so that they are noticed and lose no mail.
func Check(c *models.Call, limit int) []models.Part {
	all := c.Numbers()
	here := func(format string, args ...any) []models.Part { return Refuse(all, "", fmt.Sprintf(format, args...)) }
	request := func(text string) []models.Part {
		parts := Refuse(all, models.InvalidRequest, text)
		parts[0].Class = models.RejectedRequest
		return parts
	}
	from := c.Content.From.Email
	badReply := func(a models.Address) bool { return !Mailbox(a.Email) }
	beyond := func(a models.Address) bool { return !models.ASCII(a.Email) }
	switch {
	case len(c.Recipients) > limit:
		return here("%d recipients in one call, at most %d are possible", len(c.Recipients), limit)
	case all.Len() != len(c.Recipients):
		return here("a log is named twice in the call, or an id is not that of a log")
	case len(c.Files) != len(c.Content.Attachments):
		return here("%d of %d attachments are in the call", len(c.Files), len(c.Content.Attachments))
	case !sameMail(c):
		return here("a call has one mail with exactly one recipient in To, or a mail for each")
	case c.Attempt < 1:
		return here("the call has no attempt number")
	case !Mailbox(from):
		return request("the sender's address is not valid")
	case slices.ContainsFunc(c.Content.ReplyTo, badReply):
		return request("the reply-to address is not valid")
	case c.Content.Text == "" && c.Content.HTML == "":
		return request("the message has neither text nor HTML")
	case beyond(c.Content.From), slices.ContainsFunc(c.Content.ReplyTo, beyond):
		return here("the provider takes no addresses of senders beyond ASCII")
	}
	seen := make(map[string]struct{}, len(c.Recipients))
	var bad, beyondASCII models.Set
	for i := range c.Recipients {
		r := &c.Recipients[i]
		if !Mailbox(r.Email) {
			bad.Add(r.Log.Recipient())
			continue
		}
		if !models.ASCII(r.Email) {
			beyondASCII.Add(r.Log.Recipient())
		}
		seen[strings.ToLower(r.Email)] = struct{}{}
	}
	if len(seen)+bad.Len() != len(c.Recipients) {
		return here("an address is named twice in the call")
	}
	if !bad.Empty() {
		return Without(all, models.Part{
			Class:      models.RejectedRecipient,
			Recipients: bad,
			Reason:     models.MailboxInvalid,
			Text:       "the address is not valid; the provider was not asked",
		})
	}
	if !beyondASCII.Empty() {
		return Together(c, Without(all, models.Part{
			Class:      models.RejectedHereClass,
			Recipients: beyondASCII,
			Text:       "the provider takes no addresses beyond ASCII",
		}))
	}
	return nil
}

// Mails returns the recipients of a call that have a mail of their own: all, or the first in To.
func Mails(c *models.Call) []models.CallRecipient {
	if c.Together() {
		return c.Recipients[:1]
	}
	return c.Recipients
}

// In returns the recipients of the mail to one of a call with a role.
func In(role models.Role, c *models.Call, to *models.CallRecipient) (out []models.CallRecipient) {
	switch {
	case c.Together():
	case role == models.To:
		return []models.CallRecipient{*to}
	default:
		return nil
	}
	for i := range c.Recipients {
		if r := &c.Recipients[i]; r.Role == role {
			out = append(out, *r)
		}
	}
	return out
}

// List returns recipients as the value of a field, with the names that name returns.
func List(rs []models.CallRecipient, name func(string) string) string {
	list := make([]string, len(rs))
	for i := range rs {
		list[i] = Named(name(rs[i].Name), rs[i].Email)
	}
	return strings.Join(list, ", ")
}

// sameMail reports whether the first recipient of a call is in To and all have a role, or none has.
func sameMail(c *models.Call) bool {
	for i := range c.Recipients {
		role := c.Recipients[i].Role
		if c.Together() != (role != "") || i == 0 && c.Together() && role != models.To {
			return false
		}
	}
	return true
}

// Together returns parts of an answer to a call. If the call has one mail to all, what is wrong with
// its content is wrong for all.
func Together(c *models.Call, parts []models.Part) []models.Part {
	if len(parts) > 1 && c.Together() {
		parts = parts[:1]
		parts[0].Recipients = c.Numbers()
	}
	return parts
}

// Refuse returns the parts of a call that this provider cannot take.
func Refuse(all models.Set, reason models.Reason, text string) []models.Part {
	return []models.Part{{
		Class:      models.RejectedHereClass,
		Recipients: all,
		Reason:     reason,
		Text:       text,
	}}
}

// RefuseMany is Refuse for a call that is too large together, although its content is not. Smaller calls are not.
func RefuseMany(c *models.Call, text string) []models.Part {
	parts := Refuse(c.Numbers(), models.TooLarge, text)
	if !c.Together() {
		parts[0].Fewer = len(c.Recipients) - 1
	}
	return parts
}

// Without returns the parts of a call that would be possible without the recipients of
// bad. The other recipients are split off and tried again.
func Without(all models.Set, bad ...models.Part) []models.Part {
	rest := all
	for i := range bad {
		rest = rest.Minus(bad[i].Recipients)
	}
	if rest.Empty() {
		return bad
	}
	first := &bad[0]
	return append(bad, models.Part{
		Class:      models.Split,
		Recipients: rest,
		Reason:     first.Reason,
		Status:     first.Status,
		Text:       "refused because of another recipient of the call",
	})
}
