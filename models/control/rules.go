// Package control folds the command log into the rules that every process obeys.
package control

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// ProviderMode is the mode of a provider and who set it.
type ProviderMode struct {
	Mode  models.CommandKind `json:"mode"` // ProviderOnline unless an operator set another
	Since time.Time          `json:"since,omitzero"`
	By    string             `json:"by,omitempty"`
	Why   string             `json:"why,omitempty"`
}

// BatchRule has the commands that apply to a batch. The zero value has none.
type BatchRule struct {
	Waits    *models.Wait     // the command that withholds the batch; nil: sending is allowed
	Cancel   *models.Command  // nil: not cancelled
	Releases []models.Command // retries and releases, in order

	Reschedule *models.Command // the command that set its times; nil: they are those of its request
	Try        *models.Command // the newest command to try its mail now; nil: there is none
}

// Scheduled returns a batch with the times that are in effect.
func (r *BatchRule) Scheduled(b *models.Batch) *models.Batch {
	if r.Reschedule == nil {
		return b
	}
	return b.Rescheduled(r.Reschedule.Schedule)
}

// Rules is the state that the command log results in. All methods may be called by many goroutines at once.
type Rules struct {
	mu        sync.RWMutex
	upTo      int
	batches   map[models.ID]*batchCommands
	users     map[string]*userCommands
	limits    map[string]models.Limits // by ID of the user or key
	providers map[string]ProviderMode
	probes    map[string]probed
	blocks    []models.Block
	holds     []models.Command
	resumed   int // last command that resumed mail of all users
	erased    int

	userResumed int // last command that resumed mail of one user
}

type batchCommands struct {
	stop, cancel, reschedule, try *models.Command
	releases                      []models.Command
}

// probed is the newest command to probe a provider.
type probed struct {
	Number int       `json:"n"`
	At     time.Time `json:"at"`
}

type userCommands struct {
	pause, disable *models.Command
	sessionsEnded  int // number of the last command that ended the user's sessions
	resumed        int // number of the last command that resumed the user
	senders        []string
	set            bool
	defaults       models.SendDefaults
}

// NewRules returns the rules of an empty command log.
func NewRules() *Rules {
	return &Rules{
		batches:   map[models.ID]*batchCommands{},
		users:     map[string]*userCommands{},
		limits:    map[string]models.Limits{},
		providers: map[string]ProviderMode{},
		probes:    map[string]probed{},
	}
}

// UpTo returns the number of the last command that was applied.
func (r *Rules) UpTo() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.upTo
}

// Resumptions returns the number of the last command that resumed many batches without a message for each. It set a
// provider online or probed it, removed a block, resumed a user, or lifted the holds.
func (r *Rules) Resumptions() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return max(r.resumed, r.userResumed)
}

// ResumedAfter reports whether a command with a higher number resumed mail of a user, as Resumptions says.
func (r *Rules) ResumedAfter(number int, user string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.resumed > number {
		return true
	}
	u := r.users[user]
	return u != nil && u.resumed > number
}

// Erasures returns the number of the last command about an erasure. Recipients that were
// read before it have to be read again.
func (r *Rules) Erasures() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.erased
}

// resuming are the commands that resume mail of all users.
var resuming = []models.CommandKind{
	models.ProviderOnline, models.ProviderDrain, models.ProviderProbe, models.RemoveBlock, models.LiftHolds,
}

// Apply applies the next command. It ignores commands that were applied before, and
// returns false if the number leaves a gap.
func (r *Rules) Apply(c models.Command) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Number <= r.upTo {
		return true
	}
	if c.Number != r.upTo+1 {
		return false
	}
	r.upTo = c.Number
	if slices.Contains(resuming, c.Kind) {
		r.resumed = c.Number
	}
	if c.Kind.Recorded() {
		return true
	}
	switch c.Kind {
	case models.StopBatch, models.ResumeBatch, models.CancelBatch, models.RetryBatch, models.ReleaseBatch,
		models.RescheduleBatch, models.TryBatch:
		r.applyBatch(c)
	case models.PauseUser:
		r.user(c.User).pause = &c
	case models.ResumeUser:
		u := r.user(c.User)
		u.pause, u.resumed, r.userResumed = nil, c.Number, c.Number
	case models.DisableUser:
		u := r.user(c.User)
		u.disable, u.sessionsEnded = &c, c.Number
	case models.EnableUser:
		r.user(c.User).disable = nil
	case models.EndSessions:
		r.user(c.User).sessionsEnded = c.Number
	case models.SetSenders:
		u := r.user(c.User)
		u.senders, u.set = c.Senders, true
	case models.SetDefaults:
		r.user(c.User).defaults = c.Defaults
	case models.SetLimits:
		r.limits[cmp.Or(c.Subject, c.User)] = c.Limits
	case models.ProviderOffline, models.ProviderDrain, models.ProviderOnline:
		r.providers[c.Provider] = ProviderMode{Mode: c.Kind, Since: c.At, By: c.By, Why: c.Why}
	case models.ProviderProbe:
		r.probes[c.Provider] = probed{c.Number, c.At}
	case models.AddBlock:
		if c.Block != nil {
			b := *c.Block
			b.By, b.Why, b.At = c.By, c.Why, c.At
			r.blocks = append(r.without(b.ID), b)
		}
	case models.RemoveBlock:
		if c.Block != nil {
			r.blocks = r.without(c.Block.ID)
		}
	case models.HoldOld:
		r.holds = append(slices.Clone(r.holds), c)
	case models.LiftHolds:
		r.holds = nil
	case models.EraseAddress, models.AddressErased:
		r.erased = c.Number
	}
	return true
}

func (r *Rules) applyBatch(c models.Command) {
	o := r.batches[c.Batch]
	if o == nil {
		o = &batchCommands{}
		r.batches[c.Batch] = o
	}
	switch c.Kind { // the commands for batches
	case models.StopBatch:
		o.stop = &c
	case models.ResumeBatch:
		o.stop = nil
	case models.CancelBatch:
		if o.cancel == nil {
			o.cancel = &c
		}
	case models.RescheduleBatch:
		o.reschedule = &c
	case models.TryBatch:
		o.try = &c
	default:
		o.releases = append(slices.Clone(o.releases), c)
	}
	if o.empty() {
		delete(r.batches, c.Batch)
	}
}

// empty reports whether there is no command any more.
func (o *batchCommands) empty() bool {
	return o.stop == nil && o.cancel == nil && o.reschedule == nil && o.try == nil && len(o.releases) == 0
}

func (r *Rules) user(id string) *userCommands {
	u := r.users[id]
	if u == nil {
		u = &userCommands{}
		r.users[id] = u
	}
	return u
}

func (r *Rules) without(block string) []models.Block {
	return slices.DeleteFunc(slices.Clone(r.blocks), func(b models.Block) bool { return b.ID == block })
}

// Batch returns the commands that apply to a batch.
func (r *Rules) Batch(b *models.Batch) BatchRule {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out BatchRule
	if o := r.batches[b.ID]; o != nil {
		out.Cancel, out.Releases, out.Reschedule, out.Try = o.cancel, o.releases, o.reschedule, o.try
		if o.stop != nil {
			out.Waits = waitFor(models.WaitBatchStopped, "stopped by "+o.stop.By, o.stop)
		}
	}
	if u := r.users[b.User]; u != nil && u.pause != nil {
		out.Waits = waitFor(models.WaitUserPaused, "the user is paused", u.pause)
	}
	for i := range r.holds {
		if b.Created().Before(r.holds[i].Before) {
			out.Waits = waitFor(models.WaitRestore, "held after a restore, until an operator lifts the hold", &r.holds[i])
		}
	}
	return out
}

// Commanded reports whether a command for a batch is in effect.
func (r *Rules) Commanded(batch models.ID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.batches[batch] != nil
}

// Scheduled returns a batch with the times that are in effect.
func (r *Rules) Scheduled(b *models.Batch) *models.Batch {
	rule := r.Batch(b)
	return rule.Scheduled(b)
}

// waitFor returns the wait for the end of what a command began.
func waitFor(code models.WaitCode, text string, c *models.Command) *models.Wait {
	return &models.Wait{Code: code, Text: text, By: c.By, Why: c.Why, Since: c.At}
}

// Stopped reports whether the batch itself is stopped or cancelled.
func (r *Rules) Stopped(batch models.ID) (stopped, cancelled bool) {
	stop, cancel := r.Stops(batch)
	return stop != nil, cancel != nil
}

// StoppedBy returns who stopped a batch, or "" if it is not stopped.
func (r *Rules) StoppedBy(batch models.ID) string {
	if stop, _ := r.Stops(batch); stop != nil {
		return cmp.Or(stop.By, "unknown")
	}
	return ""
}

// Stops returns the commands that stopped and that cancelled a batch, or nil.
func (r *Rules) Stops(batch models.ID) (stop, cancel *models.Command) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if o := r.batches[batch]; o != nil {
		return o.stop, o.cancel
	}
	return nil, nil
}

// Paused reports whether a user is paused.
func (r *Rules) Paused(user string) bool { return r.PausedBy(user) != "" }

// PausedBy returns who paused a user, or "" if the user is not paused.
func (r *Rules) PausedBy(user string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u := r.users[user]; u != nil && u.pause != nil {
		return cmp.Or(u.pause.By, "unknown")
	}
	return ""
}

// Limits returns the limits that are set for a user or a key.
func (r *Rules) Limits(id string) models.Limits {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.limits[id]
}

// Disabled returns the command that disabled a user, or nil if the user is not disabled.
func (r *Rules) Disabled(user string) *models.Command {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u := r.users[user]; u != nil {
		return u.disable
	}
	return nil
}

// SessionsEnded returns the number of the last command that ended the sessions of a user, or
// 0. A session that began when the command log had fewer commands has ended.
func (r *Rules) SessionsEnded(user string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u := r.users[user]; u != nil {
		return u.sessionsEnded
	}
	return 0
}

// Senders returns the senders that a user may use. If no operator has set them, set is false.
func (r *Rules) Senders(user string) (list []string, set bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u := r.users[user]; u != nil {
		return slices.Clone(u.senders), u.set
	}
	return nil, false
}

// Defaults returns what batches of a user have if their requests name nothing else.
func (r *Rules) Defaults(user string) models.SendDefaults {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u := r.users[user]; u != nil {
		return u.defaults
	}
	return models.SendDefaults{}
}

// Provider returns the mode of a provider.
func (r *Rules) Provider(name string) ProviderMode {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s, ok := r.providers[name]; ok {
		return s
	}
	return ProviderMode{Mode: models.ProviderOnline}
}

// Probe returns the number of the newest command to probe a provider, or 0.
func (r *Rules) Probe(provider string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.probes[provider].Number
}

// Asked returns when an operator last asked to use a provider again, by a probe or by bringing it online; zero: never.
func (r *Rules) Asked(provider string) time.Time {
	r.mu.RLock()
	defer r.mu.RUnlock()
	at := r.probes[provider].At
	if m := r.providers[provider]; m.Mode == models.ProviderOnline {
		at = models.LaterOf(at, m.Since)
	}
	return at
}

// Blocks lists the block rules, oldest first.
func (r *Rules) Blocks() []models.Block {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.blocks // the slice is replaced, never changed
}

// Holds lists the holds of older batches.
func (r *Rules) Holds() []models.Command {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.holds
}

// Forget drops releases from before a time of batches that were accepted before it. Each has long been applied, or the
// content of its batch has been removed. It keeps stops, cancellations and changed times, except of batches with IDs
// less than purged, which do not exist any more.
func (r *Rules) Forget(before time.Time, purged models.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := idBefore(before)
	for id, o := range r.batches {
		if !less(id, limit) && !less(id, purged) {
			continue
		}
		if o.try != nil && o.try.At.Before(before) {
			o.try = nil
		}
		o.releases = slices.DeleteFunc(slices.Clone(o.releases), func(c models.Command) bool { return c.At.Before(before) })
		if o.empty() || less(id, purged) {
			delete(r.batches, id)
		}
	}
}

// idBefore returns an ID that is lower than those of all batches accepted at t or later.
func idBefore(t time.Time) (id models.ID) {
	ms := max(t.UnixMilli(), 0)
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}

// less reports whether a is of an earlier batch than b.
func less(a, b models.ID) bool { return bytes.Compare(a[:], b[:]) < 0 }
