package simulator

import (
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// A Suppressed is an address on a suppression list of an account.
type Suppressed = provider.Listed

// Suppress puts an address on a suppression list of an account, as if earlier mail had led to it.
func (s *Simulator) Suppress(account string, e Suppressed) error {
	a := s.account(account)
	if a == nil {
		return fmt.Errorf("%w: %q", errNoAccount, account)
	}
	l := a.provider.Named(e.List)
	if l == nil {
		return fmt.Errorf("account %s has no list %q", account, e.List)
	}
	e.Drops = l.Drops
	a.provider.Lists.Put(e)
	return nil
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
