package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Follower reads the command log of the store and applies it to Rules. Each process has
// one.
type Follower struct {
	store models.CommandStore
	rules *Rules

	mu    sync.Mutex // one reader at a time
	state sync.Mutex
	fresh time.Time     // beginning of the last successful read
	moved chan struct{} // closed and replaced after commands were applied
}

// NewFollower returns a follower with empty rules.
func NewFollower(store models.CommandStore) *Follower {
	return &Follower{store: store, rules: NewRules(), moved: make(chan struct{})}
}

// Rules returns the rules of the commands that were read.
func (j *Follower) Rules() *Rules { return j.rules }

// Fresh returns the time, on the monotonic clock, up to which all commands were read.
func (j *Follower) Fresh() time.Time {
	j.state.Lock()
	defer j.state.Unlock()
	return j.fresh
}

// Changed returns a channel that is closed after more commands were applied.
func (j *Follower) Changed() <-chan struct{} {
	j.state.Lock()
	defer j.state.Unlock()
	return j.moved
}

// logPage is the number of commands that are read at a time.
const logPage = 500

// Sync reads and applies the commands since the last call.
func (j *Follower) Sync(ctx context.Context) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.read(ctx)
}

func (j *Follower) read(ctx context.Context) error {
	began, before := time.Now(), j.rules.UpTo()
	for {
		commands, err := j.store.Commands(ctx, j.rules.UpTo(), logPage)
		if err != nil {
			return err
		}
		for _, c := range commands {
			if !j.rules.Apply(c) {
				return errors.New("the command log has a gap")
			}
		}
		if len(commands) < logPage {
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

// MaxRuleAge is the maximum age of the rules when a worker begins a call.
const MaxRuleAge = 700 * time.Millisecond

// EnsureFresh reads the command log unless the rules are younger than age.
func (j *Follower) EnsureFresh(ctx context.Context, age time.Duration) error {
	if j.within(age) {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.within(age) { // another caller has read it
		return nil
	}
	return j.read(ctx)
}

func (j *Follower) within(age time.Duration) bool {
	fresh := j.Fresh()
	return !fresh.IsZero() && time.Since(fresh) < age
}

// Follow reads the command log every pause until ctx ends. It calls failed with errors.
func (j *Follower) Follow(ctx context.Context, pause time.Duration, failed func(error)) {
	read := func() { // concurrent calls share their reads
		if err := j.EnsureFresh(ctx, pause*3/4); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
	read()
	for range models.Every(ctx, pause) {
		read()
	}
}

// Append appends c to the command log and applies it. It sets the number, token and
// time of c. If wanted returns false for the rules before c, Append appends nothing and
// done is false. Errors: ErrOutcomeUnknown (c may be in the log; giving the same
// command again is harmless), ErrUnavailable.
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
