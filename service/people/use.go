package people

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// The last use of a key is a value of its own: recording it never writes the key, so it cannot undo a revocation.
const (
	keyUseEvery   = time.Minute // a process records the use of a key at most this often
	keyUseTTL     = 400 * 24 * time.Hour
	keyUseTimeout = 10 * time.Second // of the write
	maxKeyUses    = 10_000           // keys in keyUses
)

func keyUseKind(user string) string { return "key-used." + user }

// keyUses holds when the use of each key was last recorded.
type keyUses struct {
	mu       sync.Mutex
	recorded map[string]time.Time // by key ID
	wg       sync.WaitGroup
}

// due reports whether a use at now must be recorded. It then takes it as recorded.
func (u *keyUses) due(key string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at, ok := u.recorded[key]; ok && now.Sub(at) < keyUseEvery {
		return false
	}
	if u.recorded == nil || len(u.recorded) >= maxKeyUses {
		u.recorded = map[string]time.Time{}
	}
	u.recorded[key] = now
	return true
}

// noteUse records in the background that a key is used now.
func (s *People) noteUse(ctx context.Context, k *models.Key) {
	now := time.Now()
	if !s.uses.due(k.ID, now) {
		return
	}
	user, id := k.User, k.ID
	s.uses.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyUseTimeout)
		defer cancel()
		at := []byte(now.UTC().Format(time.RFC3339))
		if err := s.Store.PutTransient(ctx, keyUseKind(user), id, at, keyUseTTL); err != nil {
			s.Log.Warn("cannot record the use of an API key", "user_id", user, "err", err)
		}
	})
}

// lastUses returns the time of the last use of each of a user's keys by ID, to a minute. It
// leaves out keys that were not used within keyUseTTL.
func (s *People) lastUses(ctx context.Context, user string) (map[string]time.Time, error) {
	raw, err := s.Store.Transients(ctx, keyUseKind(user))
	if err != nil {
		return nil, problem.FromStore("read uses of keys", err)
	}
	out := map[string]time.Time{}
	for id, b := range raw {
		if at, err := time.Parse(time.RFC3339, string(b)); err == nil {
			out[id] = at
		}
	}
	return out, nil
}
