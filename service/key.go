package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// keyTTL is how long a key is remembered: a revocation takes effect within it.
const keyTTL = time.Second

// keyCache spares the store a read per request of a busy key.
type keyCache struct {
	mu   sync.Mutex
	keys map[string]cachedKey
}

type cachedKey struct {
	key  models.Key
	read time.Time
}

func (k *keyCache) get(hash string) (models.Key, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.keys[hash]
	return c.key, ok && time.Since(c.read) < keyTTL
}

func (k *keyCache) put(hash string, key models.Key, read time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil || len(k.keys) > 1000 {
		k.keys = map[string]cachedKey{}
	}
	k.keys[hash] = cachedKey{key: key, read: read}
}

// Authenticate finds who calls with an API key.
func (s *Service) Authenticate(ctx context.Context, secret string) (Caller, error) {
	if !models.LooksLikeSecret(secret) {
		return Caller{}, wrongKey()
	}
	hash := models.HashSecret(secret)
	key, ok := s.keys.get(hash)
	if !ok {
		read := time.Now()
		var err error
		key, err = s.store.KeyByHash(ctx, hash)
		if errors.Is(err, models.ErrNotFound) {
			return Caller{}, wrongKey()
		}
		if err != nil {
			return Caller{}, storeError("find key", err)
		}
		s.keys.put(hash, key, read)
	}
	if !key.Revoked.IsZero() {
		return Caller{}, Fail(Unauthorized, "revoked_key", "This API key was revoked.")
	}
	return Caller{User: key.User}, nil
}

func wrongKey() *Error { return Fail(Unauthorized, "wrong_key", "This API key does not exist.") }

// Keys lists the caller's API keys, oldest first, revoked ones too.
func (s *Service) Keys(ctx context.Context, who Caller) ([]models.Key, error) {
	keys, err := s.store.Keys(ctx, who.User)
	if err != nil {
		return nil, storeError("list keys", err)
	}
	return keys, nil
}

// CreateKey makes an API key of the caller. The secret is returned here and
// nowhere else.
func (s *Service) CreateKey(ctx context.Context, who Caller, name string) (key models.Key, secret string, err error) {
	key, secret = models.NewKey(who.User, name, time.Now())
	if err := s.store.CreateKey(ctx, key); err != nil {
		return models.Key{}, "", storeError("create key", err)
	}
	return key, secret, nil
}

// RevokeKey ends an API key of the caller, within a second everywhere.
func (s *Service) RevokeKey(ctx context.Context, who Caller, id string) error {
	if err := s.store.RevokeKey(ctx, who.User, id, time.Now().UTC()); err != nil {
		return storeError("revoke key", err)
	}
	return nil
}
