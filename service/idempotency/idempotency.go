// Package idempotency carries out a request once, however often its client sends it.
package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Repeat identifies a request that its client may send again. The zero value identifies
// none: each such request is a new one.
type Repeat struct {
	Key   string // chosen by the client
	Route string // keys of different routes are independent
	Hash  string // of the whole request
}

// Store is the part of models.Store that a Guard needs.
type Store interface {
	models.ClaimStore
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Guard keeps the answers to requests. Its fields must not change while it is used.
type Guard struct {
	Store     Store
	TTL       time.Duration // how long keys and answers are kept
	RetryTime time.Duration // how long a claim with an unknown outcome is retried
	// Stored reports whether a request has stored what it makes under the ID of its claim. If it is not nil, that is its
	// answer, and no other one is kept.
	Stored func(ctx context.Context, id models.ID) (bool, error)
	Log    *slog.Logger
}

// A running request holds a lease, so that repeats of it do not run beside it, and renews the lease until it ends. The
// lease only saves work: two runs of a request have the same result. The first run of a request whose result is stored
// under its ID takes the lease late, because most have ended by then. Its claim is young until a repeat may see the
// lease.
const (
	leaseTTL   = 10 * time.Second
	renewEvery = leaseTTL / 3
	lateLease  = time.Second
	youngClaim = 2 * lateLease
	storeTime  = 5 * time.Second // to store an answer or to end a lease
)

// Once calls do for a request of a user, and again for its repeats until a call succeeds. Later repeats get the result
// of that call, and replayed is true. do gets the ID and the time of the first attempt's claim, so that a repeat
// finishes what the first attempt began. older reports whether there was an earlier attempt.
func Once[T any](
	ctx context.Context,
	g *Guard,
	user string,
	r Repeat,
	do func(ctx context.Context, c models.Claim, older bool) (T, error),
) (v T, replayed bool, err error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	mine := models.Claim{ID: models.NewBatchID(now), Hash: r.Hash, At: now}
	if r.Key == "" {
		v, err = do(ctx, mine, false)
		return v, false, err
	}
	key := r.storedKey(user)
	claim, own, err := g.acquire(ctx, key, mine)
	if err != nil {
		return v, false, err
	}
	defer own.end()
	if claim.Answer != nil && g.Stored == nil {
		if err := json.Unmarshal(claim.Answer, &v); err != nil {
			return v, false, problem.New(problem.Internal, "internal",
				"An internal error occurred. Report the request ID to the operator.").Because(err)
		}
		return v, true, nil
	}
	returned := false
	defer func() {
		if !returned { // it panicked
			g.failed(context.WithoutCancel(ctx), key, claim)
		}
	}()
	v, err = do(ctx, claim, claim.ID != mine.ID)
	returned = true
	g.finish(context.WithoutCancel(ctx), key, claim, own, v, err)
	return v, false, err
}

// Begun reports whether an earlier attempt of a user's request claimed its key. It claims nothing, so that a request
// that is refused never uses up its key. If the store cannot be read, Begun returns false.
func (g *Guard) Begun(ctx context.Context, user string, r Repeat) (bool, error) {
	c, err := g.earlier(ctx, user, r)
	return !c.ID.IsZero(), err
}

// Done reports whether an earlier attempt of a user's request has succeeded.
func (g *Guard) Done(ctx context.Context, user string, r Repeat) (bool, error) {
	c, err := g.earlier(ctx, user, r)
	if err != nil || c.ID.IsZero() || g.Stored == nil {
		return c.Answer != nil, err
	}
	return g.Stored(ctx, c.ID)
}

// earlier returns the claim of an earlier attempt of a request, if there is one and the store can be read.
func (g *Guard) earlier(ctx context.Context, user string, r Repeat) (models.Claim, error) {
	if r.Key == "" {
		return models.Claim{}, nil
	}
	there, err := g.Store.Claimed(ctx, r.storedKey(user))
	switch {
	case err != nil:
		return models.Claim{}, nil //nolint:nilerr // as the comment says
	case there.Hash != r.Hash:
		return models.Claim{}, errKeyReused()
	}
	return there, nil
}

// storedKey returns the key of the request in the store.
func (r *Repeat) storedKey(user string) string {
	sum := sha256.Sum256([]byte(user + "\n" + r.Route + "\n" + r.Key))
	return hex.EncodeToString(sum[:])
}

func errKeyReused() error {
	return problem.New(problem.Invalid, "idempotency_key_reused",
		"This Idempotency-Key was used for a different request. Use a new key.")
}

// acquire claims a key and takes its lease, unless the request has an answer, or has stored what it makes.
func (g *Guard) acquire(ctx context.Context, key string, mine models.Claim) (c models.Claim, own *lease, err error) {
	c, err = g.claim(ctx, key, mine)
	if err != nil || c.Answer != nil && g.Stored == nil {
		return c, nil, err
	}
	name := "once " + key
	if g.Stored != nil {
		if c.ID == mine.ID {
			return c, g.newLease(ctx, name, lateLease), nil
		}
		if stored, err := g.Stored(ctx, c.ID); err == nil && stored {
			return c, nil, nil
		}
		if c.Answer == nil && mine.At.Sub(c.At).Abs() < youngClaim {
			return c, nil, errRunning()
		}
	}
	own, held := g.lease(ctx, name)
	if !held {
		return c, nil, errRunning()
	}
	if c.ID != mine.ID { // the request may have been answered since
		if c, err = g.claim(ctx, key, mine); err != nil {
			own.end()
			return c, nil, err
		}
	}
	return c, own, nil
}

// errRunning is the answer to a repeat of a request that runs.
func errRunning() error {
	return problem.New(problem.Conflict, "request_running",
		"The same request is still running. Repeat it to get its answer.").After(1)
}

// claim claims a key, or returns its earlier claim by the same request.
func (g *Guard) claim(ctx context.Context, key string, mine models.Claim) (models.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, g.RetryTime)
	defer cancel()
	for {
		there, err := g.Store.Claim(ctx, key, mine, g.TTL)
		if errors.Is(err, models.ErrOutcomeUnknown) && ctx.Err() == nil {
			continue // the store has waited before it returned
		}
		if err != nil {
			return there, problem.FromStore("claim idempotency key", err)
		}
		if there.Hash != mine.Hash {
			return there, errKeyReused()
		}
		return there, nil
	}
}

// finish stores the result of a claimed request. A request that was refused frees its key, so that the corrected
// request can use it. After a failure on our side the claim stays, and a repeat finishes the request.
func (g *Guard) finish(ctx context.Context, key string, c models.Claim, own *lease, v any, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	switch {
	case err == nil && g.Stored != nil:
		return
	case err == nil:
		var raw []byte
		if raw, err = json.Marshal(v); err == nil {
			err = g.Store.PutAnswer(ctx, key, c.ID, raw, g.TTL)
		}
	case refused(err):
		err = g.unclaim(ctx, key, c.ID, own)
	default:
		g.failed(ctx, key, c)
		return
	}
	if err != nil {
		g.Log.Warn("answer to an idempotent request not stored; a repeat runs again", "batch_id", c.ID.String(), "err", err)
	}
}

// failed notes that a request with a young claim has ended, so that a repeat need not wait until the claim is older.
func (g *Guard) failed(ctx context.Context, key string, c models.Claim) {
	young := time.Until(c.At.Add(youngClaim))
	if g.Stored == nil || young <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, young)
	defer cancel()
	_ = g.Store.PutAnswer(ctx, key, c.ID, []byte("failed"), youngClaim) // without it, the repeat waits
}

// unclaim frees a key after its request was refused. If a repeat runs beside this run, because
// the lease was lost, or has the answer already, the claim stays: it is the repeat's, too.
func (g *Guard) unclaim(ctx context.Context, key string, id models.ID, own *lease) error {
	if !own.held(ctx) {
		return nil
	}
	if g.Stored != nil {
		if stored, err := g.Stored(ctx, id); err != nil || stored {
			return err
		}
	}
	there, err := g.Store.Claimed(ctx, key)
	if err != nil || there.ID != id || there.Answer != nil && g.Stored == nil {
		return nil //nolint:nilerr // without a claim there is nothing to free, and an unread one stays
	}
	return g.Store.Unclaim(ctx, key, id)
}

// refused reports whether a request with this error can never succeed under its claim:
// it was refused, or its batch was removed and cannot be stored any more.
func refused(err error) bool {
	var e *problem.Error
	return errors.As(err, &e) && e.Kind != problem.Internal && e.Kind != problem.Unavailable ||
		errors.Is(err, models.ErrNotFound)
}

// A lease is that of a running request. A nil lease is of a request that needs none.
type lease struct {
	store        Store
	name, holder string
	asked        atomic.Bool // the store may have given it
	stop         func()      // ends the renewal and waits for it
}

// lease takes a lease and renews it until it is ended. It returns false if another holder
// has it. If the store cannot tell, the request runs without it.
func (g *Guard) lease(ctx context.Context, name string) (*lease, bool) {
	own := g.newLease(ctx, name, renewEvery)
	if held, err := own.renew(ctx); err == nil && !held {
		own.stop()
		return nil, false
	}
	return own, true
}

// newLease returns a lease that is taken after a time, and then renewed until it is ended.
func (g *Guard) newLease(ctx context.Context, name string, after time.Duration) *lease {
	own := &lease{store: g.Store, name: name, holder: models.NewUserID()}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	timer := time.AfterFunc(after, func() {
		defer close(done)
		for renewing.Err() == nil {
			_, _ = own.renew(renewing) // if it is lost, a repeat may run beside this one
			models.Pause(renewing, renewEvery)
		}
	})
	own.stop = func() {
		if stop(); !timer.Stop() {
			<-done
		}
	}
	return own
}

// renew renews the lease, or takes it. It returns false if another holder has it.
func (l *lease) renew(ctx context.Context) (bool, error) {
	l.asked.Store(true)
	return l.store.Lease(ctx, l.name, l.holder, leaseTTL)
}

// held reports whether no other run has the lease.
func (l *lease) held(ctx context.Context) bool {
	if l == nil {
		return false
	}
	held, err := l.renew(ctx)
	return held && err == nil
}

// end ends the lease.
func (l *lease) end() {
	if l == nil {
		return
	}
	if l.stop(); !l.asked.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTime)
	defer cancel()
	_, _ = l.store.Lease(ctx, l.name, l.holder, 0) // if this fails, the lease ends after leaseTTL
}
