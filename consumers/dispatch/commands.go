package dispatch

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
func (d *Dispatcher) commandsFor(ctx context.Context, c *Chunk) (policy.Commands, error) {
	rules := d.follower.Rules()
	o := policy.Commands{Rule: rules.Batch(c.Batch), Rules: rules, Blocks: policy.BlocksMeeting(rules, c.Batch)}
	byRecipient := slices.ContainsFunc(o.Blocks, func(b models.Block) bool { return b.Domain != "" })
	if byRecipient && c.Recipients == nil && !c.Batch.Redacted {
		rs, err := d.store.Recipients(ctx, c.Id)
		if err != nil {
			return o, err
		}
		c.Recipients = rs
	}
	o.Recipients = c.Recipients
	return o, nil
}

// planned is by which orders the steps of a chunk were decided: those that are not
// looked at again as they are right before a call.
type planned struct {
	upTo     int             // of the journal
	blocks   []string        // that met its sender and user
	draining map[string]bool // providers
}

func (d *Dispatcher) snapshotRules(c *Chunk) planned {
	rules := d.follower.Rules()
	p := planned{upTo: rules.UpTo()}
	for _, b := range policy.BlocksMeeting(rules, c.Batch) {
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
func (d *Dispatcher) rulesChanged(c *Chunk, provider string) bool {
	now := d.follower.Rules()
	if now.UpTo() == c.planned.upTo {
		return false
	}
	if now.Provider(provider).Mode == models.ProviderDrain && !c.planned.draining[provider] {
		return true
	}
	return slices.ContainsFunc(policy.BlocksMeeting(now, c.Batch), func(b models.Block) bool {
		return (b.Provider == "" || b.Provider == provider) && !slices.Contains(c.planned.blocks, b.ID)
	})
}

// peersUntil writes the releases that were ordered and are not in the chunk's ledger
// yet: one entry each, also where it lets nobody go, so that an order never
// touches what ends after it was obeyed.
func (d *Dispatcher) applyReleases(ctx context.Context, c *Chunk) error {
	for i := 0; ; i++ {
		releases := d.follower.Rules().Batch(c.Batch).Releases
		if i >= len(releases) {
			return nil
		}
		order := releases[i]
		if !order.Log.IsZero() && order.Log.ChunkID() != c.Id ||
			slices.ContainsFunc(c.Entries, func(en models.Entry) bool { return en.Order == order.Number }) {
			continue
		}
		who := policy.Released(c.View, &order)
		err := d.appendEntry(
			ctx,
			c,
			models.Entry{Kind: models.Release, At: time.Now().UTC(), Recipients: who, Order: order.Number,
				MayDouble: order.Kind == models.ReleaseBatch && !who.Empty(), Detail: models.Clip(order.Why)},
		)
		if Conflict(err) {
			if err = d.Reload(ctx, c); err == nil {
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
func (d *Dispatcher) mayCall(ctx context.Context, c *Chunk, j *Job, age time.Duration) error {
	if !j.Step.Released && policy.Over(c.Batch, time.Now()) {
		return fmt.Errorf("%w after the deadline", errHeldBack)
	}
	if err := d.follower.EnsureFresh(ctx, age); err != nil {
		return err
	}
	rules := d.follower.Rules()
	if r := rules.Batch(c.Batch); r.Waits != "" || r.Cancel != nil ||
		rules.Provider(j.Provider.Name).Mode == models.ProviderOffline {
		return fmt.Errorf("%w by an order", errHeldBack)
	}
	if d.rulesChanged(c, j.Provider.Name) {
		return fmt.Errorf("%w by an order that came meanwhile", errHeldBack)
	}
	return nil
}
