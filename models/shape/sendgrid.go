package shape

import (
	"maps"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// sendGridOf returns an update as an event of SendGrid, which has metadata beside its own fields. Its own count.
func sendGridOf(d *feed.Described) map[string]any {
	e, own := map[string]any{}, map[string]any{
		"event": SendGrid.Word(d.Type()), "timestamp": d.At.Unix(), "email": d.To().Email, "sg_event_id": idOf(d),
		"sg_message_id": strings.ReplaceAll(d.Request().String()+"."+d.Log.String(), "-", ""),
	}
	for name, value := range d.Metadata {
		e[name] = value
	}
	if d.RFCMessageID != "" {
		own["smtp-id"] = d.RFCMessageID
	}
	if len(d.Tags) > 0 {
		own["category"] = d.Tags
	}
	// The dialect reads the group 12 as the category group-12.
	text, ok := strings.CutPrefix(d.Category(), "group-")
	if group, err := strconv.Atoi(text); ok && err == nil {
		if own["asm_group_id"] = group; d.Type() == feed.Unsubscribed {
			own["event"] = "group_unsubscribe"
		}
	}
	switch d.Type() {
	case feed.Deferred:
		own["response"] = d.Reason.Words()
	case feed.Failed:
		own["reason"] = d.Reason.Words()
		if f := failureOf(d.Reason); f.status != "" {
			own["event"], own["type"], own["status"] = "bounce", f.typeOfSendGrid, f.status
		} else if f == suppressed {
			own["reason"] = "Unsubscribed Address"
			switch stoppedBy(d) {
			case models.HardBounce:
				own["reason"] = "Bounced Address"
			case models.Complaint:
				own["reason"] = "Spam Reporting Address"
			}
		}
	}
	maps.Copy(e, own)
	return e
}
