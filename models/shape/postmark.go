package shape

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/safedelivr/safedelivr/models/feed"
)

// postmarkOf returns an update as an event of Postmark.
func postmarkOf(d *feed.Described) map[string]any {
	kind, at := d.Type(), timeOf(d.At)
	e := map[string]any{
		"RecordType": Postmark.Word(kind), "MessageID": d.Batch.String(), "Metadata": orEmpty(d.Metadata),
	}
	if len(d.Tags) > 0 {
		e["Tag"] = d.Tags[0]
	}
	switch kind {
	case feed.Delivered:
		e["Recipient"], e["DeliveredAt"] = d.To().Email, at
	case feed.Opened:
		e["Recipient"], e["ReceivedAt"], e["FirstOpen"] = d.To().Email, at, true
	case feed.Clicked:
		e["Recipient"], e["ReceivedAt"] = d.To().Email, at
	case feed.Unsubscribed:
		e["Recipient"], e["ChangedAt"], e["Origin"] = d.To().Email, at, "Recipient"
		e["SuppressSending"], e["SuppressionReason"] = true, "ManualSuppression"
	default:
		f := failureOf(d.Reason)
		switch kind {
		case feed.Deferred:
			f = failure{typeOfPostmark: "Transient", codeOfPostmark: 2, nameOfPostmark: "Message delayed"}
		case feed.Complained:
			f = failure{typeOfPostmark: "SpamComplaint", codeOfPostmark: 100001, nameOfPostmark: "Spam complaint"}
		}
		e["ID"], e["Type"], e["TypeCode"], e["Name"] = numberOf(d), f.typeOfPostmark, f.codeOfPostmark, f.nameOfPostmark
		e["Email"], e["From"], e["Subject"], e["BouncedAt"] = d.To().Email, d.From().Email, d.Subject(), at
		e["Description"], e["Details"] = d.Reason.Words(), d.Reason.Words()
		e["DumpAvailable"], e["CanActivate"] = false, false
		e["Inactive"] = kind == feed.Complained || f == noMailbox || f == noReason || f == suppressed
	}
	return e
}

// numberOf returns the ID of an event as a number that JavaScript represents exactly.
func numberOf(d *feed.Described) int64 {
	sum := sha256.Sum256([]byte(idOf(d)))
	return int64(binary.BigEndian.Uint64(sum[:]) >> 11)
}
