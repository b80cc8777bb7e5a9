package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Follower follows the journal of orders in the store: every process has one.
type Follower struct {
	store models.CommandStore
	rules *Rules

	mu    sync.Mutex // one reader at a time
	state sync.Mutex
	fresh time.Time     // when the newest read that succeeded began
	moved chan struct{} // closed and replaced when lines were applied
}

// NewFollower returns a follower that has read nothing yet.
func NewFollower(store models.CommandStore) *Follower {
	return &Follower{store: store, rules: NewRules(), moved: make(chan struct{})}
}

// Rules is what the journal says, as far as it was read.
func (j *Follower) Rules() *Rules { return j.rules }

// Fresh is the moment, on the monotonic clock, up to which everything that was
// appended is known.
func (j *Follower) Fresh() time.Time {
	j.state.Lock()
	defer j.state.Unlock()
	return j.fresh
}

// Changed is closed when further lines were applied.
func (j *Follower) Changed() <-chan struct{} {
	j.state.Lock()
	defer j.state.Unlock()
	return j.moved
}

// journalPage is how many lines are read at a time.
const journalPage = 500

// Sync reads what was appended since the last call. Errors: of the store.
func (j *Follower) Sync(ctx context.Context) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.read(ctx)
}

func (j *Follower) read(ctx context.Context) error {
	began, before := time.Now(), j.rules.UpTo()
	for {
		lines, err := j.store.Commands(ctx, j.rules.UpTo(), journalPage)
		if err != nil {
			return err
		}
		for _, c := range lines {
			if !j.rules.Apply(c) {
				return errors.New("the journal of orders has a gap")
			}
		}
		if len(lines) < journalPage {
			break
		}
	}
	j.state.Lock()
	defer j.state.Unlock()
	j.fresh = began
	if j.rules.UpTo() > before {
		close(j.moved)
		j.moved = make(chan struct{})
	}
	return nil
}

// MaxRuleAge is how old the rules may be, at most, by which a worker begins a call.
const MaxRuleAge = 700 * time.Millisecond

// EnsureFresh makes sure that the rules are no older than age.
func (j *Follower) EnsureFresh(ctx context.Context, age time.Duration) error {
	if j.within(age) {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.within(age) { // another caller has read meanwhile
		return nil
	}
	return j.read(ctx)
}

func (j *Follower) within(age time.Duration) bool {
	fresh := j.Fresh()
	return !fresh.IsZero() && time.Since(fresh) < age
}

// Follow reads the journal every pause until ctx ends. failed is told of errors.
func (j *Follower) Follow(ctx context.Context, pause time.Duration, failed func(error)) {
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		// Two followers of one journal share their reads.
		if err := j.EnsureFresh(ctx, pause*3/4); err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Append writes an order at the end of the journal and applies it. c gets its
// number, token and time here; unless wanted still says so after every line
// that came before, nothing is written and done is false. Errors:
// ErrOutcomeUnknown (it may stand: the same order again does no harm),
// ErrUnavailable.
func (j *Follower) Append(ctx context.Context, c *models.Command, wanted func(*Rules) bool) (done bool, err error) {
	c.Token, c.At = models.NewToken(), time.Now().UTC().Round(0)
	for {
		if err := j.Sync(ctx); err != nil {
			return false, err
		}
		if wanted != nil && !wanted(j.rules) {
			return false, nil
		}
		c.Number = j.rules.UpTo() + 1
		err := j.store.AppendCommand(ctx, *c)
		var lost *models.CommandConflictError
		if errors.As(err, &lost) {
			continue
		}
		if err != nil {
			return false, err
		}
		return true, j.Sync(ctx)
	}
}
