package feed

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// TailPoll is how often a feed is read for those who wait for it, unless something else is said.
const TailPoll = 250 * time.Millisecond

// Tails lets callers wait for new entries. However many wait for a feed, it is read once per
// poll, and when it is woken; a feed without a waiting caller is not read.
type Tails struct {
	store models.FeedStore
	poll  time.Duration

	mu    sync.Mutex
	tails map[string]*tail
}

// tail is a feed that is waited for.
type tail struct {
	waiting int
	head    int           // number of the newest known entry
	grown   chan struct{} // closed when head changes
	wake    chan struct{} // holds a token when the feed is to be read at once
	stop    context.CancelFunc
}

// NewTails returns Tails that read once per poll.
func NewTails(store models.FeedStore, poll time.Duration) *Tails {
	return &Tails{store: store, poll: poll, tails: map[string]*tail{}}
}

// Wake has the feed of a user read at once, if a caller waits for it.
func (t *Tails) Wake(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.tails[user]; v != nil {
		select {
		case v.wake <- struct{}{}:
		default: // it is going to be read
		}
	}
}

// Wait waits until a user's feed has an entry with a number greater than after. It returns nil
// then, or the error of ctx.
func (t *Tails) Wait(ctx context.Context, user string, after int) error {
	v := t.enter(user, after)
	defer t.leave(user, v)
	for {
		t.mu.Lock()
		head, grown := v.head, v.grown
		t.mu.Unlock()
		if head > after {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// enter returns the tail of a user, which it starts for the first caller.
func (t *Tails) enter(user string, after int) *tail {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.tails[user]
	if v == nil {
		ctx, cancel := context.WithCancel(context.Background())
		v = &tail{head: after, grown: make(chan struct{}), wake: make(chan struct{}, 1), stop: cancel}
		t.tails[user] = v
		go t.follow(ctx, user, v)
	}
	v.waiting++
	return v
}

// leave ends a wait, and with the last one the tail.
func (t *Tails) leave(user string, v *tail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.waiting--; v.waiting == 0 {
		v.stop()
		delete(t.tails, user)
	}
}

// follow reads a feed until ctx ends. Reads that fail are tried again.
func (t *Tails) follow(ctx context.Context, user string, v *tail) {
	ticker := time.NewTicker(t.poll)
	defer ticker.Stop()
	head := v.head
	for {
		found, err := t.store.Feed(ctx, user, head, 1)
		if err == nil && len(found) > 0 {
			head = found[0].Number
			t.mu.Lock()
			v.head = head
			close(v.grown)
			v.grown = make(chan struct{})
			t.mu.Unlock()
			continue // there may be more
		}
		select {
		case <-ticker.C:
		case <-v.wake:
		case <-ctx.Done():
			return
		}
	}
}
