package shape

import (
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// MailgunEvent is an event as Mailgun writes it, in webhooks and in answers.
type MailgunEvent struct {
	ID        string  `json:"id"`
	Event     string  `json:"event"`
	Timestamp float64 `json:"timestamp"`
	Level     string  `json:"log-level"`
	Recipient string  `json:"recipient"`
	Domain    string  `json:"recipient-domain"`
	Severity  string  `json:"severity,omitempty"`
	Reason    string  `json:"reason,omitempty"`

	Tags      []string          `json:"tags"`
	Variables map[string]string `json:"user-variables"`
	Status    *MailgunStatus    `json:"delivery-status,omitempty"`
	Message   struct {
		Headers struct {
			ID      string `json:"message-id"`
			To      string `json:"to"`
			From    string `json:"from"`
			Subject string `json:"subject"`
		} `json:"headers"`
	} `json:"message"`

	At time.Time `json:"-"`
}

// MailgunStatus says how a delivery ended.
type MailgunStatus struct {
	Code        int    `json:"code"`
	Message     string `json:"message"`
	Description string `json:"description"`
}

// MailgunOf returns an update as an event of Mailgun.
func MailgunOf(d *feed.Described) MailgunEvent {
	to, from, kind := d.To(), d.From(), d.Type()
	e := MailgunEvent{
		ID: idOf(d), Event: Mailgun.Word(kind), Timestamp: float64(d.At.UnixMicro()) / 1e6, At: d.At, Level: "info",
		Recipient: to.Email, Domain: models.DomainOf(to.Email), Tags: d.Tags, Variables: orEmpty(d.Metadata),
	}
	if e.Tags == nil {
		e.Tags = []string{}
	}
	h := &e.Message.Headers
	h.ID, h.To, h.From, h.Subject = strings.Trim(d.RFCMessageID, "<>"), to.Email, from.Email, d.Subject()
	words := d.Reason.Words()
	switch kind {
	case feed.Delivered:
		e.Status = &MailgunStatus{Code: 250, Message: "OK"}
	case feed.Deferred, feed.Bounced:
		e.Level, e.Severity, e.Reason = "warn", "temporary", "generic"
		e.Status = &MailgunStatus{Code: 450, Message: words, Description: words}
	case feed.Failed:
		e.Level, e.Severity, e.Reason = "error", "permanent", "generic"
		e.Status = &MailgunStatus{Code: 550, Message: words, Description: words}
		switch failureOf(d.Reason) {
		case mayHaveArrived:
			e.Level, e.Severity = "warn", "temporary"
		case noMailbox, noReason, full, blocked:
			e.Reason = "bounce"
		case suppressed:
			e.suppressed(stoppedBy(d))
		}
	}
	return e
}

// suppressed sets the code of mail that was not sent because of earlier mail. Applications turn off an address that
// bounced (605) or complained (607) before.
func (e *MailgunEvent) suppressed(by models.SuppressionReason) {
	switch by {
	case models.HardBounce:
		e.Reason, e.Status.Code = "suppress-bounce", 605
	case models.Complaint:
		e.Reason, e.Status.Code = "suppress-complaint", 607
	default:
		e.Reason, e.Status.Code = "suppress-unsubscribe", 606
	}
}
