package simulator

import (
	"encoding/base64"
	"strconv"
)

// A sgPen writes the events of one emission. What they have in common is made
// ready once.
type sgPen struct {
	g         *sendgrid
	e         *emission
	st        *stage
	common    []byte // from the timestamp to the categories
	message   string // X-Message-Id
	messageID string // sg_message_id up to the number of the copy
	tries     uint8
}

func (g *sendgrid) pen(e *emission, tries uint8) sgPen {
	p := sgPen{g: g, e: e, st: e.stageOf(), message: g.id(e.m), tries: tries}
	b := strconv.AppendInt([]byte(`,"timestamp":`), e.at().Unix(), 10)
	b = appendField(b, "event", p.st.event)
	if !p.st.bare {
		b = append(b, `,"smtp-id":"<`...)
		b = append(b, p.message...)
		b = append(b, `@ismtpd0039p1iad1.sendgrid.net>"`...)
		p.messageID = p.message + ".filterdrecv-p3mdw1." + strconv.FormatUint(10_000+e.m.serial%50_000, 10) + "." +
			strconv.FormatInt(e.m.accepted().Unix(), 16) + "-"
	}
	// One category is a string, several are an array.
	switch tags := e.m.head.tags; {
	case len(tags) == 1:
		b = appendField(b, "category", tags[0])
	case len(tags) > 1:
		b = append(b, `,"category":[`...)
		for i, tag := range tags {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendQuoted(b, tag)
		}
		b = append(b, ']')
	}
	p.common = b
	return p
}

// event appends the event of the copy r.
func (p *sgPen) event(b []byte, r record) []byte {
	b = append(b, `{"email":`...)
	b = appendQuoted(b, r.addr)
	b = append(b, p.common...)
	b = append(b, `,"sg_event_id":"`...)
	b = p.eventID(b, r)
	b = append(b, '"')
	if !p.st.bare {
		b = append(b, `,"sg_message_id":"`...)
		b = append(b, p.messageID...)
		b = strconv.AppendUint(b, uint64(r.i), 16)
		b = append(b, `.0"`...)
	}
	if p.st.fields != "" {
		b = append(b, ',')
		b = append(b, p.st.fields...)
	}
	if !p.st.bare {
		head := p.e.m.head
		p.e.m.metadata(r, func(key int, value []byte) {
			if quoted := head.quoted[key-1]; quoted != "" {
				b = append(b, quoted...)
				b = appendQuoted(b, value)
			}
		})
	}
	return append(b, '}')
}

// eventID appends the sg_event_id: for delivery events it tells kind, account,
// message and copy, for others it tells nothing.
func (p *sgPen) eventID(b []byte, r record) []byte {
	var space [96]byte
	id := space[:0]
	if p.st.kind == "" {
		id = append(id, p.g.a.s.random(16, saltEvent, p.g.a.salt, p.e.m.serial, uint64(r.i), uint64(p.e.stage))...)
	} else {
		id = append(id, p.st.kind...)
		id = append(id, '-')
		id = append(id, p.g.number...)
		id = append(id, '-')
		id = append(id, p.message...)
		id = append(id, '-')
		id = strconv.AppendUint(id, uint64(r.i), 10)
	}
	if p.tries > 0 && p.g.a.s.opts.NewEventIDOnRetry {
		id = append(id, '-', 'r')
		id = strconv.AppendUint(id, uint64(p.tries), 10)
	}
	return base64.RawURLEncoding.AppendEncode(b, id)
}
