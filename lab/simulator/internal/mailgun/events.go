package mailgun

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	client = `,"ip":"198.51.100.7","geolocation":{"city":"Unknown","country":"Unknown","region":"Unknown"},` +
		`"client-info":{"client-name":"simulator","client-os":"Linux","client-type":"browser",` +
		`"device-type":"desktop","user-agent":"Mozilla/5.0 (simulator)","bot":""}`
	mailServer = `,"mx-host":"mx.sim.test","tls":true,"certificate-verified":true,"utf8":true`

	// event is the event-data object, which webhooks and the Events API have in common.
	event = `{"id":"<event id>","timestamp":<micros>,` + rest + `"user-variables":<metadata>,` + end
	// logged is the event of the Logs API, whose user-variables are an object in a string.
	logged = `{"id":"<event id>","@timestamp":"<time>",` + rest + `"user-variables":<metadata text>,` + end
	rest   = `"event":"<event>"<recipient>,<fields>,"tags":<tags>,"campaigns":[],`
	end    = `"flags":{"is-routed":false,"is-authenticated":true,"is-big":false,"is-system-test":false,` +
		`"is-test-mode":<test><late>},"envelope":{"transport":"smtp","sending-ip":"203.0.113.25","sender":<from>,` +
		`"targets":<address>},"message":{"headers":{"to":<address>,"message-id":"<id>","from":<from>,` +
		`"subject":<subject>},"attachments":[],"size":1024},"storage":{"key":"","url":""}}`
)

var holes = provider.Holes{
	Event: map[string]provider.Hole{
		"test": func(dst []byte, v *provider.View) []byte { return strconv.AppendBool(dst, v.Batch.Test) },
		"late": func(dst []byte, v *provider.View) []byte {
			if v.Stage.Step != provider.BouncedLate {
				return dst
			}
			return append(dst, `,"is-delayed-bounce":true`...)
		},
	},
	Copy: map[string]provider.Hole{
		"event id": func(dst []byte, v *provider.View) []byte {
			return append(dst, v.IDs.Text(provider.ForEvent, v.Batch.Serial, uint64(v.Copy.Index), uint64(v.Event.Outcome),
				uint64(v.Event.Stage))...)
		},
		"recipient": func(dst []byte, v *provider.View) []byte {
			if v.Stage.Event == "rejected" { // Mailgun promises no recipient there
				return dst
			}
			domain := v.Copy.Address[strings.LastIndexByte(v.Copy.Address, '@')+1:]
			dst = provider.Quote(append(dst, `,"recipient":`...), v.Copy.Address)
			return provider.Quote(append(dst, `,"recipient-domain":`...), domain)
		},
		"metadata text": func(dst []byte, v *provider.View) []byte {
			return provider.Quote(dst, string(provider.AppendMetadata(nil, v)))
		},
	},
}

// failed returns the word for mail that is not delivered. Suppressed mail has no enhanced code, because it was never
// handed to a mail server.
func failed(reason, code, text, description string) provider.Word {
	server := ""
	if description == "" {
		server = mailServer + `,"enhanced-code":"<enhanced>","bounce-code":"<enhanced>"`
	}
	return provider.Word{Event: "failed", Kind: "permanent_fail", Fields: `"log-level":"error","severity":"permanent",` +
		`"reason":"` + reason + `","delivery-status":{"code":` + code + `,"message":"` + text + `","description":"` +
		description + `","attempt-no":1,"session-seconds":0.21` + server + `}`}
}

func bounced(reason string) provider.Word { return failed(reason, "<code>", "<enhanced> <text>", "") }

// rejected returns the word for mail that Mailgun did not accept after all. Look-ups alone show it.
func rejected(reason string) provider.Word {
	return provider.Word{Event: "rejected", Hidden: true,
		Fields: `"log-level":"warn","reject":{"reason":"` + reason + `","description":""}`}
}

func engagement(event, fields string) provider.Word {
	return provider.Word{Event: event, Kind: event, Fields: `"log-level":"info"` + fields}
}

var stages = sync.OnceValue(wording.Stages)

// wording holds what Mailgun reports. It tries deferred mail again for 8 hours.
var wording = provider.Wording{
	Hook:   event,
	Log:    logged,
	Holes:  holes,
	Retry:  10 * time.Minute,
	Expire: provider.Minutes(10, 15, 30, 60, 120, 240),
	Words: map[provider.Step]provider.Word{
		provider.Taken: engagement("accepted", `,"method":"HTTP","delivery-status":null`),
		provider.Delivered: engagement("delivered", `,"delivery-status":{"code":250,"message":"OK","description":"",`+
			`"attempt-no":1,"session-seconds":0.42`+mailServer+`,"enhanced-code":"2.0.0"}`),
		provider.Deferred: {Event: "failed", Kind: "temporary_fail", Fields: `"log-level":"warn","severity":"temporary",` +
			`"reason":"generic","delivery-status":{"code":<code>,"message":"<enhanced> <text>","description":"",` +
			`"attempt-no":<attempt>,"retry-seconds":<retry>,"session-seconds":0.3` + mailServer +
			`,"enhanced-code":"<enhanced>"}`},
		provider.Expired:        failed("old", "499", "", "Too old"),
		provider.BouncedHard:    bounced("bounce"),
		provider.BouncedBlocked: bounced("generic"),
		provider.BouncedFull:    bounced("bounce"),
		provider.BouncedLate:    bounced("generic"),
		provider.DroppedBounce:  failed("suppress-bounce", "605", "", "Not delivering to previously bounced address"),
		provider.DroppedSpam: failed("suppress-complaint", "607", "",
			"Not delivering to a user who marked your messages as spam"),
		provider.DroppedUnsub:   failed("suppress-unsubscribe", "606", "", "Not delivering to unsubscribed address"),
		provider.DroppedInvalid: bounced("bounce"),
		provider.DroppedContent: rejected("Sandbox subdomains are for test purposes only"),
		provider.DroppedQuota:   rejected("Account quota exceeded"),
		provider.Complained:     engagement("complained", ""),
		provider.Unsubscribed:   engagement("unsubscribed", client),
		provider.Opened:         engagement("opened", client),
		provider.Clicked:        engagement("clicked", client+`,"url":"https://example.com/"`),
	},
}
