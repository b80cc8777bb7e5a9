package simulator

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/match"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// A Fault makes accounts misbehave until it is cleared, or for the next Times
// requests. Faults apply in the order in which they were injected. The first one
// that decides the answer to a call wins; faults of accepted mail add up.
//
// A Pattern restricts a fault to calls that hold a matching recipient. A fault of
// accepted mail or of webhooks applies only to the copies and events of matching
// recipients.
type Fault struct {
	ID      string `json:"id,omitempty"`      // set by Inject
	Account string `json:"account,omitempty"` // empty = every account
	Mode    string `json:"mode"`              // one of the Mode constants

	Status int               `json:"status,omitempty"` // for status
	Body   string            `json:"body,omitempty"`   // for answers; empty = the provider's
	Header map[string]string `json:"header,omitempty"` // added to the answer

	// Delay is the time for the modes delay and events-delay. For all others it is
	// the time before the answer. It is real time.
	Delay time.Duration `json:"delay,omitempty"`
	// RetryAfter is the time that the modes rate and full name. It is real time. With rate, 0
	// means one minute of simulated time at Mailgun; with full, that no time is named.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// After is how many requests pass before the first that the fault applies to.
	After int `json:"after,omitempty"`
	// Times is how many requests the fault applies to. 0 means until it is cleared.
	Times int `json:"times,omitempty"`
	// Share is the portion of requests that the fault applies to, by the seed. 0
	// means all.
	Share float64 `json:"share,omitempty"`
	// Pattern selects recipients: a glob, or a regular expression if it begins with ^
	// or is between slashes. Empty means all.
	Pattern string `json:"pattern,omitempty"`
	// Above restricts the fault to calls with more recipients. 0 means all.
	Above int `json:"above,omitempty"`
	// Events names the events that suspend and events-off apply to, separated by
	// commas. Empty means all.
	Events string `json:"events,omitempty"`
	// Store stores the mail although the answer says otherwise.
	Store bool `json:"store,omitempty"`
	// Release makes the parked events happen when a suspension is cleared.
	Release bool `json:"release,omitempty"`
}

// Validate returns an error if f is not valid.
func (f Fault) Validate() error {
	_, err := f.compile()
	return err
}

// A fault is a Fault in use. Only left, seen, met and cleared change; faults.mu
// guards the first three.
type fault struct {
	Fault
	class     modeClass
	condition provider.ConditionKind
	pattern   *match.Pattern
	events    []string // names; empty = all
	outcome   message.Outcome
	number    uint64
	cleared   atomic.Bool
	left      int
	seen      uint64
	met       int
}

// answer returns what the provider answers because of the fault.
func (f *fault) answer(p *provider.Provider) provider.Answer {
	a := p.Refused(provider.Condition{Kind: f.condition, Status: f.Status, RetryAfter: f.RetryAfter})
	if f.Body != "" {
		a.Body = f.Body
	}
	maps.Copy(a.Header, f.Header)
	return a
}

// faults are all faults in use.
type faults struct {
	seed provider.Seed
	mu   sync.Mutex
	list []*fault
	last uint64
}

// A verdict is what the faults do to one call.
type verdict struct {
	delay  time.Duration
	answer *fault   // of class answer, spoil or unread; nil = answer as usual
	mail   []*fault // of class mail
}

// mode returns the mode that decides the answer or its time.
func (v verdict) mode() string {
	switch {
	case v.answer != nil:
		return v.answer.Mode
	case v.delay > 0:
		return ModeDelay
	}
	return ""
}

// judge applies the faults of the given classes to a call of the account with the
// given recipients, and uses them up.
func (fs *faults) judge(account string, recipients []string, classes ...modeClass) (v verdict) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range slices.Clone(fs.list) {
		if !slices.Contains(classes, f.class) || f.Account != "" && f.Account != account {
			continue
		}
		decides := f.class != classMail && f.class != classDelay
		if decides && v.answer != nil || !f.concerns(recipients) || !fs.use(f) {
			continue
		}
		switch {
		case f.class == classMail:
			v.mail = append(v.mail, f)
		case f.class == classDelay:
			v.delay += f.Delay
		default:
			v.answer = f
			v.delay += f.Delay
		}
		fs.drop(f)
	}
	return v
}

// concerns reports whether f applies to a call with the recipients.
func (f *fault) concerns(recipients []string) bool {
	if f.Above > 0 && len(recipients) <= f.Above {
		return false
	}
	return f.pattern == nil || slices.ContainsFunc(recipients, f.pattern.Match)
}

// use takes one of the times that f has left. It reports false if there is none, if
// the request is one of those that pass first, or if the share excludes it.
func (fs *faults) use(f *fault) bool {
	if f.Times > 0 && f.left == 0 {
		return false
	}
	if f.seen++; f.seen <= uint64(f.After) {
		return false
	}
	if f.Share > 0 && float64(fs.seed.Mix(uint64(provider.ForShare), f.number, f.seen)>>11)/(1<<53) >= f.Share {
		return false
	}
	f.left--
	f.met++
	return true
}

// drop removes f if it is used up. A suspension stays until it is cleared, because
// parked mail depends on it.
func (fs *faults) drop(f *fault) {
	if f.Times > 0 && f.left == 0 && !f.suspends() {
		fs.list = slices.DeleteFunc(fs.list, func(o *fault) bool { return o == f })
	}
}

func (f *fault) suspends() bool { return f.Mode == ModeSuspend }

// selects reports whether f applies to events of the stage. The case of names does not count.
func (f *fault) selects(st *provider.Stage) bool {
	return len(f.events) == 0 || slices.ContainsFunc(f.events, func(name string) bool {
		return strings.EqualFold(name, st.Event) || strings.EqualFold(name, st.Kind)
	})
}

// swallows reports whether nothing ever happens to the mail that f suspends.
func (f *fault) swallows() bool { return f.suspends() && !f.Release && len(f.events) == 0 }

// mutesUntilChanged reports whether f suppresses webhooks of mail that was accepted
// before it.
func (f *fault) mutesUntilChanged() bool { return f.Mode == ModeEventsOff && f.Times == 0 }

// inForce returns the faults of the account that satisfy want. It does not use
// them up.
func (fs *faults) inForce(account string, want func(*fault) bool) (list []*fault) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.list {
		if (f.Account == "" || f.Account == account) && (f.Times == 0 || f.left > 0) && want(f) {
			list = append(list, f)
		}
	}
	return list
}

// take uses up one time of f. It reports false if there is none left.
func (fs *faults) take(f *fault) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !slices.Contains(fs.list, f) || !fs.use(f) {
		return false
	}
	fs.drop(f)
	return true
}

// Inject puts the fault f in force and returns its id. It panics if f is not valid;
// see Fault.Validate.
func (s *Simulator) Inject(f Fault) (id string) {
	id, err := s.inject(f)
	if err != nil {
		panic(err)
	}
	return id
}

func (s *Simulator) inject(f Fault) (id string, err error) {
	c, err := f.compile()
	if err != nil {
		return "", err
	}
	if c.Account != "" && s.account(c.Account) == nil {
		return "", fmt.Errorf("fault: %w: %q", errNoAccount, c.Account)
	}
	fs := &s.faults
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.last++
	c.number = fs.last
	c.ID = "f" + strconv.FormatUint(fs.last, 10)
	fs.list = append(fs.list, c)
	return c.ID, nil
}

// Faults returns the faults in force, in the order in which they apply. Times is
// how many are left.
func (s *Simulator) Faults() []Fault {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	list := []Fault{}
	for _, f := range s.faults.list {
		c := f.Fault
		if c.Times > 0 {
			if c.Times = f.left; c.Times == 0 {
				continue
			}
		}
		list = append(list, c)
	}
	return list
}

// Met returns how many requests the fault with this id has applied to. It returns 0
// for a fault that is cleared or used up. It does not count webhooks that a fault
// without Times suppresses for mail that was accepted before it.
func (s *Simulator) Met(id string) int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, f := range s.faults.list {
		if f.ID == id {
			return f.met
		}
	}
	return 0
}

// Clear ends the fault with this id. If Fault.Release is set, the events that it
// parked happen now, otherwise never. Calls that hang because of it continue to hang
// until their client leaves.
func (s *Simulator) Clear(id string) { s.clear(func(f *fault) bool { return f.ID == id }) }

// ClearAll ends all faults of the account, or every fault if the name is empty.
func (s *Simulator) ClearAll(account string) {
	s.clear(func(f *fault) bool { return account == "" || f.Account == account })
}

func (s *Simulator) clear(which func(*fault) bool) (n int) {
	s.faults.mu.Lock()
	var gone []*fault
	s.faults.list = slices.DeleteFunc(s.faults.list, func(f *fault) bool {
		if which(f) {
			gone = append(gone, f)
		}
		return which(f)
	})
	s.faults.mu.Unlock()
	for _, f := range gone {
		f.cleared.Store(true) // before unpark, so that nothing is parked afterwards
		if f.suspends() {
			for _, a := range s.accountList() {
				a.outbox.unpark(f)
			}
		}
	}
	return len(gone)
}
