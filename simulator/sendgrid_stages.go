package simulator

import "time"

const sgSent = `"ip":"203.0.113.25","tls":1,`

var (
	sgProcessed = stage{event: "processed", kind: "processed"}
	sgDelivered = stage{event: "delivered", kind: "delivered", fields: sgSent + `"response":"250 2.0.0 OK queued as simulated"`}
)

// sgDropped is what SendGrid reports instead of processed when it does not even
// try.
func sgDropped(reason string) []stage {
	return []stage{{event: "dropped", kind: "drop", fields: `"reason":"` + reason + `","status":"5.0.0"`}}
}

func sgDeferred(after time.Duration, attempt string) stage {
	return stage{after: after, event: "deferred", kind: "deferred-" + attempt,
		fields: sgSent + `"response":"451 4.7.1 Greylisted, please try again later","attempt":"` + attempt + `"`}
}

// sendgridStages tells what SendGrid reports of each outcome (field shapes:
// Event Webhook reference; times: it retries a deferred mail for 72 hours).
var sendgridStages = [outcomeCount][]stage{
	outDeliver: {sgProcessed, sgDelivered},
	outHardBounce: {sgProcessed, {event: "bounce", kind: "bounce", fields: sgSent +
		`"type":"bounce","status":"5.1.1","reason":"550 5.1.1 The email account that you tried to reach does not exist","bounce_classification":"Invalid Address"`}},
	outBlocked: {sgProcessed, {event: "bounce", kind: "bounce", fields: sgSent +
		`"type":"blocked","status":"5.7.1","reason":"550 5.7.1 Refused because of the reputation of the sending address","bounce_classification":"Reputation"`}},
	outDefer: {sgProcessed, sgDeferred(0, "1"), {after: 15 * time.Minute, event: "delivered", kind: "delivered", fields: sgDelivered.fields}},
	outExpire: {sgProcessed, sgDeferred(0, "1"), sgDeferred(time.Hour, "2"), sgDeferred(12*time.Hour, "3"),
		{after: 72 * time.Hour, event: "bounce", kind: "bounce",
			fields: `"type":"expired","reason":"Bounced - Expired","bounce_classification":"Unclassified"`}},
	outMailboxFull: {sgProcessed, {event: "bounce", kind: "bounce", fields: sgSent +
		`"type":"bounce","status":"5.2.2","reason":"552 5.2.2 Mailbox full","bounce_classification":"Mailbox Unavailable"`}},
	outSuppressedBounce: sgDropped("Bounced Address"),
	outSuppressedSpam:   sgDropped("Spam Reporting Address"),
	outSuppressedUnsub:  sgDropped("Unsubscribed Address"),
	outInvalid:          sgDropped("Invalid"),
	outRejected:         sgDropped("Spam Content"),
	outOverQuota:        sgDropped("Recipient List over Package Quota"),
	outComplain:         {sgProcessed, sgDelivered, {after: 10 * time.Minute, event: "spamreport"}},
	outUnsubscribe:      {sgProcessed, sgDelivered, {after: 10 * time.Minute, event: "unsubscribe"}},
	outOpen: {sgProcessed, sgDelivered, {after: time.Minute, event: "open",
		fields: `"ip":"198.51.100.7","useragent":"Mozilla/5.0 (simulator)","sg_machine_open":false,"sg_content_type":"html"`}},
	outClick: {sgProcessed, sgDelivered,
		{after: time.Minute, event: "open", fields: `"ip":"198.51.100.7","useragent":"Mozilla/5.0 (simulator)","sg_machine_open":false,"sg_content_type":"html"`},
		{after: 2 * time.Minute, event: "click", fields: `"ip":"198.51.100.7","useragent":"Mozilla/5.0 (simulator)","url":"https://example.com/","url_offset":{"index":0,"type":"html"}`}},
	outAsync: {sgProcessed, sgDelivered, {after: 10 * time.Minute, event: "bounce", bare: true,
		fields: `"type":"bounce","status":"5.1.1","reason":"550 5.1.1 User unknown (reported after delivery)","bounce_classification":"Invalid Address"`}},
	outLostEvent: {sgProcessed, {event: "delivered", kind: "delivered", fields: sgDelivered.fields, quiet: true}},
	outSilent:    {{event: "processed", kind: "processed", quiet: true}, {event: "delivered", kind: "delivered", fields: sgDelivered.fields, quiet: true}},
	outRefused:   {sgProcessed, sgDelivered},
}
