package consumers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/models"
)

// What people order, beside the facts: stops, cancellations, releases, blocks
// and switched providers. Workers follow the journal of orders; a decision is
// made by rules that are at most control.MaxRuleAge old, and looked at again right before
// the call.

const rulesMaxAge = 250 * time.Millisecond // how often the journal is read

// commandsFor gathers what the rules say about a chunk. Recipients are read only
// if a block depends on them.
func (d *dispatcher) commandsFor(ctx context.Context, c *chunk) (policy.Commands, error) {
	rules := d.follower.Rules()
	o := policy.Commands{Rule: rules.Batch(c.batch), Rules: rules, Blocks: policy.BlocksMeeting(rules, c.batch)}
	byRecipient := slices.ContainsFunc(o.Blocks, func(b models.Block) bool { return b.Domain != "" })
	if byRecipient && c.recipients == nil && !c.batch.Redacted {
		rs, err := d.store.Recipients(ctx, c.id)
		if err != nil {
			return o, err
		}
		c.recipients = rs
	}
	o.Recipients = c.recipients
	return o, nil
}

// planned is by which orders the steps of a chunk were decided: those that are not
// looked at again as they are right before a call.
type planned struct {
	upTo     int             // of the journal
	blocks   []string        // that met its sender and user
	draining map[string]bool // providers
}

func (d *dispatcher) snapshotRules(c *chunk) planned {
	rules := d.follower.Rules()
	p := planned{upTo: rules.UpTo()}
	for _, b := range policy.BlocksMeeting(rules, c.batch) {
		p.blocks = append(p.blocks, b.ID)
	}
	for _, a := range d.providers.All() {
		if rules.Provider(a.Name).Mode == models.ProviderDrain {
			if p.draining == nil {
				p.draining = map[string]bool{}
			}
			p.draining[a.Name] = true
		}
	}
	return p
}

// rulesChanged reports whether an order that came since may forbid a call through an
// provider: it is decided anew then.
func (d *dispatcher) rulesChanged(c *chunk, provider string) bool {
	now := d.follower.Rules()
	if now.UpTo() == c.planned.upTo {
		return false
	}
	if now.Provider(provider).Mode == models.ProviderDrain && !c.planned.draining[provider] {
		return true
	}
	return slices.ContainsFunc(policy.BlocksMeeting(now, c.batch), func(b models.Block) bool {
		return (b.Provider == "" || b.Provider == provider) && !slices.Contains(c.planned.blocks, b.ID)
	})
}

// peersUntil writes the releases that were ordered and are not in the chunk's ledger
// yet: one entry each, also where it lets nobody go, so that an order never
// touches what ends after it was obeyed.
func (d *dispatcher) applyReleases(ctx context.Context, c *chunk) error {
	for i := 0; ; i++ {
		releases := d.follower.Rules().Batch(c.batch).Releases
		if i >= len(releases) {
			return nil
		}
		order := releases[i]
		if !order.Log.IsZero() && order.Log.ChunkID() != c.id || slices.ContainsFunc(c.entries, func(en models.Entry) bool { return en.Order == order.Number }) {
			continue
		}
		who := policy.Released(c.view, &order)
		err := d.appendEntry(ctx, c, models.Entry{Kind: models.Release, At: time.Now().UTC(), Recipients: who, Order: order.Number,
			MayDouble: order.Kind == models.ReleaseBatch && !who.Empty(), Detail: models.Clip(order.Why)})
		if conflict(err) {
			if err = d.reload(ctx, c); err == nil {
				i-- // again, by what stands there now
			}
		}
		if err != nil {
			return err
		}
	}
}

// errHeldBack: the call may not be made, or not now.
var errHeldBack = errors.New("held back")

// mayCall says whether a call may be made: before the deadline, and as ordered,
// by rules that are no older than age.
func (d *dispatcher) mayCall(ctx context.Context, c *chunk, j *job, age time.Duration) error {
	if !j.step.Released && policy.Over(c.batch, time.Now()) {
		return fmt.Errorf("%w after the deadline", errHeldBack)
	}
	if err := d.follower.EnsureFresh(ctx, age); err != nil {
		return err
	}
	rules := d.follower.Rules()
	if r := rules.Batch(c.batch); r.Waits != "" || r.Cancel != nil || rules.Provider(j.provider.Name).Mode == models.ProviderOffline {
		return fmt.Errorf("%w by an order", errHeldBack)
	}
	if d.rulesChanged(c, j.provider.Name) {
		return fmt.Errorf("%w by an order that came meanwhile", errHeldBack)
	}
	return nil
}
