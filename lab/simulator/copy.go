package simulator

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// Content is what a recipient would read, after substitution.
type Content = message.Content

// Attachment is a file of a mail.
type Attachment = message.Attachment

// A Copy is one accepted mail to one address.
type Copy struct {
	ID         string            `json:"id"` // value of Options.RecipientKey, or the address in lower case; see Role
	Account    string            `json:"account"`
	Address    string            `json:"address"`
	At         time.Time         `json:"at"`
	ProviderID string            `json:"provider_id"` // answered to the call; the same for all copies of a call
	From       string            `json:"from,omitempty"`
	Tags       []string          `json:"tags,omitempty"` // SendGrid: categories
	Metadata   map[string]string `json:"metadata,omitempty"`
	Outcome    string            `json:"outcome"` // see Outcomes
	// Swallowed reports that a suspension without Fault.Release keeps the copy for ever, with any outcome. The suspension
	// may have begun at any time before its last event.
	Swallowed bool `json:"swallowed,omitempty"`
	// Muted reports that a fault at the time of acceptance suppresses all its webhooks, or that the webhook with its end
	// had a wrong signature and is not repeated. Look-ups show its events.
	Muted bool `json:"muted,omitempty"`
	// Role is cc or bcc, or empty for To. Of a message to several addresses, the IDs of all copies but the first have a
	// slash and the address in lower case at their end.
	Role string `json:"role,omitempty"`
	// Visible lists the other recipients that this copy names in To and Cc. It is empty for an individual message; in a
	// batch anything else is a leak.
	Visible     []string     `json:"visible,omitempty"`
	Attachments []Attachment `json:"attachments,omitempty"`
	Content                  // empty unless Options.KeepContent
}

// export returns the copy c as users see it.
func (b *stored) export(c *message.Copy) Copy {
	x := Copy{
		ID:         c.ID,
		Account:    b.account.name,
		Address:    c.Address,
		At:         b.Accepted(),
		ProviderID: b.account.provider.ID(&b.Batch),
		From:       b.From,
		Tags:       b.Tags,
		Outcome:    c.Outcome.String(),
		Visible:    b.visible(c),

		Attachments: slices.Clone(b.Attachments),
	}
	if len(b.Shared)+len(c.Metadata) > 0 {
		x.Metadata = maps.Collect(b.Metadata(c))
	}
	if c.Content != nil {
		x.Content = *c.Content
	}
	if role := c.Flags & (message.CC | message.BCC); role != 0 {
		x.Role = provider.Roles[role]
	}
	g := b.group(c.Group)
	x.Swallowed = g.park != nil && g.park.swallows() || b.swallowed.Load()&(1<<c.Outcome) != 0
	_, lost := b.account.s.store.Load().lost.Load(c)
	x.Muted = lost || g.mute != nil && len(g.mute.events) == 0
	return x
}

// visible returns the other recipients that the message of c names.
func (b *stored) visible(c *message.Copy) (list []string) {
	first := int(c.Index)
	for first > 0 && b.Copies[first].Flags&message.Joint != 0 {
		first--
	}
	for i, o := range b.Copies[first:] {
		if i > 0 && o.Flags&message.Joint == 0 {
			break
		}
		if o.Index != c.Index && o.Flags&message.BCC == 0 {
			list = append(list, o.Address)
		}
	}
	return list
}

// Copies returns the copies with the given id: the value of the recipient key, or an address. An address that is not
// the id is searched in all copies.
func (s *Simulator) Copies(id string) []Copy {
	st := s.store.Load()
	var list []Copy
	for _, p := range st.of(id) {
		list = append(list, p.export(p.copy))
	}
	addr := strings.ToLower(id)
	if !strings.Contains(addr, "@") {
		return list
	}
	if s.opts.RecipientKey == "" {
		if len(list) == 0 && addr != id {
			return s.Copies(addr)
		}
		return list
	}
	for _, b := range st.all() {
		for i := range b.Copies {
			if c := &b.Copies[i]; strings.ToLower(c.Address) == addr && c.ID != id {
				list = append(list, b.export(c))
			}
		}
	}
	return list
}

// EachCopy calls f once for each id that has a copy, in the order of the first copies, with the number of its copies at
// each account that has any. The map is reused: it is valid until f returns. Copies accepted meanwhile may be missed.
func (s *Simulator) EachCopy(f func(id string, perAccount map[string]int)) {
	st := s.store.Load()
	counts := map[string]int{}
	for _, b := range st.all() {
		for i := range b.Copies {
			c := &b.Copies[i]
			list := st.of(c.ID)
			if list[0].copy != c {
				continue
			}
			clear(counts)
			for _, p := range list {
				counts[p.account.name]++
			}
			f(c.ID, counts)
		}
	}
}
