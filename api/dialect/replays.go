package dialect

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"
)

// Replays remembers for a while the requests whose clients left before they had an answer. Some clients repeat such a
// request by themselves, without an Idempotency-Key. An equal one gets the answer of the first. A request that was
// answered is not remembered: two equal mails can be meant.
type Replays struct {
	mu   sync.Mutex
	open map[string][]*replay // by user and hash of the request
}

// replay is a request without an Idempotency-Key, while it is carried out and if its answer was not read.
type replay struct {
	key string // in place of an Idempotency-Key

	all  *Replays
	hash string
	ctx  context.Context //nolint:containedctx // it says whether the client has left
	left time.Time       // zero: it is carried out
}

const (
	replayAge  = 10 * time.Minute
	maxReplays = 10_000
)

// begin returns the replay of a request: that of an equal one whose client has left, or a new one. The caller must end
// it.
func (r *Replays) begin(ctx context.Context, user, hash string) *replay {
	r.mu.Lock()
	defer r.mu.Unlock()
	hash = user + " " + hash
	for _, p := range r.open[hash] {
		if p.ctx.Err() != nil && (p.left.IsZero() || time.Since(p.left) < replayAge) {
			return &replay{key: p.key, all: r, hash: hash, ctx: ctx}
		}
	}
	p := &replay{key: "auto-" + rand.Text(), all: r, hash: hash, ctx: ctx}
	if r.open == nil {
		r.open = map[string][]*replay{}
	}
	if len(r.open) >= maxReplays {
		r.drop()
	}
	r.open[hash] = append(r.open[hash], p)
	return p
}

// end says that the request was carried out. It is forgotten unless its client has left, or it failed in a way that
// makes clients repeat it.
func (p *replay) end(failed bool) {
	r := p.all
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.left = time.Now(); failed || p.ctx.Err() != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		p.ctx = ended
		return
	}
	r.open[p.hash] = slices.DeleteFunc(r.open[p.hash], func(o *replay) bool { return o.key == p.key })
	if len(r.open[p.hash]) == 0 {
		delete(r.open, p.hash)
	}
}

// drop forgets what is too old. If that is nothing, it forgets some requests whose clients have left.
func (r *Replays) drop() {
	for _, age := range [2]time.Duration{replayAge, 0} {
		for hash, ps := range r.open {
			ps = slices.DeleteFunc(ps, func(p *replay) bool { return !p.left.IsZero() && time.Since(p.left) >= age })
			if r.open[hash] = ps; len(ps) == 0 {
				delete(r.open, hash)
			}
			if age == 0 && len(r.open) < maxReplays/2 {
				break
			}
		}
		if len(r.open) < maxReplays {
			return
		}
	}
}
