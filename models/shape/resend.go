package shape

import (
	"github.com/safedelivr/safedelivr/models/feed"
)

// resendOf returns an update as an event of Resend, whose tags have names and values, as metadata has.
func resendOf(d *feed.Described) map[string]any {
	kind, name, words := d.Type(), Resend.Word(d.Type()), d.Reason.Words()
	headers := []map[string]string{}
	for _, h := range d.Headers() {
		headers = append(headers, map[string]string{"name": h.Name, "value": h.Value})
	}
	data := map[string]any{
		"email_id": d.Batch.String(), "created_at": timeOf(d.Batch.Time()), "from": written(d.From()),
		"to": []string{d.To().Email}, "subject": d.Subject(), "headers": headers, "tags": orEmpty(d.Metadata),
	}
	if d.RFCMessageID != "" {
		data["message_id"] = d.RFCMessageID
	}
	switch kind {
	case feed.Clicked:
		data["click"] = map[string]string{"timestamp": timeOf(d.At)}
	case feed.Failed:
		switch f := failureOf(d.Reason); {
		case f.status != "":
			name = "email.bounced"
			if f != tooLate {
				words = "The recipient's server sent a bounce message: " + words // readers look for these two words
			}
			data["bounce"] = map[string]string{"type": f.typeOfResend, "subType": f.subOf, "message": words}
		case f == suppressed:
			name = "email.suppressed"
			data["suppressed"] = map[string]string{"type": "OnAccountSuppressionList", "message": words}
		default:
			data["failed"] = map[string]string{"reason": words}
		}
	}
	return map[string]any{"type": name, "created_at": timeOf(d.At), "data": data}
}
