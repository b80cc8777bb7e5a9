package simulator

import (
	"strconv"
	"time"
)

// mailgunRetries are the gaps after which Mailgun tries a mail again that was
// deferred; after the last it gives up (8 hours).
var mailgunRetries = []time.Duration{10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour}

const mgClient = `,"ip":"198.51.100.7","geolocation":{"city":"Unknown","country":"Unknown","region":"Unknown"},"client-info":{"client-name":"simulator","client-os":"Linux","client-type":"browser","device-type":"desktop","user-agent":"Mozilla/5.0 (simulator)","bot":""}`

var (
	mgAccepted  = stage{event: "accepted", kind: "accepted", fields: `"log-level":"info","method":"HTTP","delivery-status":null`}
	mgDelivered = stage{event: "delivered", kind: "delivered",
		fields: `"log-level":"info","delivery-status":{"code":250,"message":"OK","description":"","attempt-no":1,"session-seconds":0.42,"mx-host":"mx.sim.test","tls":true,"certificate-verified":true,"utf8":true,"enhanced-code":"2.0.0"}`}
)

// mgFailed builds a permanent failure. Suppressed mail has no enhanced code, it
// was never handed to a mail server.
func mgFailed(reason string, code int, enhanced, description, message string) stage {
	status := `"code":` + strconv.Itoa(code) + `,"message":"` + message + `","description":"` + description + `","attempt-no":1,"session-seconds":0.21`
	if enhanced != "" {
		status += `,"mx-host":"mx.sim.test","tls":true,"certificate-verified":true,"utf8":true,"enhanced-code":"` + enhanced + `","bounce-code":"` + enhanced + `"`
	}
	return stage{event: "failed", kind: "permanent_fail",
		fields: `"log-level":"error","severity":"permanent","reason":"` + reason + `","delivery-status":{` + status + `}`}
}

func mgDeferred(after time.Duration, attempt int, retry time.Duration) stage {
	return stage{after: after, event: "failed", kind: "temporary_fail",
		fields: `"log-level":"warn","severity":"temporary","reason":"generic","delivery-status":{"code":451,"message":"4.7.1 Greylisted, please try again later","description":"","attempt-no":` +
			strconv.Itoa(attempt) + `,"retry-seconds":` + strconv.Itoa(int(retry.Seconds())) + `,"session-seconds":0.3,"mx-host":"mx.sim.test","tls":true,"certificate-verified":true,"utf8":true,"enhanced-code":"4.7.1"}`}
}

// mgExpire is tried through the whole schedule and ends as too old.
func mgExpire() []stage {
	list, at := []stage{mgAccepted}, time.Duration(0)
	for i, gap := range mailgunRetries {
		list = append(list, mgDeferred(at, i+1, gap))
		at += gap
	}
	old := mgFailed("old", 499, "", "Too old", "")
	old.after = at
	return append(list, old)
}

func after(d time.Duration, s stage) stage { s.after = d; return s }

func quiet(list ...stage) []stage {
	for i := range list {
		list[i].quiet = true
	}
	return list
}

func mgEngagement(d time.Duration, event, fields string) stage {
	return stage{after: d, event: event, kind: event, fields: `"log-level":"info"` + fields}
}

// mailgunStages tells what Mailgun reports of each outcome.
var mailgunStages = [outcomeCount][]stage{
	outDeliver:          {mgAccepted, mgDelivered},
	outHardBounce:       {mgAccepted, mgFailed("bounce", 550, "5.1.1", "", "5.1.1 The email account that you tried to reach does not exist")},
	outBlocked:          {mgAccepted, mgFailed("generic", 550, "5.7.1", "", "5.7.1 Refused because of the reputation of the sending address")},
	outDefer:            {mgAccepted, mgDeferred(0, 1, mailgunRetries[0]), after(mailgunRetries[0], mgDelivered)},
	outExpire:           mgExpire(),
	outMailboxFull:      {mgAccepted, mgFailed("bounce", 552, "5.2.2", "", "5.2.2 Mailbox full")},
	outSuppressedBounce: {mgAccepted, mgFailed("suppress-bounce", 605, "", "Not delivering to previously bounced address", "")},
	outSuppressedSpam:   {mgAccepted, mgFailed("suppress-complaint", 607, "", "Not delivering to a user who marked your messages as spam", "")},
	outSuppressedUnsub:  {mgAccepted, mgFailed("suppress-unsubscribe", 606, "", "Not delivering to unsubscribed address", "")},
	outInvalid:          {mgAccepted, mgFailed("bounce", 501, "5.1.3", "", "5.1.3 Bad destination mailbox address syntax")},
	// Rejected is shown by the Events API alone, no webhook tells of it.
	outRejected: {mgAccepted, {event: "rejected", fields: `"log-level":"warn","reject":{"reason":"Sandbox subdomains are for test purposes only","description":""}`}},
	outOverQuota: {mgAccepted, {event: "rejected",
		fields: `"log-level":"warn","reject":{"reason":"Account quota exceeded","description":""}`}},
	outComplain:    {mgAccepted, mgDelivered, mgEngagement(10*time.Minute, "complained", "")},
	outUnsubscribe: {mgAccepted, mgDelivered, mgEngagement(10*time.Minute, "unsubscribed", mgClient)},
	outOpen:        {mgAccepted, mgDelivered, mgEngagement(time.Minute, "opened", mgClient)},
	outClick: {mgAccepted, mgDelivered, mgEngagement(time.Minute, "opened", mgClient),
		mgEngagement(2*time.Minute, "clicked", mgClient+`,"url":"https://example.com/"`)},
	outAsync:     {mgAccepted, mgDelivered, delayed(after(10*time.Minute, mgFailed("generic", 550, "5.1.1", "", "5.1.1 User unknown (reported after delivery)")))},
	outLostEvent: append([]stage{mgAccepted}, quiet(mgDelivered)...),
	outSilent:    quiet(mgAccepted, mgDelivered),
	outRefused:   {mgAccepted, mgDelivered},
}

func delayed(s stage) stage { s.late = true; return s }
