package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Repeat names a request that its client may send again. The zero value names
// none: then every request is a new one.
type Repeat struct {
	Key   string // as the client chose it
	Route string // keys of different routes have nothing to do with each other
	Hash  string // of all that the request says
}

// How long a running request keeps repeats of itself away; it renews that until
// it ends. Nothing but sparing work hangs on it: two at once write the same.
const (
	onceLease = 10 * time.Second
	onceRenew = onceLease / 3
)

// once runs do for a request, and for its repeats at most until one has
// succeeded: later ones get the first one's result, and replayed is true. do is
// given the claim to work under. Its ID and time are those of the first try, so
// that a repeat finishes what that began; older reports whether there was one.
func once[T any](
	ctx context.Context,
	s *Service,
	who Caller,
	r Repeat,
	do func(ctx context.Context, c models.Claim, older bool) (T, error),
) (v T, replayed bool, err error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	mine := models.Claim{ID: models.NewBatchID(now), Hash: r.Hash, At: now}
	if r.Key == "" {
		v, err = do(ctx, mine, false)
		return v, false, err
	}
	key := r.keyOf(who)
	claim, err := s.claim(ctx, key, mine)
	if err != nil {
		return v, false, err
	}
	if claim.Answer == nil {
		release, held := s.holdOnce(ctx, "once "+key)
		if !held {
			return v, false, Fail(
				Conflict,
				"request_running",
				"The same request is being worked off; repeat it to get its answer.",
			).After(
				1,
			)
		}
		defer release()
		if claim.ID != mine.ID { // it may have been answered meanwhile
			if claim, err = s.claim(ctx, key, mine); err != nil {
				return v, false, err
			}
		}
	}
	if claim.Answer != nil {
		if err := json.Unmarshal(claim.Answer, &v); err != nil {
			return v, false, Fail(
				Internal,
				"internal",
				"Something went wrong here. The request id helps to find it.",
			).Because(
				err,
			)
		}
		return v, true, nil
	}
	v, err = do(ctx, claim, claim.ID != mine.ID)
	s.settle(context.WithoutCancel(ctx), key, claim.ID, v, err)
	return v, false, err
}

// keyOf is what a key stands under in the store.
func (r *Repeat) keyOf(who Caller) string {
	sum := sha256.Sum256([]byte(who.User + "\n" + r.Route + "\n" + r.Key))
	return hex.EncodeToString(sum[:])
}

// begunBefore reports whether a request is a repeat of one that claimed its key. It
// claims nothing: a request that is refused does not use its key up, whatever dies.
func (s *Service) begunBefore(ctx context.Context, who Caller, r Repeat) (bool, error) {
	if r.Key == "" {
		return false, nil
	}
	there, err := s.store.Claimed(ctx, r.keyOf(who))
	if err == nil && there.Hash != r.Hash {
		return false, keyReused()
	}
	return err == nil, nil // as far as anybody knows
}

func keyReused() error {
	return Fail(Invalid, "idempotency_key_reused", "This Idempotency-Key was used for another request.")
}

// claim claims a key for c, or finds what it was claimed for.
func (s *Service) claim(ctx context.Context, key string, c models.Claim) (models.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SettleTime)
	defer cancel()
	for {
		there, err := s.store.Claim(ctx, key, c, s.cfg.IdempotencyTime)
		if errors.Is(err, models.ErrOutcomeUnknown) && ctx.Err() == nil {
			continue // repeating settles it; the store has waited already
		}
		if err != nil {
			return there, storeError("claim idempotency key", err)
		}
		if there.Hash != c.Hash {
			return there, keyReused()
		}
		return there, nil
	}
}

// settle keeps the result of a claimed request. A request that was refused
// frees its key, so that the mended one can use it; after a failure of ours the
// claim stays, for the repeat to finish.
func (s *Service) settle(ctx context.Context, key string, id models.ID, v any, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var e *Error
	switch {
	case err == nil:
		var raw []byte
		if raw, err = json.Marshal(v); err == nil {
			err = s.store.PutAnswer(ctx, key, id, raw, s.cfg.IdempotencyTime)
		}
	case errors.As(err, &e) && e.Kind != Internal && e.Kind != Unavailable || errors.Is(err, models.ErrNotFound): // the batch was cleared away and can never be
		err = s.store.Unclaim(ctx, key, id)
	default:
		return
	}
	if err != nil {
		s.log.Warn("answer not kept; a repeat finds out anew", "batch_id", id.String(), "err", err)
	}
}

// holdOnce takes a lease and renews it until release is called.
func (s *Service) holdOnce(ctx context.Context, name string) (release func(), held bool) {
	holder := models.NewUserID()
	held, err := s.store.Lease(ctx, name, holder, onceLease)
	if err != nil {
		return func() {}, true // the lease only spares work
	}
	if !held {
		return nil, false
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(onceRenew)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				_, _ = s.store.Lease(renewing, name, holder, onceLease) // lost: a repeat does the same work
			case <-renewing.Done():
				return
			}
		}
	}()
	return func() {
		stop()
		<-done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = s.store.Lease(ctx, name, holder, 0) // else it ends by itself
	}, true
}
