package sendgrid

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	sent  = `,"ip":"203.0.113.25","tls":1,`
	click = `,"ip":"198.51.100.7","useragent":"Mozilla/5.0 (simulator)",`
	open  = click + `"sg_machine_open":false,"sg_content_type":"html"`

	head = `{"email":<address>,"timestamp":<unix>,"event":"<event>"`
	ids  = `,"smtp-id":"<<id>@ismtpd0039p1iad1.sendgrid.net>"<category>,"sg_event_id":"<event id>",` +
		`"sg_message_id":"` + messageID + `"<fields>`
	messageID = "<id>.filterdrecv-p3mdw1.<host>.<second>-<index>.0"
)

// bounced returns the word for mail that the mail server refused.
func bounced(status, kind, classification string) provider.Word {
	return provider.Word{Event: "bounce", Kind: "bounce", Status: status, Fields: sent + `"type":"` + kind +
		`","status":"<enhanced>","reason":"<code> <enhanced> <text>","bounce_classification":"` + classification + `"`}
}

// dropped returns the word for mail that SendGrid does not process.
func dropped(reason string) provider.Word {
	return provider.Word{Event: "dropped", Kind: "drop", Status: "dropped", Alone: true,
		Fields: `,"reason":"` + reason + `","status":"5.0.0"`}
}

// wording holds what SendGrid reports. The fields follow the Event Webhook reference. Deferred mail is tried for 72
// hours.
var wording = provider.Wording{
	Hook:   head + ids + `<args>}`,
	Log:    head + ids + `,"custom_args":<metadata>}`,
	Holes:  holes,
	Retry:  15 * time.Minute,
	Expire: []time.Duration{time.Hour, 11 * time.Hour, 60 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken: {Event: "processed", Kind: "processed", Status: "processed"},
		provider.Delivered: {Event: "delivered", Kind: "delivered", Status: "delivered",
			Fields: sent + `"response":"250 2.0.0 OK queued as simulated"`},
		provider.Deferred: {Event: "deferred", Kind: "deferred-<attempt>", Status: "deferred",
			Fields: sent + `"response":"<code> <enhanced> <text>","attempt":"<attempt>"`},
		provider.Expired: {Event: "bounce", Kind: "bounce", Status: "bounced",
			Fields: `,"type":"expired","reason":"Bounced - Expired","bounce_classification":"Unclassified"`},
		provider.BouncedHard:    bounced("bounced", "bounce", "Invalid Address"),
		provider.BouncedBlocked: bounced("blocked", "blocked", "Reputation"),
		provider.BouncedFull:    bounced("bounced", "bounce", "Mailbox Unavailable"),
		// A bounce after the mail server took the mail has no ids of its message.
		provider.BouncedLate: {Event: "bounce", Status: "bounced",
			Hook: head + `<category>,"sg_event_id":"<event id>"<fields>}`, Fields: `,"type":"bounce","status":"<enhanced>",` +
				`"reason":"<code> <enhanced> <text>","bounce_classification":"Invalid Address"`},
		provider.DroppedBounce:  dropped("Bounced Address"),
		provider.DroppedSpam:    dropped("Spam Reporting Address"),
		provider.DroppedUnsub:   dropped("Unsubscribed Address"),
		provider.DroppedInvalid: dropped("Invalid"),
		provider.DroppedContent: dropped("Spam Content"),
		provider.DroppedQuota:   dropped("Recipient List over Package Quota"),
		provider.Complained:     {Event: "spamreport"},
		provider.Unsubscribed:   {Event: "unsubscribe"},
		provider.Opened:         {Event: "open", Status: "delivered", Fields: open},
		provider.Clicked: {Event: "click", Status: "delivered",
			Fields: click + `"url":"https://example.com/","url_offset":{"index":0,"type":"html"}`},
	},
}

var stages = sync.OnceValue(wording.Stages)

var holes = provider.Holes{
	Event: map[string]provider.Hole{
		// One category is a string, several are an array.
		"category": func(dst []byte, v *provider.View) []byte {
			switch len(v.Batch.Tags) {
			case 0:
				return dst
			case 1:
				return provider.Quote(append(dst, `,"category":`...), v.Batch.Tags[0])
			}
			return provider.AppendList(append(dst, `,"category":`...), v.Batch.Tags)
		},
		"host": func(dst []byte, v *provider.View) []byte {
			return strconv.AppendUint(dst, 10_000+v.Batch.Serial%50_000, 10)
		},
		"second": func(dst []byte, v *provider.View) []byte {
			return strconv.AppendInt(dst, v.Batch.Accepted().Unix(), 16)
		},
	},
	Copy: map[string]provider.Hole{"event id": appendEventID, "args": appendArgs},
}

// appendEventID appends the sg_event_id. That of a delivery event holds kind, account, message and copy; that of any
// other event is random.
func appendEventID(dst []byte, v *provider.View) []byte {
	var space [96]byte
	text := space[:0]
	if v.Stage.Kind == "" {
		copy, stage := uint64(v.Copy.Index), uint64(v.Event.Stage)
		text = append(text, v.IDs.Bytes(16, provider.ForEvent, v.Batch.Serial, copy, stage)...)
	} else {
		text = append(append(text, v.Stage.Kind...), '-')
		text = strconv.AppendUint(text, 10_000_000+v.IDs.Account()%90_000_000, 10)
		text = append(append(append(text, '-'), v.ID...), '-')
		text = strconv.AppendUint(text, uint64(v.Copy.Index), 10)
	}
	if v.Tries > 0 && v.Options.NewEventIDOnRetry {
		text = strconv.AppendInt(append(text, "-r"...), int64(v.Tries), 10)
	}
	return base64.RawURLEncoding.AppendEncode(dst, text)
}

// reserved are SendGrid's own event fields. They win over custom args.
var reserved = strings.Fields("asm_group_id attempt bounce_classification category cert_err email event ip " +
	"marketing_campaign_id marketing_campaign_name pool reason response sg_content_type sg_event_id sg_machine_open " +
	"sg_message_id smtp-id status timestamp tls type url url_offset useragent")

// appendArgs appends the custom arguments as members of the event.
func appendArgs(dst []byte, v *provider.View) []byte {
	for key, value := range v.Batch.Metadata(v.Copy) {
		if !slices.Contains(reserved, key) {
			dst = provider.Quote(append(provider.Quote(append(dst, ','), key), ':'), value)
		}
	}
	return dst
}
