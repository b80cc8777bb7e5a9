package simulator

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A Fault makes accounts misbehave until it is cleared, or for the next Times
// requests. Faults are asked in the order in which they were injected; the first
// that decides the answer to a call wins, while those that concern accepted mail
// add up.
//
// Pattern restricts a fault to calls that hold a matching recipient and, where
// accepted mail or webhooks are concerned, to the copies and events of matching
// recipients.
type Fault struct {
	ID      string `json:"id,omitempty"`      // set by Inject
	Account string `json:"account,omitempty"` // empty = every account
	Mode    string `json:"mode"`              // one of the Mode constants

	Status int               `json:"status,omitempty"` // for status
	Body   string            `json:"body,omitempty"`   // for answers; empty = the vendor's
	Header map[string]string `json:"header,omitempty"` // added to the answer

	Delay      time.Duration `json:"delay,omitempty"`       // for delay and events-delay; otherwise before the answer. Real time
	RetryAfter time.Duration `json:"retry_after,omitempty"` // for rate; real time. Mailgun: 0 = one minute of simulated time
	Times      int           `json:"times,omitempty"`       // for the next N requests that it applies to; 0 = until cleared
	Share      float64       `json:"share,omitempty"`       // portion of the requests that it applies to, by the seed; 0 = all
	Pattern    string        `json:"pattern,omitempty"`     // recipients: glob, or regexp if it begins with ^ or stands between slashes; empty = all
	Events     string        `json:"events,omitempty"`      // for suspend and events-off: names of the events, separated by commas; empty = all
	Store      bool          `json:"store,omitempty"`       // the mail is stored although the answer says otherwise
	Release    bool          `json:"release,omitempty"`     // for suspend: when it is cleared, the parked events happen
}

// Validate reports what is wrong with f.
func (f Fault) Validate() error {
	_, err := f.compile()
	return err
}

// A fault is a Fault in use. Only left, seen and met change, guarded by the set.
type fault struct {
	Fault
	class   modeClass
	pattern *pattern
	events  names
	outcome outcome
	number  uint64
	cleared atomic.Bool
	left    int
	seen    uint64
	met     int
}

// faults are all faults in use.
type faults struct {
	s     *Simulator
	mu    sync.Mutex
	list  []*fault
	count atomic.Int32
	last  uint64
}

// A verdict is what the faults say of one call.
type verdict struct {
	delay  time.Duration
	answer *fault   // of class answer, spoil or unread; nil = answer as usual
	mail   []*fault // of class mail
}

func (v verdict) mode() string {
	if v.answer == nil {
		return ""
	}
	return v.answer.Mode
}

// judge asks the faults about a call of the account with the given recipients,
// and uses them up. Only those of the classes are asked.
func (fs *faults) judge(account string, recipients iter.Seq[[]byte], classes ...modeClass) (v verdict) {
	if fs.count.Load() == 0 {
		return verdict{}
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := 0; i < len(fs.list); i++ {
		f := fs.list[i]
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
		if fs.drop(f) {
			i--
		}
	}
	return v
}

func (f *fault) concerns(recipients iter.Seq[[]byte]) bool {
	if f.pattern == nil {
		return true
	}
	if recipients == nil {
		return false
	}
	for addr := range recipients {
		if f.pattern.match(addr) {
			return true
		}
	}
	return false
}

// use takes one of the times that f has left, unless its share says no.
func (fs *faults) use(f *fault) bool {
	if f.Times > 0 && f.left == 0 {
		return false
	}
	if f.seen++; f.Share > 0 && float64(fs.s.mix(saltShare, f.number, f.seen)>>11)/(1<<53) >= f.Share {
		return false
	}
	f.left--
	f.met++
	return true
}

// drop removes f if it is used up. A suspension stays until it is cleared,
// because parked mail depends on it.
func (fs *faults) drop(f *fault) bool {
	if f.Times == 0 || f.left > 0 || f.suspends() {
		return false
	}
	fs.remove(slices.Index(fs.list, f))
	return true
}

func (fs *faults) remove(i int) {
	fs.list = slices.Delete(fs.list, i, i+1)
	fs.count.Store(int32(len(fs.list)))
}

func (f *fault) suspends() bool { return f.Mode == ModeSuspend || f.Mode == ModeSuspended }

// swallows reports whether nothing ever happens to the mail that f suspends.
func (f *fault) swallows() bool { return f.suspends() && !f.Release && len(f.events) == 0 }

// standing returns the faults of the account that satisfy want. They are not
// used up.
func (fs *faults) standing(account string, want func(*fault) bool) (list []*fault) {
	if fs.count.Load() == 0 {
		return nil
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.list {
		if (f.Account == "" || f.Account == account) && (f.Times == 0 || f.left > 0) && want(f) {
			list = append(list, f)
		}
	}
	return list
}

// take uses up one time of f; false if it has none left.
func (fs *faults) take(f *fault) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !slices.Contains(fs.list, f) || !fs.use(f) {
		return false
	}
	fs.drop(f)
	return true
}

// Inject puts the fault f in force and returns its id. It panics if f is not
// valid, see Fault.Validate.
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
	fs.count.Store(int32(len(fs.list)))
	return c.ID, nil
}

var errNoAccount = errors.New("no such account")

// Faults returns the faults in force, in the order in which they are asked.
// Times is what is left of it.
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

// Met returns how many requests the fault with this id has applied to. It is 0
// for one that is cleared or used up, and does not count what a fault without
// Times keeps back of mail that was accepted before it.
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

// Clear ends the fault with this id. Mail that it parked has its events now if
// Fault.Release is set, and otherwise never. Calls that hang because of it keep
// hanging until their client leaves.
func (s *Simulator) Clear(id string) { s.clear(func(f *fault) bool { return f.ID == id }) }

// ClearAll ends all faults of the account; for the name "" all faults there are.
func (s *Simulator) ClearAll(account string) {
	s.clear(func(f *fault) bool { return account == "" || f.Account == account })
}

func (s *Simulator) clear(which func(*fault) bool) (n int) {
	s.faults.mu.Lock()
	var gone []*fault
	for i := 0; i < len(s.faults.list); i++ {
		if f := s.faults.list[i]; which(f) {
			gone = append(gone, f)
			s.faults.remove(i)
			i--
		}
	}
	s.faults.mu.Unlock()
	for _, f := range gone {
		f.cleared.Store(true) // first, so that nothing is parked any more afterwards
		if f.suspends() {
			for _, a := range s.accountList() {
				a.outbox.unpark(f)
			}
		}
	}
	return len(gone)
}
