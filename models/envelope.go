package models

import (
	"maps"
	"strings"
)

// Role says where the mail of an envelope names a recipient. The words are part of the API.
type Role string

// The roles.
const (
	To  Role = "to"
	CC  Role = "cc"
	BCC Role = "bcc"
)

// Envelope makes the recipients of a batch those of one mail. Recipient 1 is in To, the next ones
// are in Cc, and the last ones in Bcc. All are in chunk 0.
type Envelope struct {
	CC  int `json:"cc,omitempty"` // number of recipients
	BCC int `json:"bcc,omitempty"`
}

// MaxEnvelope is the maximum number of recipients of an envelope.
const MaxEnvelope = 50

// RoleOf returns the role of recipient n. It is empty if the batch is no envelope.
func (b *Batch) RoleOf(n int) Role {
	switch {
	case b.Envelope == nil:
		return ""
	case n <= 1:
		return To
	case n <= 1+b.Envelope.CC:
		return CC
	}
	return BCC
}

// Values returns the recipient whose values the mail to recipient n of a chunk has: in an envelope
// that in To, else recipient n.
func (b *Batch) Values(n int, rs []Recipient) *Recipient {
	if b.Envelope != nil {
		n = 1
	}
	return &rs[n-1]
}

// CallRecipients returns recipients of a chunk as they are handed to a provider: together in one
// mail, or each with a mail of its own.
func (b *Batch) CallRecipients(chunk ID, who Set, rs []Recipient, together bool) []CallRecipient {
	out := make([]CallRecipient, 0, who.Len())
	var shared map[string]string
	if b.Envelope != nil {
		shared = map[string]string{"email": rs[0].Email, "name": rs[0].Name}
		maps.Copy(shared, rs[0].Vars)
	}
	for n := range who.All() {
		r := rs[n-1]
		if shared != nil {
			r.Vars = shared
		}
		one := b.ForCall(chunk.Log(n), r)
		if together {
			one.Role = b.RoleOf(n)
		}
		out = append(out, one)
	}
	return out
}

// taken reports whether a try shows that its provider has accepted the mail.
func (t *Try) taken() bool {
	return t.Verdict == VerdictAccepted || t.Verdict == VerdictDelivered || t.Verdict == VerdictFailed
}

// Taken reports whether a provider is known to have accepted mail of the chunk.
func (v *View) Taken() (taken bool) {
	for r := 1; r <= v.Size && !taken; r++ {
		v.EachTry(r, func(t *Try) { taken = taken || t.taken() })
	}
	return taken
}

// TakenTogether returns a try of another recipient that shows that a provider has accepted one mail
// to both, although it is not known of recipient r; nil: there is none.
func (v *View) TakenTogether(r int) (found *Try) {
	for i := range v.attempts {
		a := &v.attempts[i]
		t := a.of(r)
		if !a.entry.Together || t == nil || t.taken() {
			continue
		}
		for other := range a.entry.Recipients.All() {
			if t := a.of(other); t != nil && t.taken() {
				found = t
			}
		}
	}
	return found
}

// RecipientOf returns the number of the recipient that an event is about. An event of an entry with
// one mail to all is about the recipient of who with the address, in any case; if that cannot be
// told, it returns 0. If one address of the entry was erased, no other event has an unknown address.
func (e *Entry) RecipientOf(named int, address string, rs []Recipient) int {
	if !e.Together {
		return named
	}
	gone := 0
	for n := range e.Recipients.All() {
		switch {
		case n > len(rs):
			return 0
		case !rs[n-1].Erased() && strings.EqualFold(rs[n-1].Email, address):
			return n
		case rs[n-1].Erased() && gone == 0:
			gone = n
		case rs[n-1].Erased():
			gone = -1
		}
	}
	return max(gone, 0)
}
