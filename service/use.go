package service

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// When an API key was used last is a report of its own: noting a use never
// touches the key, so it cannot bring back one that was revoked meanwhile.
const (
	useNote = time.Minute // a use is noted no more often than that, by key and process
	useKept = 400 * 24 * time.Hour
	useTime = 10 * time.Second // for writing it
	useMost = 10_000           // keys that are remembered
)

func useKind(user string) string { return "key-used." + user }

// uses remembers which uses were noted lately.
type uses struct {
	mu    sync.Mutex
	noted map[string]time.Time // by key
	wg    sync.WaitGroup
}

// due reports whether a use at now is to be noted, and takes it for noted.
func (u *uses) due(key string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at, ok := u.noted[key]; ok && now.Sub(at) < useNote {
		return false
	}
	if u.noted == nil || len(u.noted) >= useMost {
		u.noted = map[string]time.Time{}
	}
	u.noted[key] = now
	return true
}

// used notes that a key was used now, without holding up its request.
func (s *Service) used(ctx context.Context, k *models.Key) {
	now := time.Now()
	if !s.uses.due(k.ID, now) {
		return
	}
	user, id := k.User, k.ID
	s.uses.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), useTime)
		defer cancel()
		if err := s.store.PutTransient(ctx, useKind(user), id, []byte(now.UTC().Format(time.RFC3339)), useKept); err != nil {
			s.log.Warn("use of a key not noted", "user_id", user, "err", err)
		}
	})
}

// KeyUses says when the caller's keys were used last, by id, to a minute. Keys
// that were not used in the last year are left out.
func (s *Service) KeyUses(ctx context.Context, who Caller) (map[string]time.Time, error) {
	raw, err := s.store.Transients(ctx, useKind(who.User))
	if err != nil {
		return nil, storeError("read uses of keys", err)
	}
	out := map[string]time.Time{}
	for id, b := range raw {
		if at, err := time.Parse(time.RFC3339, string(b)); err == nil {
			out[id] = at
		}
	}
	return out, nil
}
