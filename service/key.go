package service

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
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

// Authenticate finds who calls with an API key, from an address.
func (s *Service) Authenticate(ctx context.Context, secret string, from netip.Addr) (Caller, error) {
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
	switch {
	case !key.Revoked.IsZero():
		return Caller{}, Fail(Unauthorized, "revoked_key", "This API key was revoked.")
	case !key.Expires.IsZero() && !time.Now().Before(key.Expires):
		return Caller{}, Fail(Unauthorized, "expired_key", "This API key has expired.")
	case !allowedFrom(key.Networks, from):
		return Caller{}, Fail(Forbidden, "address_not_allowed", "This API key may not be used from this address.")
	}
	s.used(ctx, &key)
	scopes := key.Scopes
	if len(scopes) == 0 {
		scopes = []models.Scope{models.ScopeSend, models.ScopeRead}
	}
	return Caller{User: key.User, Operator: key.May(models.ScopeOperate), Scopes: scopes}, nil
}

// allowedFrom reports whether an address is in one of the networks, or there are
// none.
func allowedFrom(networks []string, from netip.Addr) bool {
	return len(networks) == 0 || slices.ContainsFunc(networks, func(n string) bool {
		p, err := netip.ParsePrefix(n)
		return err == nil && p.Contains(from.Unmap())
	})
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

// maxKeyName is the longest name of a key, in bytes.
const maxKeyName = 100

// CreateKey makes an API key of the caller. The secret is returned here and
// nowhere else.
func (s *Service) CreateKey(
	ctx context.Context,
	who Caller,
	name string,
	o models.KeyOptions,
) (key models.Key, secret string, err error) {
	if err := checkKey(who, name, &o); err != nil {
		return key, "", err
	}
	key, secret = models.NewKey(who.User, name, time.Now())
	key.KeyOptions = o
	if err := s.store.CreateKey(ctx, key); err != nil {
		return models.Key{}, "", storeError("create key", err)
	}
	s.noteKey(ctx, who, models.CreatedKey, &key)
	return key, secret, nil
}

// checkKey checks the options of a new key and brings them into their stored
// form.
func checkKey(who Caller, name string, o *models.KeyOptions) error {
	var f Form
	if len(name) > maxKeyName || hasControls(name) {
		f.Wrong("/name", "too_long", "A name is one line of at most %d bytes.", maxKeyName)
	}
	for i, sc := range o.Scopes {
		at := "/scopes/" + strconv.Itoa(i)
		switch {
		case !sc.Valid():
			f.Wrong(at, "invalid_value", "A scope is send, read or operate.")
		case !who.May(sc):
			f.Wrong(at, "scope_not_yours", "Only who may do this can give it to a key.")
		}
	}
	if !o.Expires.IsZero() && !o.Expires.After(time.Now()) {
		f.Wrong("/expires", "invalid_value", "This time is over.")
	}
	for i, n := range o.Networks {
		p, err := netip.ParsePrefix(n)
		if a, aerr := netip.ParseAddr(n); aerr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			f.Wrong(
				"/networks/"+strconv.Itoa(i),
				"invalid_value",
				"%s is not a network like 192.0.2.0/24, or an address.",
				Quote(n),
			)
			continue
		}
		o.Networks[i] = p.Masked().String()
	}
	return f.Err()
}

// RevokeKey ends an API key of the caller, within a second everywhere.
func (s *Service) RevokeKey(ctx context.Context, who Caller, id string) error {
	if err := s.store.RevokeKey(ctx, who.User, id, time.Now().UTC()); err != nil {
		return storeError("revoke key", err)
	}
	s.noteKey(ctx, who, models.RevokedKey, &models.Key{ID: id, User: who.User})
	return nil
}

// noteKey writes down for the audit trail what was done to a key.
func (s *Service) noteKey(ctx context.Context, who Caller, do models.CommandKind, k *models.Key) {
	if _, err := s.order(ctx, who, &models.Command{Kind: do, User: k.User, Subject: k.ID}, nil); err != nil {
		s.log.Error("not written down in the audit trail", "order", string(do), "by", who.by(), "user_id", k.User, "err", err)
	}
}
