package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
)

// rulesMaxAge is the maximum age of the rules of commands right before a call. Other
// decisions use rules that are at most control.MaxRuleAge old.
const rulesMaxAge = 250 * time.Millisecond

// commands says what the commands that users and operators gave mean for a chunk.
type commands struct {
	follower  *control.Follower
	providers *provider.Set
	store     Store
}

// of returns what the rules say about a chunk. It reads recipients only if a
// block depends on them.
func (k *commands) of(ctx context.Context, c *Chunk) (policy.Commands, error) {
	rules := k.follower.Rules()
	o := policy.Commands{Rule: rules.Batch(c.Batch), Rules: rules, Blocks: policy.BlocksMeeting(rules, c.Batch)}
	byRecipient := slices.ContainsFunc(o.Blocks, func(b models.Block) bool { return b.Domain != "" })
	if byRecipient && c.Recipients == nil && !c.Batch.Redacted {
		rs, err := k.store.Recipients(ctx, c.ID)
		if err != nil {
			return o, err
		}
		c.Recipients = rs
	}
	o.Recipients = c.Recipients
	o.Recovered = k.recovered
	return o, nil
}

// recovered returns the newest recoveries of a provider that this worker knows.
func (k *commands) recovered(name string) []policy.Recovery {
	a := k.providers.Get(name)
	if a == nil {
		return nil
	}
	found := a.Health.Recoveries()
	out := make([]policy.Recovery, len(found))
	for i, r := range found {
		out[i] = policy.Recovery(r)
	}
	return out
}

// planned records the commands by which the steps of a chunk were decided. It holds
// those that mayCall does not evaluate anew right before a call.
type planned struct {
	upTo     int             // number of the newest command
	blocks   []string        // ids of blocks that match its sender and user
	draining map[string]bool // by provider
}

// snapshot returns the commands that are known now and meet a chunk.
func (k *commands) snapshot(c *Chunk) planned {
	rules := k.follower.Rules()
	p := planned{upTo: rules.UpTo()}
	for _, b := range policy.BlocksMeeting(rules, c.Batch) {
		p.blocks = append(p.blocks, b.ID)
	}
	for _, a := range k.providers.All() {
		if rules.Provider(a.Name).Mode == models.ProviderDrain {
			if p.draining == nil {
				p.draining = map[string]bool{}
			}
			p.draining[a.Name] = true
		}
	}
	return p
}

// expiresAt returns when the mail of a chunk expires.
func (k *commands) expiresAt(c *Chunk) time.Time {
	return k.follower.Rules().Scheduled(c.Batch).ExpiresAt
}

// changed reports whether a command issued since the chunk was planned may forbid
// a call through a provider. The chunk must then be planned again.
func (k *commands) changed(c *Chunk, provider string) bool {
	now := k.follower.Rules()
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

// errHeldBack reports that the call may not be made, or not now.
var errHeldBack = errors.New("held back")

// mayCall returns errHeldBack if the time or a command forbids the call. It uses
// rules that are no older than age.
func (k *commands) mayCall(ctx context.Context, c *Chunk, j *job, age time.Duration) error {
	if err := k.follower.EnsureFresh(ctx, age); err != nil {
		return err
	}
	rules, now := k.follower.Rules(), time.Now()
	r := rules.Batch(c.Batch)
	b := r.Scheduled(c.Batch)
	if !j.Step.Released && policy.PastExpiry(b, now) {
		return fmt.Errorf("%w: it has expired", errHeldBack)
	}
	if j.Step.Repeats > 0 && !now.Before(j.Step.Until) {
		return fmt.Errorf("%w: the time for a repeat is over", errHeldBack)
	}
	if b.MayLeave(now, j.Step.Released).After(now) {
		return fmt.Errorf("%w: its time has not come", errHeldBack)
	}
	if r.Waits != nil || r.Cancel != nil ||
		rules.Provider(j.Provider.Name).Mode == models.ProviderOffline {
		return fmt.Errorf("%w by a command", errHeldBack)
	}
	if k.changed(c, j.Provider.Name) {
		return fmt.Errorf("%w by a command issued meanwhile", errHeldBack)
	}
	return nil
}
