// Package shape writes updates of mail as other services write their events. An application that reads those of such a
// service reads these, too.
//
// A shape has no words for some updates. What it has words for is in one table, so that an update without a word is
// known before it is read. The functions are pure: who posts events, or answers requests for them, reads the updates.
package shape

import (
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// Name is the name of a shape.
type Name string

// The shapes.
const (
	Standard Name = client.ShapeStandard // that of Safedelivr, as is the one without a name
	Mailgun  Name = client.ShapeMailgun
	SendGrid Name = client.ShapeSendGrid
	Postmark Name = client.ShapePostmark
	Resend   Name = client.ShapeResend
)

// words are what shapes call updates, by their types.
var words = map[Name]map[feed.Type]string{
	Mailgun: {
		feed.Delivered: "delivered", feed.Failed: "failed", feed.Deferred: "failed", feed.Bounced: "failed",
		feed.Opened: "opened", feed.Clicked: "clicked", feed.Complained: "complained", feed.Unsubscribed: "unsubscribed",
	},
	SendGrid: {
		feed.Delivered: "delivered", feed.Failed: "dropped", feed.Deferred: "deferred", feed.Opened: "open",
		feed.Clicked: "click", feed.Complained: "spamreport", feed.Unsubscribed: "unsubscribe",
	},
	Postmark: {
		feed.Delivered: "Delivery", feed.Failed: "Bounce", feed.Deferred: "Bounce", feed.Opened: "Open",
		feed.Clicked: "Click", feed.Complained: "SpamComplaint", feed.Unsubscribed: "SubscriptionChange",
	},
	Resend: {
		feed.Delivered: "email.delivered", feed.Failed: "email.failed", feed.Deferred: "email.delivery_delayed",
		feed.Opened: "email.opened", feed.Clicked: "email.clicked", feed.Complained: "email.complained",
	},
}

// Foreign reports whether the shape is that of another service.
func (n Name) Foreign() bool { return n != "" && n != Standard }

// Word returns what the shape calls updates of a type, or "". Some failures have a word of their own.
func (n Name) Word(t feed.Type) string { return words[n][t] }

// Has reports whether the shape has an event for updates of a type with a reason. Standard has all. A provider that gave
// up for good is one event, that of the failure.
func (n Name) Has(t feed.Type, r models.Reason) bool {
	unclear := t == feed.Failed && failureOf(r) == mayHaveArrived && n != Mailgun
	twice := t == feed.Bounced && r.Hard()
	return !n.Foreign() || n.Word(t) != "" && !unclear && !twice
}

// Event returns an update of mail to a recipient as an event. The shape must have one. Standard has the update.
func (n Name) Event(d *feed.Described) any {
	switch n {
	case Mailgun:
		return MailgunOf(d)
	case SendGrid:
		return sendGridOf(d)
	case Postmark:
		return postmarkOf(d)
	case Resend:
		return resendOf(d)
	}
	return d
}

// failure is a kind of failure, as SendGrid, Postmark and Resend distinguish them.
type failure struct {
	status              string // of RFC 3463; empty: no server of the recipient has seen the mail
	typeOfSendGrid      string
	typeOfPostmark      string
	codeOfPostmark      int
	nameOfPostmark      string
	typeOfResend, subOf string
}

// The kinds of failures.
var (
	notSent    = failure{"", "", "SMTPApiError", 100007, "SMTP API error", "", ""}
	suppressed = failure{"", "", "ManuallyDeactivated", 100002, "Manually deactivated", "", ""}
	noMailbox  = failure{"5.1.1", "bounce", "HardBounce", 1, "Hard bounce", "Permanent", "General"}
	noReason   = failure{"5.0.0", "bounce", "HardBounce", 1, "Hard bounce", "Permanent", "General"}
	full       = failure{"4.2.2", "blocked", "SoftBounce", 4096, "Soft bounce", "Transient", "MailboxFull"}
	tooLate    = failure{"4.4.7", "blocked", "SoftBounce", 4096, "Soft bounce", "Transient", "General"}
	blocked    = failure{"5.7.1", "blocked", "Blocked", 100006, "ISP block", "Transient", "ContentRejected"}

	mayHaveArrived = failure{}
)

// failures are the kinds of failures by their reasons.
var failures = map[models.Reason]failure{
	models.MailboxInvalid: noMailbox, models.BounceUnknown: noReason, models.MailboxFull: full,
	models.DeliveryTimeout: tooLate, models.DNSOrConnect: tooLate, models.Greylisted: tooLate,
	models.PolicyContent: blocked, models.PolicyReputation: blocked,
	models.Suppressed: suppressed, models.SuppressedBounce: suppressed, models.SuppressedComplaint: suppressed,
	models.SuppressedUnsubscribe: suppressed,
	models.OutcomeUnknown:        mayHaveArrived, models.NoFinalEvent: mayHaveArrived,
}

// failureOf returns the kind of a failure.
func failureOf(r models.Reason) failure {
	if f, ok := failures[r]; ok {
		return f
	}
	return notSent
}

// stoppedBy returns why the mail was suppressed.
func stoppedBy(d *feed.Described) models.SuppressionReason {
	switch d.Reason {
	case models.SuppressedBounce:
		return models.HardBounce
	case models.SuppressedComplaint:
		return models.Complaint
	}
	return d.Listed()
}

// idOf returns the ID of an event, which is the same whenever it is posted or read.
func idOf(d *feed.Described) string {
	return fmt.Sprintf("%s-%d-%s", d.Log, d.Number, strings.TrimPrefix(string(d.Type()), "log."))
}

// written returns an address as it is written in a mail.
func written(a models.Address) string {
	if a.Name == "" {
		return a.Email
	}
	return a.Name + " <" + a.Email + ">"
}

// timeOf writes a time with its fraction, which readers of Resend and Postmark expect.
func timeOf(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000000Z") }

// orEmpty returns metadata that is an object in JSON.
func orEmpty(metadata map[string]string) map[string]string {
	if metadata == nil {
		return map[string]string{}
	}
	return metadata
}
