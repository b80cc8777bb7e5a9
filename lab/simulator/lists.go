package simulator

import (
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// A Suppressed is an address on a suppression list of an account.
type Suppressed struct {
	Address string
	At      time.Time
	List    string // in the provider's API, like bounces
	Status  string // enhanced code of a bounce
	Text    string // of a bounce; Mailgun: the tags of an unsubscription, separated by spaces (all mail is dropped)
}

// Suppress puts an address on a suppression list of an account, as if earlier mail had led to it.
func (s *Simulator) Suppress(account string, e Suppressed) error {
	a := s.account(account)
	if a == nil {
		return fmt.Errorf("%w: %q", errNoAccount, account)
	}
	for i := range a.provider.Suppress {
		if l := &a.provider.Suppress[i]; l.Name == e.List {
			a.provider.Lists.Put(provider.Listed{Address: e.Address, At: e.At, Status: e.Status, Text: e.Text, List: l})
			return nil
		}
	}
	return fmt.Errorf("account %s has no list %q", account, e.List)
}

// Suppressed returns the addresses on a suppression list of an account, in their order.
func (s *Simulator) Suppressed(account, list string) (out []Suppressed) {
	if a := s.account(account); a != nil {
		for _, e := range a.provider.Lists.All(list, time.Now()) {
			out = append(out, Suppressed{Address: e.Address, At: e.At, List: list, Status: e.Status, Text: e.Text})
		}
	}
	return out
}

// list puts an address on the list that an outcome leads to, when its last event happens.
func (a *account) list(addr string, o message.Outcome, accepted time.Time) {
	e, ok := a.provider.Entry(o)
	if !ok {
		return
	}
	stages := a.provider.Stages[o]
	e.Address, e.At = addr, accepted.Add(a.s.scaled(stages[len(stages)-1].After))
	a.provider.Lists.Put(e)
}
