package provider

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A List is a suppression list of a kind of provider.
type List struct {
	Name  string            // in the provider's API
	Drops message.Outcome   // of further mail to its addresses; Deliver: it is not dropped
	Of    []message.Outcome // that put an address on it
	// Status and Text say why. <code>, <enhanced> and <text> are those of the Reply.
	Status, Text string
	// Item is an entry as the API shows it: JSON with <address>, <list>, <status>, <text> and <words> of the text
	// (quoted), <unix>, <date> and <time>, and <id>.
	Item string
}

// A Listed is an address on a suppression list.
type Listed struct {
	Address string // in lower case
	At      time.Time
	List    string          // name in the provider's API, like bounces
	Status  string          // code of a bounce
	Text    string          // of a bounce; Mailgun: the tags of an unsubscription (all mail is dropped)
	Drops   message.Outcome // of its list
}

// Entry returns the entry that an outcome leads to, without address and time. ok is false if there is none.
func (p *Provider) Entry(o message.Outcome) (e Listed, ok bool) {
	for _, l := range p.Suppress {
		if slices.Contains(l.Of, o) {
			stages := p.Stages[o]
			r := replies[stages[len(stages)-1].Step]
			return Listed{List: l.Name, Status: r.fill(l.Status), Text: r.fill(l.Text), Drops: l.Drops}, true
		}
	}
	return e, false
}

// Named returns the suppression list with the name, or nil.
func (p *Provider) Named(name string) *List {
	if i := slices.IndexFunc(p.Suppress, func(l List) bool { return l.Name == name }); i >= 0 {
		return &p.Suppress[i]
	}
	return nil
}

// Lists are the suppression lists of an account. They are safe for concurrent use. An entry
// whose time has not come is not there yet.
type Lists struct {
	mu      sync.RWMutex
	entries map[string][]Listed // by address
}

// Put adds an entry, unless the list has the address.
func (l *Lists) Put(e Listed) {
	e.Address = strings.ToLower(e.Address)
	l.mu.Lock()
	defer l.mu.Unlock()
	same := func(o Listed) bool { return o.List == e.List }
	if there := l.entries[e.Address]; !slices.ContainsFunc(there, same) {
		if l.entries == nil {
			l.entries = map[string][]Listed{}
		}
		l.entries[e.Address] = append(there, e)
	}
}

// Remove removes an address from a list. It reports whether the list had it.
func (l *Lists) Remove(list, address string, now time.Time) bool {
	address = strings.ToLower(address)
	l.mu.Lock()
	defer l.mu.Unlock()
	there := l.entries[address]
	left := slices.DeleteFunc(slices.Clone(there), func(e Listed) bool { return e.List == list && !e.At.After(now) })
	if len(left) < len(there) {
		l.entries[address] = left
	}
	return len(left) < len(there)
}

// All returns the entries of a list, in the order of their addresses.
func (l *Lists) All(list string, now time.Time) (out []Listed) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, there := range l.entries {
		for _, e := range there {
			if e.List == list && !e.At.After(now) {
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, func(a, b Listed) int { return cmp.Compare(a.Address, b.Address) })
	return out
}

// Drops returns the outcome of mail to an address. ok is false if it is delivered.
func (l *Lists) Drops(address string, now time.Time) (o message.Outcome, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, e := range l.entries[strings.ToLower(address)] {
		if e.Drops != message.Deliver && !e.At.After(now) {
			return e.Drops, true
		}
	}
	return o, false
}

// Reset removes all entries.
func (l *Lists) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = nil
}

// Part returns at most limit elements of a list, without the first ones.
func Part[T any](list []T, offset, limit int) []T {
	list = list[min(offset, len(list)):]
	return list[:min(limit, len(list))]
}

// Entries returns the entries of all suppression lists.
func (p *Provider) Entries(now time.Time) (list []Listed) {
	for _, l := range p.Suppress {
		list = append(list, p.Lists.All(l.Name, now)...)
	}
	return list
}

// Items returns entries as the API shows them.
func (p *Provider) Items(entries []Listed) []json.RawMessage {
	out := make([]json.RawMessage, 0, len(entries))
	quote := func(text string) string { return string(Quote(nil, text)) }
	for _, e := range entries {
		words := strings.Fields(e.Text)
		if len(words) == 0 {
			words = []string{"*"} // all
		}
		out = append(out, json.RawMessage(strings.NewReplacer("<address>", quote(e.Address), "<list>", quote(e.List),
			"<status>", quote(e.Status), "<text>", quote(e.Text), "<words>", string(AppendList(nil, words)),
			"<unix>", strconv.FormatInt(e.At.Unix(), 10), "<date>", e.At.UTC().Format(time.RFC1123),
			"<time>", e.At.UTC().Format(time.RFC3339), "<utc>", e.At.UTC().Format(time.DateTime),
			"<id>", p.EntryID(e)).Replace(p.Named(e.List).Item)))
	}
	return out
}

// EntryID returns the id of an entry, at providers that have them.
func (p *Provider) EntryID(e Listed) string {
	hash := fnv.New64a()
	hash.Write([]byte(e.List + " " + e.Address))
	return p.IDs.UUID(hash.Sum64())
}
