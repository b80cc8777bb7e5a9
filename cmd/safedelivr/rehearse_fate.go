package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// arriving are the outcomes of copies that reach somebody.
var arriving = map[string]bool{"deliver": true, "defer-then-deliver": true, "open": true, "click": true, "complain": true, "unsubscribe": true,
	"lostevent": true, "silent": true}

// curable are the outcomes after which a mail may go through a provider that it
// has not gone through. What was delivered is not sent again, also where it
// bounced afterwards, and a hard bounce is not routed around.
var curable = map[string]bool{"blocked": true, "expire": true, "rejected": true, "overquota": true, "suppressed-bounce": true}

// bouncedAfter is the outcome of a copy that was delivered and came back.
const bouncedAfter = "async"

// untold are the outcomes whose last event no webhook tells.
var untold = map[string]bool{"lostevent": true, "silent": true}

// drillAsked is the provider whose events can be looked up, where its webhooks were
// lost or kept back.
const drillAsked = "mg"

// fate is what became of the copies of a mail.
type fate struct {
	copies    []simulator.Copy // in the order in which providers took them
	arrived   int              // reached, or will reach, somebody, or would have, had the provider not swallowed them
	swallowed int              // of these
	returned  int              // reached somebody and bounced afterwards
	bounced   int              // at an address that no provider can deliver to
	final     int              // arrived, returned or bounced, and it can be known to us
	hidden    int              // whatever became of them, a fault keeps it from us for ever
}

// add takes one more copy.
func (f *fate) add(c simulator.Copy) {
	f.copies = append(f.copies, c)
	slices.SortStableFunc(f.copies, func(a, b simulator.Copy) int { return a.At.Compare(b.At) })
	ends := true
	switch {
	case arriving[c.Outcome]:
		f.arrived++
		if c.Swallowed {
			f.swallowed++
		}
	case c.Outcome == bouncedAfter:
		f.returned++
	case c.Outcome == bouncing:
		f.bounced++
	default:
		ends = false
	}
	switch {
	case !reported(&c):
		f.hidden++
	case ends:
		f.final++
	}
}

// reported tells whether what became of a copy can be known to us: by webhooks or,
// where those are kept back, by asking.
func reported(c *simulator.Copy) bool {
	return !c.Swallowed && (c.Account == drillAsked || !c.Muted && !untold[c.Outcome])
}

// doubled reports whether a copy followed on one after which none may: one that is
// not known to have failed for a reason that another provider could cure, or one
// through the same provider.
func (f *fate) doubled() bool {
	for i := range f.copies {
		for k := range f.copies[:i] {
			if before := &f.copies[k]; !curable[before.Outcome] || !reported(before) || before.Account == f.copies[i].Account {
				return true
			}
		}
	}
	return false
}

// lost reports whether no copy stayed with anybody.
func (f *fate) lost() bool { return f.arrived-f.swallowed+f.returned == 0 }

// String lists the copies.
func (f *fate) String() string {
	var out []string
	for _, c := range f.copies {
		out = append(out, fmt.Sprintf("%s %s %s", c.At.UTC().Format(time.RFC3339Nano), c.Account, c.Outcome))
	}
	return strings.Join(out, ", ")
}

// fateOf reads what became of the copies of a mail.
func (d *drill) fateOf(log models.ID) (f fate) {
	for _, c := range d.sim.Copies(log.String()) {
		f.add(c)
	}
	return f
}
