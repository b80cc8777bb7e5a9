package people

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// keyTTL is how long a key is cached. A revocation takes effect within it.
const keyTTL = time.Second

// keyCache holds recently used keys by hash, so that a busy key is not read for each request.
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

// Authenticate returns the caller that an API key belongs to. from is the address of the caller. Refused keys are in
// the access log.
func (s *People) Authenticate(ctx context.Context, secret string, from netip.Addr) (caller.Caller, error) {
	key, err := s.findKey(ctx, secret)
	if err == nil {
		err = s.checkUse(ctx, &key, from)
	}
	if err != nil {
		var refused *problem.Error
		if errors.As(err, &refused) && (refused.Kind == problem.Unauthorized || refused.Kind == problem.Forbidden) {
			s.access.Add(accesslog.Event{
				Kind:    accesslog.FailedKey,
				Reason:  refused.Code,
				User:    key.User,
				Key:     key.ID,
				Address: addressText(from),
			})
		}
		return caller.Caller{}, err
	}
	s.noteUse(ctx, &key)
	return caller.Caller{User: key.User, Key: key.ID, Operator: key.May(models.ScopeOperate), Scopes: scopesOf(&key)}, nil
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.Unmap().String()
}

// findKey returns the API key with a secret.
func (s *People) findKey(ctx context.Context, secret string) (models.Key, error) {
	if !models.LooksLikeSecret(secret) {
		return models.Key{}, wrongKey()
	}
	hash := models.HashSecret(secret)
	if key, ok := s.keys.get(hash); ok {
		return key, nil
	}
	read := time.Now()
	key, err := s.Store.KeyByHash(ctx, hash)
	if errors.Is(err, models.ErrNotFound) {
		return models.Key{}, wrongKey()
	}
	if err != nil {
		return models.Key{}, problem.FromStore("find key", err)
	}
	s.keys.put(hash, key, read)
	return key, nil
}

// checkUse returns an error if an API key may not be used now and from an address.
func (s *People) checkUse(ctx context.Context, key *models.Key, from netip.Addr) error {
	switch {
	case !key.Revoked.IsZero():
		return problem.New(problem.Unauthorized, "revoked_key", "This API key was revoked. Use another one.")
	case !key.Expires.IsZero() && !time.Now().Before(key.Expires):
		return problem.New(problem.Unauthorized, "expired_key", "This API key has expired. Use another one.")
	case !allowedFrom(key.Networks, from):
		return problem.New(problem.Forbidden, "address_not_allowed", "This API key may not be used from this address.")
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return err
	}
	if rules.Disabled(key.User) != nil {
		return userDisabled()
	}
	if !key.May(models.ScopeOperate) {
		return nil
	}
	owner, err := s.Store.User(ctx, key.User)
	if err != nil {
		return problem.FromStore("find user", err)
	}
	if !s.Operator(owner) {
		return problem.New(problem.Forbidden, "owner_not_operator",
			"The owner of this API key is no longer an operator. Use a key without the scope operate.")
	}
	return nil
}

// allowedFrom reports whether an address is in one of the networks. It returns true if there are none.
func allowedFrom(networks []string, from netip.Addr) bool {
	return len(networks) == 0 || slices.ContainsFunc(networks, func(n string) bool {
		p, err := netip.ParsePrefix(n)
		return err == nil && p.Contains(from.Unmap())
	})
}

func wrongKey() *problem.Error {
	return problem.New(problem.Unauthorized, "wrong_key", "This API key does not exist.")
}

// operateKeyTTL is how long a key with the scope operate is valid if no expiry is given.
const operateKeyTTL = 90 * 24 * time.Hour

// maxKeyName is the length in bytes of the longest name of a key.
const maxKeyName = 100

// CreateKey creates an API key for the caller. The secret is returned only here.
func (s *People) CreateKey(
	ctx context.Context, who caller.Caller, name string, o models.KeyOptions,
) (key models.Key, secret string, err error) {
	if err := checkKey(who, name, &o); err != nil {
		return key, "", err
	}
	key, secret = models.NewKey(who.User, name, time.Now())
	key.KeyOptions = o
	if err := s.Store.CreateKey(ctx, key); err != nil {
		return models.Key{}, "", problem.FromStore("create key", err)
	}
	s.Audit.Record(ctx, who, &models.Command{Kind: models.CreatedKey, User: key.User, Subject: key.ID})
	return key, secret, nil
}

// checkKey checks the name and the options of a new key, and converts the options to their stored form.
func checkKey(who caller.Caller, name string, o *models.KeyOptions) error {
	var f problem.Form
	if len(name) > maxKeyName || intake.HasControls(name) {
		f.Wrong("/name", "too_long", "The name must be one line of at most %d bytes.", maxKeyName)
	}
	for i, sc := range o.Scopes {
		at := "/scopes/" + strconv.Itoa(i)
		switch {
		case !sc.Valid():
			f.Wrong(at, "invalid_value", "The scope must be send, read, operate or pass_unsubscribes.")
		case !who.May(sc):
			f.Wrong(at, "scope_not_yours", "You cannot give a key a scope that you do not have.")
		}
	}
	if o.Expires.IsZero() && slices.Contains(o.Scopes, models.ScopeOperate) {
		o.Expires = time.Now().Add(operateKeyTTL).UTC().Truncate(time.Second)
	}
	if !o.Expires.IsZero() && !o.Expires.After(time.Now()) {
		f.Wrong("/expires", "invalid_value", "The expiry time must be in the future.")
	}
	for i, n := range o.Networks {
		p, err := netip.ParsePrefix(n)
		if a, aerr := netip.ParseAddr(n); aerr == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			f.Wrong("/networks/"+strconv.Itoa(i), "invalid_value",
				"%s is neither a network like 192.0.2.0/24 nor an IP address.", problem.Quote(n))
			continue
		}
		o.Networks[i] = p.Masked().String()
	}
	return f.Err()
}

// AllKeys returns a page of the API keys of all users, by user, oldest first. It includes revoked keys. A page may have
// fewer keys than its limit.
func (s *People) AllKeys(ctx context.Context, who caller.Caller, p operation.Page) (client.KeyPage, error) {
	if err := who.NeedOperator(); err != nil {
		return client.KeyPage{}, err
	}
	var q operation.Query
	n, from := q.Limit(p), q.Position(p, keysCursor)
	if err := q.Err(); err != nil {
		return client.KeyPage{}, err
	}
	users, err := s.oldestUsers(ctx)
	if err != nil {
		return client.KeyPage{}, err
	}
	out := client.KeyPage{Keys: []client.Key{}}
	for i := from.Entry; i < len(users); i++ {
		if i == from.Entry+usersOfKeyPage {
			out.Next = operation.Position{Entry: i}.Cursor(keysCursor)
			break
		}
		keys, err := s.keyViews(ctx, &users[i])
		if err != nil {
			return client.KeyPage{}, err
		}
		first := 0
		if i == from.Entry {
			first = min(from.Part, len(keys))
		}
		room := n - len(out.Keys)
		if room < len(keys)-first {
			out.Keys = append(out.Keys, keys[first:first+room]...)
			out.Next = operation.Position{Entry: i, Part: first + room}.Cursor(keysCursor)
			break
		}
		out.Keys = append(out.Keys, keys[first:]...)
	}
	return out, nil
}

// usersOfKeyPage is the maximum number of users whose keys AllKeys reads for a page.
const usersOfKeyPage = 200

// Keys returns the caller's API keys, oldest first. It includes revoked keys.
func (s *People) Keys(ctx context.Context, who caller.Caller) ([]client.Key, error) {
	return s.keyViews(ctx, &models.User{ID: who.User})
}

// KeysOf returns the API keys of a user, given by ID or name, oldest first. It includes revoked keys.
func (s *People) KeysOf(ctx context.Context, who caller.Caller, user string) ([]client.Key, error) {
	u, err := s.User(ctx, who, user)
	if err != nil {
		return nil, err
	}
	return s.keyViews(ctx, &u)
}

func (s *People) keyViews(ctx context.Context, u *models.User) ([]client.Key, error) {
	keys, err := s.Store.Keys(ctx, u.ID)
	if err != nil {
		return nil, problem.FromStore("list keys", err)
	}
	if len(keys) == 0 {
		return []client.Key{}, nil
	}
	used, err := s.lastUses(ctx, u.ID)
	if err != nil {
		return nil, err
	}
	out := make([]client.Key, len(keys))
	for i := range keys {
		k := &keys[i]
		out[i] = client.Key{
			ID:       k.ID,
			Prefix:   k.Prefix(),
			User:     u.ID,
			UserName: u.Name,
			Name:     k.Name,
			Created:  k.Created,
			Expires:  k.Expires,
			Revoked:  k.Revoked,
			LastUsed: used[k.ID],
			Scopes:   texts(scopesOf(k)),
			Networks: k.Networks,
		}
	}
	return out, nil
}

// scopesOf returns the scopes of a key.
func scopesOf(k *models.Key) []models.Scope {
	if len(k.Scopes) == 0 {
		return []models.Scope{models.ScopeSend, models.ScopeRead}
	}
	return k.Scopes
}

// texts returns values as the API has them.
func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

// RevokeKey revokes an API key of a user, given by ID or name: of the caller, or as an operator of anybody. Every
// process refuses the key within a second. Revoking a revoked key changes nothing.
func (s *People) RevokeKey(ctx context.Context, who caller.Caller, user, id, why string) error {
	u, err := s.ownerOf(ctx, who, user, why)
	if err != nil {
		return err
	}
	keys, err := s.Store.Keys(ctx, u.ID)
	if err != nil {
		return problem.FromStore("list keys", err)
	}
	i := slices.IndexFunc(keys, func(k models.Key) bool { return k.ID == id })
	if i < 0 {
		return problem.NotYours("API key")
	}
	if !keys[i].Revoked.IsZero() {
		return nil
	}
	if err := s.Store.RevokeKey(ctx, u.ID, id, time.Now().UTC()); err != nil {
		return problem.FromStore("revoke key", err)
	}
	s.Audit.Record(ctx, who, &models.Command{Kind: models.RevokedKey, User: u.ID, Subject: id, Why: why})
	return nil
}

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

// lastUses returns the time of the last use of each of a user's keys by ID, to a minute. It leaves out keys that were
// not used within keyUseTTL.
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
