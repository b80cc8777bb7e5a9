package mailgun

import (
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// retries are the times after which Mailgun tries deferred mail again. It gives up
// after the last one (8 hours).
var retries = []time.Duration{
	10 * time.Minute,
	15 * time.Minute,
	30 * time.Minute,
	time.Hour,
	2 * time.Hour,
	4 * time.Hour,
}

const (
	client = `,"ip":"198.51.100.7","geolocation":{"city":"Unknown","country":"Unknown","region":"Unknown"},` +
		`"client-info":{"client-name":"simulator","client-os":"Linux","client-type":"browser",` +
		`"device-type":"desktop","user-agent":"Mozilla/5.0 (simulator)","bot":""}`
	mailServer = `,"mx-host":"mx.sim.test","tls":true,"certificate-verified":true,"utf8":true`
)

var (
	accepted = message.Stage{
		Event:  "accepted",
		Kind:   "accepted",
		Fields: `"log-level":"info","method":"HTTP","delivery-status":null`,
	}
	delivered = message.Stage{
		Event: "delivered",
		Kind:  "delivered",
		Fields: `"log-level":"info","delivery-status":{"code":250,"message":"OK","description":"","attempt-no":1,` +
			`"session-seconds":0.42` + mailServer + `,"enhanced-code":"2.0.0"}`,
	}
)

// A failure is the delivery status of a permanent failure. Suppressed mail has no
// enhanced code, because it was never handed to a mail server.
type failure struct {
	reason               string
	code                 int
	enhanced             string
	description, message string
}

// stage returns the event of the failure.
func (f failure) stage() message.Stage {
	status := `"code":` + strconv.Itoa(f.code) + `,"message":"` + f.message + `","description":"` + f.description +
		`","attempt-no":1,"session-seconds":0.21`
	if f.enhanced != "" {
		status += mailServer + `,"enhanced-code":"` + f.enhanced + `","bounce-code":"` + f.enhanced + `"`
	}
	return message.Stage{
		Event: "failed",
		Kind:  "permanent_fail",
		Fields: `"log-level":"error","severity":"permanent","reason":"` + f.reason + `","delivery-status":{` +
			status + `}`,
	}
}

// bounced returns the event of mail that the mail server refused.
func bounced(reason string, code int, enhanced, text string) message.Stage {
	return failure{
		reason:   reason,
		code:     code,
		enhanced: enhanced,
		message:  enhanced + " " + text,
	}.stage()
}

// suppressed returns the event of mail that Mailgun did not try to deliver.
func suppressed(reason string, code int, description string) message.Stage {
	return failure{reason: reason, code: code, description: description}.stage()
}

// rejected returns the event of mail that Mailgun did not accept after all. The
// Events API alone shows it; there is no webhook.
func rejected(reason string) message.Stage {
	return message.Stage{
		Event:  "rejected",
		Fields: `"log-level":"warn","reject":{"reason":"` + reason + `","description":""}`,
	}
}

// deferred returns the event of a try that the mail server deferred.
func deferred(attempt int, retry time.Duration) message.Stage {
	return message.Stage{
		Event: "failed",
		Kind:  "temporary_fail",
		Fields: `"log-level":"warn","severity":"temporary","reason":"generic","delivery-status":{"code":451,` +
			`"message":"4.7.1 Greylisted, please try again later","description":"","attempt-no":` +
			strconv.Itoa(attempt) + `,"retry-seconds":` + strconv.Itoa(int(retry.Seconds())) +
			`,"session-seconds":0.3` + mailServer + `,"enhanced-code":"4.7.1"}`,
	}
}

// expire returns the events of mail that is deferred until Mailgun gives up.
func expire() []message.Stage {
	list, at := []message.Stage{accepted}, time.Duration(0)
	for i, gap := range retries {
		list = append(list, after(at, deferred(i+1, gap)))
		at += gap
	}
	return append(list, after(at, suppressed("old", 499, "Too old")))
}

func engagement(event, fields string) message.Stage {
	return message.Stage{Event: event, Kind: event, Fields: `"log-level":"info"` + fields}
}

func after(d time.Duration, s message.Stage) message.Stage { s.After = d; return s }

func quiet(s message.Stage) message.Stage { s.Quiet = true; return s }

func late(s message.Stage) message.Stage { s.Late = true; return s }

// stages holds what Mailgun reports of each outcome.
var stages = message.Stages{
	message.Deliver: {accepted, delivered},
	message.HardBounce: {accepted, bounced("bounce", 550, "5.1.1",
		"The email account that you tried to reach does not exist")},
	message.Blocked: {accepted, bounced("generic", 550, "5.7.1",
		"Refused because of the reputation of the sending address")},
	message.Defer:       {accepted, deferred(1, retries[0]), after(retries[0], delivered)},
	message.Expire:      expire(),
	message.MailboxFull: {accepted, bounced("bounce", 552, "5.2.2", "Mailbox full")},
	message.SuppressedBounce: {accepted, suppressed("suppress-bounce", 605,
		"Not delivering to previously bounced address")},
	message.SuppressedSpam: {accepted, suppressed("suppress-complaint", 607,
		"Not delivering to a user who marked your messages as spam")},
	message.SuppressedUnsub: {accepted, suppressed("suppress-unsubscribe", 606,
		"Not delivering to unsubscribed address")},
	message.Invalid:     {accepted, bounced("bounce", 501, "5.1.3", "Bad destination mailbox address syntax")},
	message.Rejected:    {accepted, rejected("Sandbox subdomains are for test purposes only")},
	message.OverQuota:   {accepted, rejected("Account quota exceeded")},
	message.Complain:    {accepted, delivered, after(10*time.Minute, engagement("complained", ""))},
	message.Unsubscribe: {accepted, delivered, after(10*time.Minute, engagement("unsubscribed", client))},
	message.Open:        {accepted, delivered, after(time.Minute, engagement("opened", client))},
	message.Click: {
		accepted,
		delivered,
		after(time.Minute, engagement("opened", client)),
		after(2*time.Minute, engagement("clicked", client+`,"url":"https://example.com/"`)),
	},
	message.Async: {accepted, delivered, after(10*time.Minute,
		late(bounced("generic", 550, "5.1.1", "User unknown (reported after delivery)")))},
	message.LostEvent: {accepted, quiet(delivered)},
	message.Silent:    {quiet(accepted), quiet(delivered)},
	message.Refused:   {accepted, delivered},
}
