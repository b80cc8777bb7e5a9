package drill

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// arriving are the outcomes of copies that reach the recipient.
var arriving = map[string]bool{
	"deliver":            true,
	"defer-then-deliver": true,
	"open":               true,
	"click":              true,
	"complain":           true,
	"unsubscribe":        true,
	"lostevent":          true,
	"silent":             true,
}

// curable are the outcomes after which a mail may be sent through a provider that has not had it. A mail that was
// delivered is not sent again, even if it bounced later, and neither is a hard bounce.
var curable = map[string]bool{
	"blocked":           true,
	"expire":            true,
	"rejected":          true,
	"overquota":         true,
	"suppressed-bounce": true,
}

// bouncedAfter is the outcome of a copy that was delivered and bounced later.
const bouncedAfter = "async"

// outcome counts the copies of a mail by their ends.
type outcome struct {
	copies    []simulator.Copy // in the order in which providers accepted them
	arrived   int              // reached, or will reach, the recipient, or would have if it had not been swallowed
	swallowed int              // of these, by the provider
	returned  int              // reached the recipient and bounced later
	bounced   int              // at an address that no provider can deliver to
	final     int              // arrived, returned or bounced, and Safedelivr can know it
	hidden    int              // a fault hides their outcome from Safedelivr permanently
}

// add adds a copy. If its provider looks up events, a copy whose webhooks are withheld is as good as another one.
func (o *outcome) add(c simulator.Copy, looksUp bool) {
	c.Muted = c.Muted && !looksUp
	o.copies = append(o.copies, c)
	slices.SortStableFunc(o.copies, func(a, b simulator.Copy) int { return a.At.Compare(b.At) })
	ends := true
	switch {
	case arriving[c.Outcome]:
		o.arrived++
		if c.Swallowed {
			o.swallowed++
		}
	case c.Outcome == bouncedAfter:
		o.returned++
	case c.Outcome == bouncing:
		o.bounced++
	default:
		ends = false
	}
	switch {
	case !reported(&c):
		o.hidden++
	case ends:
		o.final++
	}
}

// reported reports whether Safedelivr can know the end of a copy, by webhooks or by a look-up.
func reported(c *simulator.Copy) bool {
	return !c.Swallowed && !c.Muted
}

// doubled reports whether a copy follows on one after which none may: one that is not known to have failed for a reason
// that another provider can cure, or one through the same provider.
func (o *outcome) doubled() bool {
	for i := range o.copies {
		for k := range o.copies[:i] {
			before := &o.copies[k]
			if !curable[before.Outcome] || !reported(before) || before.Account == o.copies[i].Account {
				return true
			}
		}
	}
	return false
}

// lost reports whether no copy reached the recipient.
func (o *outcome) lost() bool { return o.arrived-o.swallowed+o.returned == 0 }

// String lists the copies.
func (o *outcome) String() string {
	var out []string
	for _, c := range o.copies {
		out = append(out, fmt.Sprintf("%s %s %s", c.At.UTC().Format(time.RFC3339Nano), c.Account, c.Outcome))
	}
	return strings.Join(out, ", ")
}
