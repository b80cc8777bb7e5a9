package models

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Action is what a control orders. The words are part of the API: the audit
// trail shows them.
type Action string

// The actions.
const (
	StopBatch    Action = "batch.stop"    // no new call for it
	ResumeBatch  Action = "batch.resume"  // ends a stop
	CancelBatch  Action = "batch.cancel"  // what was not handed over yet is cancelled; for ever
	RetryBatch   Action = "batch.retry"   // what failed and can be sent again without risk goes out again
	ReleaseBatch Action = "batch.release" // what is held for an unknown outcome goes out again, and may double

	PauseUser  Action = "user.pause" // no new call for any batch of the user
	ResumeUser Action = "user.resume"
	SetSenders Action = "user.senders" // which addresses the user may send from

	ProviderOffline Action = "provider.offline" // no call through the provider
	ProviderDrain   Action = "provider.drain"   // only mail that no other provider may take
	ProviderOnline  Action = "provider.online"  // ends both
	ProviderProbe   Action = "provider.probe"   // forgets why mail keeps away from it: it is tried at once

	AddBlock    Action = "block.add"
	RemoveBlock Action = "block.remove"

	HoldOld   Action = "hold.add"  // no new call for batches that were accepted before a time
	LiftHolds Action = "hold.lift" // ends all holds

	// The rest changes no rule: it is written down for the audit trail.
	CreatedKey Action = "key.create"
	RevokedKey Action = "key.revoke"
	Requeued   Action = "parked.requeue"
	Discarded  Action = "parked.discard"
)

// Withholds reports whether the action keeps mail from going out that went out
// before.
func (a Action) Withholds() bool {
	switch a { //nolint:exhaustive // the others let it go, or do not concern it
	case StopBatch, CancelBatch, PauseUser, ProviderOffline, ProviderDrain, AddBlock, HoldOld:
		return true
	}
	return false
}

// Control is one line of the journal of orders, which only grows: numbers 1, 2,
// 3, …. A line is appended by compare-and-set on its number and never changes.
// The journal is the audit trail, too.
type Control struct {
	Number int       `json:"n"`
	Token  Token     `json:"t"` // who appended: settles an append whose outcome is unknown
	At     time.Time `json:"at"`
	By     string    `json:"by"`            // a user's id, or "cli:" and the name of who ran the command
	Why    string    `json:"why,omitempty"` // in the words of who ordered it
	Action Action    `json:"do"`

	Batch    ID        `json:"b,omitzero"`
	Log      ID        `json:"l,omitzero"` // of a release: only this log
	User     string    `json:"u,omitempty"`
	Provider string    `json:"a,omitempty"` // of provider actions; of a release: only what is held at this provider
	Senders  []string  `json:"s,omitempty"` // of user.senders: addresses, or @domain for all of a domain
	Block    *Block    `json:"bl,omitempty"`
	Before   time.Time `json:"bf,omitzero"` // of hold.add
	Subject  string    `json:"o,omitempty"` // of actions that are only written down: what it was about
	Request  ID        `json:"q,omitzero"`  // of a retry or release: the request's, however often that is repeated
}

// Encode returns the stored form of c.
func (c *Control) Encode() []byte { return packJSON(c) }

// DecodeControl reverses Control.Encode.
func DecodeControl(raw []byte) (c Control, err error) { return c, unpackJSON(raw, &c) }

// Block is a rule that keeps mail from going out. It meets mail that all of its
// set fields meet.
type Block struct {
	ID       string    `json:"id"`
	Provider string    `json:"provider,omitempty"`
	User     string    `json:"user,omitempty"`
	Sender   string    `json:"sender,omitempty"` // an address, or @domain
	Domain   string    `json:"domain,omitempty"` // of the recipient
	Fail     bool      `json:"fail,omitempty"`   // mail fails with reason blocked; otherwise it waits
	By       string    `json:"by,omitempty"`
	Why      string    `json:"why,omitempty"`
	At       time.Time `json:"at,omitzero"`
}

// ProviderSwitch is a provider's position as operators set it.
type ProviderSwitch struct {
	Mode  Action    `json:"mode"` // ProviderOnline where nobody set it
	Since time.Time `json:"since,omitzero"`
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
}

// BatchRule is what the journal says about one batch. The zero value is: go on.
type BatchRule struct {
	Waits    string    // why nothing may be sent now; empty: go on
	Cancel   *Control  // it is cancelled
	Releases []Control // retries and releases, in order
}

// Rules is the journal of orders, folded. It may be read and applied to by many
// goroutines at once.
type Rules struct {
	mu        sync.RWMutex
	upTo      int
	batches   map[ID]*batchOrders
	users     map[string]*userOrders
	providers map[string]ProviderSwitch
	probes    map[string]int
	blocks    []Block
	holds     []Control
	lifted    int
}

type batchOrders struct {
	stop, cancel *Control
	releases     []Control
}

type userOrders struct {
	pause   *Control
	senders []string
	set     bool
}

// NewRules returns the rules of an empty journal.
func NewRules() *Rules {
	return &Rules{batches: map[ID]*batchOrders{}, users: map[string]*userOrders{}, providers: map[string]ProviderSwitch{}, probes: map[string]int{}}
}

// UpTo is the number of the last line that was applied.
func (r *Rules) UpTo() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.upTo
}

// Lifted is the number of the last line that let mail of many batches go on, which
// nobody announces: a provider back online or tried again, a block removed, a user
// resumed, the holds lifted.
func (r *Rules) Lifted() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.lifted
}

// Apply adds the next line. Lines that were applied before change nothing; it
// reports false for one that leaves a gap.
func (r *Rules) Apply(c Control) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Number <= r.upTo {
		return true
	}
	if c.Number != r.upTo+1 {
		return false
	}
	r.upTo = c.Number
	switch c.Action { //nolint:exhaustive // what lets mail go on
	case ProviderOnline, ProviderDrain, ProviderProbe, RemoveBlock, ResumeUser, LiftHolds:
		r.lifted = c.Number
	}
	switch c.Action {
	case StopBatch, ResumeBatch, CancelBatch, RetryBatch, ReleaseBatch:
		r.applyBatch(c)
	case PauseUser:
		r.user(c.User).pause = &c
	case ResumeUser:
		r.user(c.User).pause = nil
	case SetSenders:
		u := r.user(c.User)
		u.senders, u.set = c.Senders, true
	case ProviderOffline, ProviderDrain, ProviderOnline:
		r.providers[c.Provider] = ProviderSwitch{Mode: c.Action, Since: c.At, By: c.By, Why: c.Why}
	case ProviderProbe:
		r.probes[c.Provider] = c.Number
	case AddBlock:
		if c.Block != nil {
			b := *c.Block
			b.By, b.Why, b.At = c.By, c.Why, c.At
			r.blocks = append(r.without(b.ID), b)
		}
	case RemoveBlock:
		if c.Block != nil {
			r.blocks = r.without(c.Block.ID)
		}
	case HoldOld:
		r.holds = append(slices.Clone(r.holds), c)
	case LiftHolds:
		r.holds = nil
	case CreatedKey, RevokedKey, Requeued, Discarded:
	}
	return true
}

func (r *Rules) applyBatch(c Control) {
	o := r.batches[c.Batch]
	if o == nil {
		o = &batchOrders{}
		r.batches[c.Batch] = o
	}
	switch c.Action { //nolint:exhaustive // of batches
	case StopBatch:
		o.stop = &c
	case ResumeBatch:
		o.stop = nil
	case CancelBatch:
		if o.cancel == nil {
			o.cancel = &c
		}
	default:
		o.releases = append(slices.Clone(o.releases), c)
	}
	if o.stop == nil && o.cancel == nil && len(o.releases) == 0 {
		delete(r.batches, c.Batch)
	}
}

func (r *Rules) user(id string) *userOrders {
	u := r.users[id]
	if u == nil {
		u = &userOrders{}
		r.users[id] = u
	}
	return u
}

func (r *Rules) without(block string) []Block {
	return slices.DeleteFunc(slices.Clone(r.blocks), func(b Block) bool { return b.ID == block })
}

// Batch says what the journal says about a batch.
func (r *Rules) Batch(b *Batch) BatchRule {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out BatchRule
	if o := r.batches[b.ID]; o != nil {
		out.Cancel, out.Releases = o.cancel, o.releases
		if o.stop != nil {
			out.Waits = "stopped by " + o.stop.By
		}
	}
	if u := r.users[b.User]; u != nil && u.pause != nil {
		out.Waits = "the user is paused"
	}
	for i := range r.holds {
		if b.Created().Before(r.holds[i].Before) {
			out.Waits = "held after a restore, until an operator lifts it"
		}
	}
	return out
}

// Stopped reports whether the batch itself is stopped or cancelled.
func (r *Rules) Stopped(batch ID) (stopped, cancelled bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	o := r.batches[batch]
	return o != nil && o.stop != nil, o != nil && o.cancel != nil
}

// StoppedBy is who stopped a batch; empty: nobody, or it was resumed.
func (r *Rules) StoppedBy(batch ID) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if o := r.batches[batch]; o != nil && o.stop != nil {
		return cmp.Or(o.stop.By, "somebody")
	}
	return ""
}

// Paused reports whether a user is paused.
func (r *Rules) Paused(user string) bool { return r.PausedBy(user) != "" }

// PausedBy is who paused a user; empty: nobody.
func (r *Rules) PausedBy(user string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u := r.users[user]; u != nil && u.pause != nil {
		return cmp.Or(u.pause.By, "somebody")
	}
	return ""
}

// Senders lists the senders that a user may use; set is false where nobody
// has said so.
func (r *Rules) Senders(user string) (list []string, set bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u := r.users[user]; u != nil {
		return slices.Clone(u.senders), u.set
	}
	return nil, false
}

// Provider says how a provider is switched.
func (r *Rules) Provider(name string) ProviderSwitch {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s, ok := r.providers[name]; ok {
		return s
	}
	return ProviderSwitch{Mode: ProviderOnline}
}

// Probe is the number of the newest order to try a provider again; 0: there is none.
func (r *Rules) Probe(provider string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.probes[provider]
}

// Blocks lists the block rules, oldest first.
func (r *Rules) Blocks() []Block {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.blocks // replaced, never changed
}

// Holds lists the holds of old batches.
func (r *Rules) Holds() []Control {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.holds
}

// Meets reports whether a block meets mail of b to a recipient through an
// provider. An empty provider or recipient means any: then a rule that names
// one does not meet.
func (bl *Block) Meets(b *Batch, provider, recipient string) bool {
	return (bl.Provider == "" || bl.Provider == provider) && (bl.User == "" || bl.User == b.User) &&
		(bl.Sender == "" || SenderMatches(bl.Sender, b.Content.From.Email)) &&
		(bl.Domain == "" || strings.EqualFold(bl.Domain, DomainOf(recipient)))
}

// SenderMatches reports whether a pattern, an address or @domain, covers an
// address.
func SenderMatches(pattern, address string) bool {
	if strings.HasPrefix(pattern, "@") {
		return strings.EqualFold(pattern[1:], DomainOf(address))
	}
	return strings.EqualFold(pattern, address)
}

// DomainOf is what stands behind the last @ of an address.
func DomainOf(address string) string {
	return address[strings.LastIndexByte(address, '@')+1:]
}

// Forget drops the releases of batches that were accepted before a time, by when
// their content is gone: nobody of them can be let go any more. That one was
// stopped or cancelled is kept.
func (r *Rules) Forget(before time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := idBefore(before)
	for id, o := range r.batches {
		if bytes.Compare(id[:], limit[:]) >= 0 {
			continue
		}
		if o.releases = nil; o.stop == nil && o.cancel == nil {
			delete(r.batches, id)
		}
	}
}

// idBefore is lower than the id of every batch accepted at t or later.
func idBefore(t time.Time) (id ID) {
	ms := max(t.UnixMilli(), 0)
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}
