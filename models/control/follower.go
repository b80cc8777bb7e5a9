package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Follower reads the command log of the store and applies it to Rules. Each process has one.
type Follower struct {
	store models.CommandStore
	rules *Rules

	now   func() Instant
	mu    sync.Mutex // one reader at a time
	state sync.Mutex
	fresh Instant       // beginning of the last successful read; zero: none
	moved chan struct{} // closed and replaced after commands were applied
}

// Instant is a moment by both clocks of the process. The monotonic clock stops while the
// machine sleeps, and the wall clock can be set.
type Instant struct{ monotonic, wall time.Time }

// Now returns the moment.
func Now() Instant {
	t := time.Now()
	return Instant{t, t.Round(0)}
}

// Since returns the time from o to i by the clock that says more.
func (i Instant) Since(o Instant) time.Duration {
	return max(i.monotonic.Sub(o.monotonic), i.wall.Sub(o.wall))
}

// NewFollower returns a follower with empty rules.
func NewFollower(store models.CommandStore) *Follower {
	return &Follower{store: store, rules: NewRules(), now: Now, moved: make(chan struct{})}
}

// Rules returns the rules of the commands that were read.
func (f *Follower) Rules() *Rules { return f.rules }

// Changed returns a channel that is closed after more commands were applied.
func (f *Follower) Changed() <-chan struct{} {
	f.state.Lock()
	defer f.state.Unlock()
	return f.moved
}

// logPage is the number of commands that are read at a time.
const logPage = 500

// Sync reads and applies the commands since the last call.
func (f *Follower) Sync(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read(ctx)
}

func (f *Follower) read(ctx context.Context) error {
	began, before := f.now(), f.rules.UpTo()
	for {
		// The last command that was applied is read again: if it is gone, commands after it may be gone, too.
		upTo := f.rules.UpTo()
		commands, err := f.store.Commands(ctx, max(upTo-1, 0), logPage)
		if err != nil {
			return err
		}
		if len(commands) == 0 && upTo > 0 {
			return errors.New("the command log is shorter than it was")
		}
		if len(commands) > 0 && commands[0].Number > max(upTo, 1) {
			if err := f.restore(ctx, commands[0].Number); err != nil {
				return err
			}
			continue
		}
		for _, c := range commands {
			if !c.Kind.Known() {
				return fmt.Errorf("command %d: %w", c.Number, models.ErrNewer)
			}
			if !f.rules.Apply(c) {
				return errGap
			}
		}
		if len(commands) < logPage {
			break
		}
	}
	f.state.Lock()
	defer f.state.Unlock()
	f.fresh = began
	if f.rules.UpTo() > before {
		close(f.moved)
		f.moved = make(chan struct{})
	}
	return nil
}

var errGap = errors.New("the command log has a gap")

// restore takes the stored rules, because the commands below the number first were removed.
func (f *Follower) restore(ctx context.Context, first int) error {
	number, raw, err := f.store.Rules(ctx)
	if errors.Is(err, models.ErrNotFound) || err == nil && number < first {
		return errGap
	}
	if err != nil {
		return err
	}
	return f.rules.restore(raw)
}

// MaxRuleAge is the maximum age of the rules when a worker begins a call.
const MaxRuleAge = 700 * time.Millisecond

// EnsureFresh reads the command log unless the rules are younger than age by both clocks.
func (f *Follower) EnsureFresh(ctx context.Context, age time.Duration) error {
	if f.within(age) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.within(age) { // another caller has read it
		return nil
	}
	return f.read(ctx)
}

func (f *Follower) within(age time.Duration) bool {
	f.state.Lock()
	fresh := f.fresh
	f.state.Unlock()
	return fresh != Instant{} && f.now().Since(fresh) < age
}

// Follow reads the command log every pause until ctx ends. It calls failed with errors.
func (f *Follower) Follow(ctx context.Context, pause time.Duration, failed func(error)) {
	read := func() { // concurrent calls share their reads
		if err := f.EnsureFresh(ctx, pause*3/4); err != nil && ctx.Err() == nil {
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
// done is false. It refuses a kind that is not known, at which all processes would stop reading the log.
// Errors: ErrOutcomeUnknown (c may be in the log; giving the same command again is harmless), ErrUnavailable.
func (f *Follower) Append(ctx context.Context, c *models.Command, wanted func(*Rules) bool) (done bool, err error) {
	if !c.Kind.Known() {
		return false, fmt.Errorf("the kind of command %q is not in models/command.go", c.Kind)
	}
	c.Token, c.At = models.NewToken(), time.Now().UTC().Round(0)
	for {
		if err := f.Sync(ctx); err != nil {
			return false, err
		}
		if wanted != nil && !wanted(f.rules) {
			return false, nil
		}
		c.Number = f.rules.UpTo() + 1
		err := f.store.AppendCommand(ctx, *c)
		var lost *models.CommandConflictError
		if errors.As(err, &lost) {
			continue
		}
		if err != nil {
			return false, err
		}
		return true, f.Sync(ctx)
	}
}
