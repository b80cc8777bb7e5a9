package simulator

import (
	"bytes"
	"strconv"
)

// eventData appends the event-data object of the copy r in the emission e, which
// is what webhooks and the Events API have in common. The subject is the
// template of it, unless content is kept.
func (g *mailgun) eventData(b []byte, e *emission, r record) []byte {
	m, st := e.m, e.stageOf()
	b = append(b, `{"id":"`...)
	b = append(b, g.a.s.randomID(saltEvent, g.a.salt, m.serial, uint64(r.i), uint64(e.outcome), uint64(e.stage))...)
	b = append(b, `","timestamp":`...)
	b = appendMicros(b, e.at())
	b = appendField(b, "event", st.event)
	if st.event != "rejected" { // the vendor promises no recipient there
		b = appendField(b, "recipient", r.addr)
		b = appendField(b, "recipient-domain", r.addr[bytes.LastIndexByte(r.addr, '@')+1:])
	}
	b = append(b, ',')
	b = append(b, st.fields...)
	b = append(b, `,"tags":[`...)
	for i, tag := range m.head.tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, tag)
	}
	b = append(b, `],"campaigns":[],"user-variables":{`...)
	first := true
	m.metadata(r, func(key int, value []byte) {
		member := m.head.quoted[key-1]
		if first {
			member, first = member[1:], false // without the comma
		}
		b = append(b, member...)
		b = appendQuoted(b, value)
	})
	b = append(b, `},"flags":{"is-routed":false,"is-authenticated":true,"is-big":false,"is-system-test":false,"is-test-mode":`...)
	b = strconv.AppendBool(b, m.test)
	if st.late {
		b = append(b, `,"is-delayed-bounce":true`...)
	}
	b = append(b, `},"envelope":{"transport":"smtp","sending-ip":"203.0.113.25"`...)
	b = appendField(b, "sender", m.head.from)
	b = appendField(b, "targets", r.addr)
	b = append(b, `},"message":{"headers":{"to":`...)
	b = appendQuoted(b, r.addr)
	b = appendField(b, "message-id", g.messageID(m))
	b = appendField(b, "from", m.head.from)
	subject := m.head.subject
	if m.extra != nil && m.extra.content != nil {
		subject = m.extra.content[r.i].Subject
	}
	b = appendField(b, "subject", subject)
	return append(b, `},"attachments":[],"size":1024},"storage":{"key":"","url":""}}`...)
}
