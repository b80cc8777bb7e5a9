package provider

import (
	"net/mail"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A Call is a request to send mail. It may hold views of the body.
type Call struct {
	Mails []Mail
	// Key is the idempotency key, at providers that read it in the body.
	Key string
	// Dry is the answer to a call that is only checked.
	Dry *Answer
	// Content returns what a recipient of a mail would read.
	Content func(mail, to int) message.Content
	// Invalid returns the answer to a call with addresses that are not valid. If it returns nil, it has refused the
	// mails to them, and the others are sent.
	Invalid func(list []Place) *Answer
	// Accept returns the answer to a call whose mails that are not refused were stored.
	Accept func(stored []*message.Batch) Answer
}

// A Mail is one message of a call. Neighbours with the same Head are one batch.
type Mail struct {
	Head     *message.Batch // sender, subject, tags, shared metadata and attachments
	To       []Recipient
	Metadata []message.Pair
	Refused  bool
}

// A Recipient is an address of a mail. The flags are those of a copy that say whether it is of To, Cc or Bcc.
type Recipient struct {
	Address, Name string
	Flags         uint8
}

// A Place is where a recipient is in a call.
type Place struct{ Mail, To int }

// Roles are the names of the recipients' flags.
var Roles = map[uint8]string{0: "to", message.CC: "cc", message.BCC: "bcc"}

// Addresses returns the recipients that could be read.
func (c *Call) Addresses() []string {
	n := 0
	for i := range c.Mails {
		n += len(c.Mails[i].To)
	}
	list := make([]string, 0, n)
	for i := range c.Mails {
		for _, r := range c.Mails[i].To {
			list = append(list, r.Address)
		}
	}
	return list
}

// Refuse returns the answer to a call in which the addresses that match are not valid, or nil if mails remain.
func (c *Call) Refuse(match func(addr string) bool) *Answer {
	var list []Place
	for i := range c.Mails {
		for k, r := range c.Mails[i].To {
			if match(r.Address) {
				list = append(list, Place{i, k})
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	return c.Invalid(list)
}

// Batches returns the mails that are not refused, without outcomes, IDs and time. It renders content if keep is set.
// The texts are copies, because the body is not kept.
func (c *Call) Batches(keep bool) (list []*message.Batch) {
	var head *message.Batch
	var metadata []message.Pair
	for i := range c.Mails {
		m := &c.Mails[i]
		if m.Refused {
			continue
		}
		if m.Head != head || len(list) == 0 {
			head = m.Head
			b := *m.Head
			b.From, b.Subject, b.Shared = strings.Clone(b.From), strings.Clone(b.Subject), cloned(b.Shared, nil)
			for k, tag := range b.Tags {
				b.Tags[k] = strings.Clone(tag)
			}
			n := len(m.To)
			if rest := c.Mails[i+1:]; len(rest) > 0 && rest[0].Head == head { // so have all, mostly with as many recipients
				n *= 1 + len(rest)
			}
			b.Copies = make([]message.Copy, 0, n)
			list = append(list, &b)
		}
		b := list[len(list)-1]
		metadata = cloned(m.Metadata, metadata)
		for k, r := range m.To {
			copied := message.Copy{Flags: r.Flags, Address: strings.Clone(r.Address), Metadata: metadata}
			if k > 0 {
				copied.Flags |= message.Joint
			}
			if keep {
				content := c.Content(i, k)
				content.Name = strings.Clone(r.Name)
				copied.Content = &content
			}
			b.Copies = append(b.Copies, copied)
		}
	}
	return list
}

// cloned makes the texts of the list independent of the body and returns the list. Keys are mostly those of the list
// before.
func cloned(list, before []message.Pair) []message.Pair {
	for i, p := range list {
		if i < len(before) && before[i].Key == p.Key {
			list[i].Key = before[i].Key
		} else {
			list[i].Key = strings.Clone(p.Key)
		}
		list[i].Value = strings.Clone(p.Value)
	}
	return list
}

// Recipients appends the addresses of a field: a bare address, one with a name, or several separated by commas. It
// reports false if one of them is not valid.
func Recipients(dst []Recipient, field string, flags uint8) ([]Recipient, bool) {
	field = strings.TrimSpace(field)
	if message.ValidAddress(field) {
		return append(dst, Recipient{Address: field, Flags: flags}), true
	}
	list, err := mail.ParseAddressList(field)
	for _, a := range list {
		if !message.ValidAddress(a.Address) {
			return dst, false
		}
		dst = append(dst, Recipient{a.Address, a.Name, flags})
	}
	return dst, err == nil
}
