package sendgrid

import (
	"encoding/base64"
	"strconv"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// reserved are SendGrid's own event fields. They win over custom args.
var reserved = map[string]bool{
	"asm_group_id":            true,
	"attempt":                 true,
	"bounce_classification":   true,
	"category":                true,
	"cert_err":                true,
	"email":                   true,
	"event":                   true,
	"ip":                      true,
	"marketing_campaign_id":   true,
	"marketing_campaign_name": true,
	"pool":                    true,
	"reason":                  true,
	"response":                true,
	"sg_content_type":         true,
	"sg_event_id":             true,
	"sg_machine_open":         true,
	"sg_message_id":           true,
	"smtp-id":                 true,
	"status":                  true,
	"timestamp":               true,
	"tls":                     true,
	"type":                    true,
	"url":                     true,
	"url_offset":              true,
	"useragent":               true,
}

// A writer writes the webhook events of one message.Event. What they have in
// common is written once.
type writer struct {
	g         *SendGrid
	event     *message.Event
	stage     *message.Stage
	common    []byte // from the timestamp to the categories
	id        string // X-Message-Id
	messageID string // sg_message_id up to the number of the copy
	tries     int
	logged    bool // for the Email Logs API, which has the custom args in a member
}

// Writer implements provider.WebhookSender.
func (g *SendGrid) Writer(e *message.Event, tries int) func(dst []byte, c *message.Copy) []byte {
	return g.writer(e, tries, false).append
}

// messageID returns the sg_message_id of a copy.
func (g *SendGrid) messageID(b *message.Batch, copy uint32) string {
	return messagePrefix(g.ID(b), b) + strconv.FormatUint(uint64(copy), 16) + ".0"
}

// messagePrefix returns the sg_message_id up to the number of the copy.
func messagePrefix(id string, b *message.Batch) string {
	return id + ".filterdrecv-p3mdw1." + strconv.FormatUint(10_000+b.Serial%50_000, 10) + "." +
		strconv.FormatInt(b.Accepted().Unix(), 16) + "-"
}

func (g *SendGrid) writer(e *message.Event, tries int, logged bool) *writer {
	w := &writer{
		g:      g,
		event:  e,
		stage:  &stages[e.Outcome][e.Stage],
		id:     g.ID(e.Batch),
		tries:  tries,
		logged: logged,
	}
	b := strconv.AppendInt([]byte(`,"timestamp":`), e.At().Unix(), 10)
	b = jsontext.AppendField(b, "event", w.stage.Event)
	if !w.bare() {
		b = append(b, `,"smtp-id":"<`...)
		b = append(b, w.id...)
		b = append(b, `@ismtpd0039p1iad1.sendgrid.net>"`...)
		w.messageID = messagePrefix(w.id, e.Batch)
	}
	// One category is a string, several are an array.
	switch tags := e.Batch.Tags; {
	case len(tags) == 1:
		b = jsontext.AppendField(b, "category", tags[0])
	case len(tags) > 1:
		b = append(b, `,"category":[`...)
		for i, tag := range tags {
			if i > 0 {
				b = append(b, ',')
			}
			b = jsontext.AppendQuoted(b, tag)
		}
		b = append(b, ']')
	}
	w.common = b
	return w
}

// bare reports whether the event has no ids of its message.
func (w *writer) bare() bool { return w.stage.Bare && !w.logged }

// append appends the event of the copy c.
func (w *writer) append(b []byte, c *message.Copy) []byte {
	b = append(b, `{"email":`...)
	b = jsontext.AppendQuoted(b, c.Address)
	b = append(b, w.common...)
	b = append(b, `,"sg_event_id":"`...)
	b = w.appendID(b, c)
	b = append(b, '"')
	if !w.bare() {
		b = append(b, `,"sg_message_id":"`...)
		b = append(b, w.messageID...)
		b = strconv.AppendUint(b, uint64(c.Index), 16)
		b = append(b, `.0"`...)
	}
	if w.stage.Fields != "" {
		b = append(b, ',')
		b = append(b, w.stage.Fields...)
	}
	switch {
	case w.logged:
		b = appendArgs(b, w.event.Batch, c)
	case !w.stage.Bare:
		for key, value := range w.event.Batch.Metadata(c) {
			if !reserved[key] {
				b = append(jsontext.AppendQuoted(append(b, ','), key), ':')
				b = jsontext.AppendQuoted(b, value)
			}
		}
	}
	return append(b, '}')
}

// appendID appends the sg_event_id. That of a delivery event holds kind, account,
// message and copy; that of any other event is random.
func (w *writer) appendID(b []byte, c *message.Copy) []byte {
	var space [96]byte
	id := space[:0]
	if w.stage.Kind == "" {
		serial := w.event.Batch.Serial
		id = append(id, w.g.account.IDs.Bytes(16, provider.ForEvent, serial, uint64(c.Index), uint64(w.event.Stage))...)
	} else {
		id = append(id, w.stage.Kind...)
		id = append(id, '-')
		id = append(id, w.g.number...)
		id = append(id, '-')
		id = append(id, w.id...)
		id = append(id, '-')
		id = strconv.AppendUint(id, uint64(c.Index), 10)
	}
	if w.tries > 0 && w.g.account.Options.NewEventIDOnRetry {
		id = append(id, '-', 'r')
		id = strconv.AppendInt(id, int64(w.tries), 10)
	}
	return base64.RawURLEncoding.AppendEncode(b, id)
}
