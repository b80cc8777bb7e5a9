// Package idempotency carries out a request once, however often its client sends it.
package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
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
// lease only saves work: two runs of a request have the same result.
const (
	leaseTTL   = 10 * time.Second
	renewEvery = leaseTTL / 3
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
	if claim.Answer != nil {
		if err := json.Unmarshal(claim.Answer, &v); err != nil {
			return v, false, problem.New(problem.Internal, "internal",
				"An internal error occurred. Report the request ID to the operator.").Because(err)
		}
		return v, true, nil
	}
	v, err = do(ctx, claim, claim.ID != mine.ID)
	g.finish(context.WithoutCancel(ctx), key, claim.ID, own, v, err)
	return v, false, err
}

// Begun reports whether an earlier attempt of a user's request claimed its key. It claims nothing, so that a request
// that is refused never uses up its key. If the store cannot be read, Begun returns false.
func (g *Guard) Begun(ctx context.Context, user string, r Repeat) (bool, error) {
	if r.Key == "" {
		return false, nil
	}
	there, err := g.Store.Claimed(ctx, r.storedKey(user))
	if err == nil && there.Hash != r.Hash {
		return false, errKeyReused()
	}
	return err == nil, nil
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
	if c, err = g.claim(ctx, key, mine); err != nil || c.Answer != nil {
		return c, nil, err
	}
	if g.Stored != nil && c.ID != mine.ID {
		if stored, err := g.Stored(ctx, c.ID); err == nil && stored {
			return c, nil, nil
		}
	}
	own, held := g.lease(ctx, "once "+key)
	if !held {
		return c, nil, problem.New(problem.Conflict, "request_running",
			"The same request is still running. Repeat it to get its answer.").After(1)
	}
	if c.ID != mine.ID { // the request may have been answered since
		if c, err = g.claim(ctx, key, mine); err != nil {
			own.end()
			return c, nil, err
		}
	}
	return c, own, nil
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
func (g *Guard) finish(ctx context.Context, key string, id models.ID, own *lease, v any, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	switch {
	case err == nil && g.Stored != nil:
		return
	case err == nil:
		var raw []byte
		if raw, err = json.Marshal(v); err == nil {
			err = g.Store.PutAnswer(ctx, key, id, raw, g.TTL)
		}
	case refused(err):
		err = g.unclaim(ctx, key, id, own)
	default:
		return
	}
	if err != nil {
		g.Log.Warn("answer to an idempotent request not stored; a repeat runs again", "batch_id", id.String(), "err", err)
	}
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
	if err != nil || there.ID != id || there.Answer != nil {
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
	stop         func() // ends the renewal and waits for it
}

// lease takes a lease and renews it until it is ended. It returns false if another holder
// has it. If the store cannot tell, the request runs without it.
func (g *Guard) lease(ctx context.Context, name string) (*lease, bool) {
	own := &lease{store: g.Store, name: name, holder: models.NewUserID(), stop: func() {}}
	held, err := own.renew(ctx)
	if err != nil {
		return own, true
	}
	if !held {
		return nil, false
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range models.Every(renewing, renewEvery) {
			_, _ = own.renew(renewing) // if it is lost, a repeat may run beside this one
		}
	}()
	own.stop = func() {
		stop()
		<-done
	}
	return own, true
}

// renew renews the lease, or takes it. It returns false if another holder has it.
func (l *lease) renew(ctx context.Context) (bool, error) {
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
	l.stop()
	ctx, cancel := context.WithTimeout(context.Background(), storeTime)
	defer cancel()
	_, _ = l.store.Lease(ctx, l.name, l.holder, 0) // if this fails, the lease ends after leaseTTL
}
