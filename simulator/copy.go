package simulator

import (
	"bytes"
	"time"
)

// A Copy is one accepted mail to one address.
type Copy struct {
	ID         string            `json:"id"` // value of Options.RecipientKey, or the address in lower case
	Account    string            `json:"account"`
	Address    string            `json:"address"`
	At         time.Time         `json:"at"`
	ProviderID string            `json:"provider_id"` // as answered to the call; the same for all copies of a call
	From       string            `json:"from,omitempty"`
	Tags       []string          `json:"tags,omitempty"` // SendGrid: categories
	Metadata   map[string]string `json:"metadata,omitempty"`
	Outcome    string            `json:"outcome"` // see Outcomes
	// Swallowed: a suspension without Fault.Release keeps it for ever, whatever
	// its outcome would have been; also one that came between its acceptance and
	// its last event.
	Swallowed bool `json:"swallowed,omitempty"`
	// Muted: a fault that stood when it was accepted keeps all its webhooks back.
	// Look-ups show its events.
	Muted bool `json:"muted,omitempty"`
	// Visible lists the other recipients that this copy names in To and Cc. It
	// is empty for an individual message; anything else is a leak in a batch.
	Visible []string `json:"visible,omitempty"`
	Content          // empty unless Options.KeepContent
}

// copy returns the copy r for the outside.
func (m *mailing) copy(r record) Copy {
	c := Copy{
		ID: string(m.id(r)), Account: m.account.name, Address: string(r.addr), At: m.accepted(),
		ProviderID: m.account.provider.id(m), From: m.head.from, Tags: m.head.tags,
		Outcome: r.outcome.String(), Visible: m.visible(r),
	}
	g := m.group(r.group)
	c.Swallowed = g.park != nil && g.park.swallows() || m.swallowed.Load()&(1<<r.outcome) != 0
	c.Muted = g.mute != nil && len(g.mute.events) == 0
	m.metadata(r, func(key int, value []byte) {
		if c.Metadata == nil {
			c.Metadata = map[string]string{}
		}
		c.Metadata[m.head.keys[key-1]] = string(value)
	})
	if m.extra != nil && m.extra.content != nil {
		c.Content = m.extra.content[r.i]
	}
	return c
}

// visible returns who else is named in the message of which r is a copy.
func (m *mailing) visible(r record) []string {
	var run []record
	for c := m.cursor(); ; {
		x, ok := c.next()
		if !ok || x.flags&flagJoint == 0 && x.i > r.i {
			break
		}
		if x.flags&flagJoint == 0 {
			run = run[:0]
		}
		run = append(run, x)
	}
	var list []string
	for _, x := range run {
		if x.i != r.i && x.flags&flagBCC == 0 {
			list = append(list, string(x.addr))
		}
	}
	return list
}

// Copies returns the copies with the given id: the value of the recipient key,
// or an address. Looking by an address that is not the id reads through
// everything kept.
func (s *Simulator) Copies(id string) []Copy {
	st := s.store.Load()
	var list []Copy
	for _, ref := range st.index.refs(st, []byte(id)) {
		m := st.mailing(ref)
		if r, ok := m.record(ref - m.first); ok {
			list = append(list, m.copy(r))
		}
	}
	addr := lower([]byte(id))
	if bytes.IndexByte(addr, '@') < 0 {
		return list
	}
	if s.opts.RecipientKey == "" {
		if len(list) == 0 && string(addr) != id {
			return s.Copies(string(addr))
		}
		return list
	}
	for _, m := range st.all() {
		for c := m.cursor(); ; {
			r, ok := c.next()
			if !ok {
				break
			}
			if bytes.Equal(lower(r.addr), addr) && string(m.id(r)) != id {
				list = append(list, m.copy(r))
			}
		}
	}
	return list
}

// EachCopy calls f once for each id that has a copy, with the number of its
// copies at each account that has any, in the order of the first copies. The map
// is reused: it is valid until f returns. Copies accepted meanwhile may or may
// not be seen.
func (s *Simulator) EachCopy(f func(id string, perAccount map[string]int)) {
	s.eachCopy(func(id string, per map[string]int) bool { f(id, per); return true })
}

func (s *Simulator) eachCopy(f func(id string, perAccount map[string]int) bool) {
	st := s.store.Load()
	per := map[string]int{}
	for _, m := range st.all() {
		for c := m.cursor(); ; {
			r, ok := c.next()
			if !ok {
				break
			}
			id := m.id(r)
			if st.index.counts(st, id, m.first+r.i, per) && !f(string(id), per) {
				return
			}
		}
	}
}
