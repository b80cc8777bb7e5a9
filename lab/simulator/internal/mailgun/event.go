package mailgun

import (
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// Writer implements provider.WebhookSender.
func (g *Mailgun) Writer(e *message.Event, _ int) func(dst []byte, c *message.Copy) []byte {
	return func(dst []byte, c *message.Copy) []byte { return g.appendEvent(dst, e, c) }
}

// appendEvent appends the event-data object of the copy c, which webhooks and the
// Events API have in common. Unless content is kept, the subject is its template.
func (g *Mailgun) appendEvent(b []byte, e *message.Event, c *message.Copy) []byte {
	m, stage := e.Batch, &stages[e.Outcome][e.Stage]
	b = append(b, `{"id":"`...)
	b = append(b, g.account.IDs.Text(provider.ForEvent,
		m.Serial, uint64(c.Index), uint64(e.Outcome), uint64(e.Stage))...)
	b = append(b, `","timestamp":`...)
	b = appendMicros(b, e.At())
	b = jsontext.AppendField(b, "event", stage.Event)
	if stage.Event != "rejected" { // Mailgun promises no recipient there
		b = jsontext.AppendField(b, "recipient", c.Address)
		b = jsontext.AppendField(b, "recipient-domain", c.Address[strings.LastIndexByte(c.Address, '@')+1:])
	}
	b = append(b, ',')
	b = append(b, stage.Fields...)
	b = append(b, `,"tags":[`...)
	for i, tag := range m.Tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsontext.AppendQuoted(b, tag)
	}
	b = append(b, `],"campaigns":[],"user-variables":{`...)
	first := true
	for key, value := range m.Metadata(c) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(jsontext.AppendQuoted(b, key), ':')
		b = jsontext.AppendQuoted(b, value)
	}
	b = append(b, `},"flags":{"is-routed":false,"is-authenticated":true,"is-big":false,"is-system-test":false,`...)
	b = append(b, `"is-test-mode":`...)
	b = strconv.AppendBool(b, m.Test)
	if stage.Late {
		b = append(b, `,"is-delayed-bounce":true`...)
	}
	b = append(b, `},"envelope":{"transport":"smtp","sending-ip":"203.0.113.25"`...)
	b = jsontext.AppendField(b, "sender", m.From)
	b = jsontext.AppendField(b, "targets", c.Address)
	b = append(b, `},"message":{"headers":{"to":`...)
	b = jsontext.AppendQuoted(b, c.Address)
	b = jsontext.AppendField(b, "message-id", g.messageID(m))
	b = jsontext.AppendField(b, "from", m.From)
	subject := m.Subject
	if c.Content != nil {
		subject = c.Content.Subject
	}
	b = jsontext.AppendField(b, "subject", subject)
	return append(b, `},"attachments":[],"size":1024},"storage":{"key":"","url":""}}`...)
}

// appendMicros appends the Unix time of t in seconds with six decimals.
func appendMicros(dst []byte, t time.Time) []byte {
	micros := t.UnixMicro()
	dst = strconv.AppendInt(dst, micros/1e6, 10)
	fraction := strconv.AppendInt(nil, 1e6+micros%1e6, 10)
	return append(append(dst, '.'), fraction[1:]...)
}
