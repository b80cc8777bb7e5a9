package sendgrid

import (
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

const (
	sent  = `"ip":"203.0.113.25","tls":1,`
	click = `"ip":"198.51.100.7","useragent":"Mozilla/5.0 (simulator)",`
	open  = click + `"sg_machine_open":false,"sg_content_type":"html"`
)

var (
	processed = message.Stage{Event: "processed", Kind: "processed"}
	delivered = message.Stage{
		Event:  "delivered",
		Kind:   "delivered",
		Fields: sent + `"response":"250 2.0.0 OK queued as simulated"`,
	}
)

// dropped returns the only event of mail that SendGrid does not process.
func dropped(reason string) []message.Stage {
	return []message.Stage{{Event: "dropped", Kind: "drop", Fields: `"reason":"` + reason + `","status":"5.0.0"`}}
}

// deferred returns the event of a try that the mail server deferred.
func deferred(attempt string) message.Stage {
	return message.Stage{
		Event:  "deferred",
		Kind:   "deferred-" + attempt,
		Fields: sent + `"response":"451 4.7.1 Greylisted, please try again later","attempt":"` + attempt + `"`,
	}
}

// bounced returns the event of mail that the mail server refused.
func bounced(kind, status, reason, classification string) message.Stage {
	return message.Stage{
		Event: "bounce",
		Kind:  "bounce",
		Fields: sent + `"type":"` + kind + `","status":"` + status + `","reason":"` + reason +
			`","bounce_classification":"` + classification + `"`,
	}
}

// expired is the event of mail that was deferred for too long.
var expired = message.Stage{
	Event:  "bounce",
	Kind:   "bounce",
	Fields: `"type":"expired","reason":"Bounced - Expired","bounce_classification":"Unclassified"`,
}

// asyncBounce is a bounce that the mail server reports after it took the mail.
var asyncBounce = message.Stage{
	Event: "bounce",
	Bare:  true,
	Fields: `"type":"bounce","status":"5.1.1","reason":"550 5.1.1 User unknown (reported after delivery)",` +
		`"bounce_classification":"Invalid Address"`,
}

func after(d time.Duration, s message.Stage) message.Stage { s.After = d; return s }

func quiet(s message.Stage) message.Stage { s.Quiet = true; return s }

func engagement(event, fields string) message.Stage {
	return message.Stage{Event: event, Fields: fields}
}

// stages holds what SendGrid reports of each outcome. The fields follow the Event
// Webhook reference. SendGrid retries deferred mail for 72 hours.
var stages = message.Stages{
	message.Deliver: {processed, delivered},
	message.HardBounce: {processed, bounced("bounce", "5.1.1",
		"550 5.1.1 The email account that you tried to reach does not exist", "Invalid Address")},
	message.Blocked: {processed, bounced("blocked", "5.7.1",
		"550 5.7.1 Refused because of the reputation of the sending address", "Reputation")},
	message.Defer: {processed, deferred("1"), after(15*time.Minute, delivered)},
	message.Expire: {
		processed,
		deferred("1"),
		after(time.Hour, deferred("2")),
		after(12*time.Hour, deferred("3")),
		after(72*time.Hour, expired),
	},
	message.MailboxFull: {processed, bounced("bounce", "5.2.2",
		"552 5.2.2 Mailbox full", "Mailbox Unavailable")},
	message.SuppressedBounce: dropped("Bounced Address"),
	message.SuppressedSpam:   dropped("Spam Reporting Address"),
	message.SuppressedUnsub:  dropped("Unsubscribed Address"),
	message.Invalid:          dropped("Invalid"),
	message.Rejected:         dropped("Spam Content"),
	message.OverQuota:        dropped("Recipient List over Package Quota"),
	message.Complain:         {processed, delivered, after(10*time.Minute, engagement("spamreport", ""))},
	message.Unsubscribe:      {processed, delivered, after(10*time.Minute, engagement("unsubscribe", ""))},
	message.Open:             {processed, delivered, after(time.Minute, engagement("open", open))},
	message.Click: {
		processed,
		delivered,
		after(time.Minute, engagement("open", open)),
		after(2*time.Minute, engagement("click",
			click+`"url":"https://example.com/","url_offset":{"index":0,"type":"html"}`)),
	},
	message.Async:     {processed, delivered, after(10*time.Minute, asyncBounce)},
	message.LostEvent: {processed, quiet(delivered)},
	message.Silent:    {quiet(processed), quiet(delivered)},
	message.Refused:   {processed, delivered},
}
