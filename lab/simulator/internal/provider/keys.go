package provider

import (
	"crypto/sha256"
	"sync"
	"time"
)

// maxKey is the length of an idempotency key.
const maxKey = 256

// Keys remember the answers to calls with idempotency keys. They are safe for concurrent use.
type Keys struct {
	mu    sync.Mutex
	calls map[string]*keyed
}

// A keyed is a call with a key.
type keyed struct {
	body   [sha256.Size]byte
	ends   time.Time
	answer *Answer // nil = the call is not finished
}

// Begin returns the answer to a call with a key that another call had, or one that is not valid. Otherwise it returns
// nil, and end must be called with the answer to the call, or nil if no mail was stored: the key is free then.
func (k *Keys) Begin(p *Provider, key, body string) (earlier *Answer, end func(*Answer)) {
	if key == "" || p.KeyLifetime == 0 {
		return nil, func(*Answer) {}
	}
	now := time.Now()
	c := &keyed{body: sha256.Sum256([]byte(body)), ends: now.Add(p.Scale(p.KeyLifetime))}
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.calls[key]
	free := before == nil || before.answer != nil && !now.Before(before.ends)
	for kind, is := range map[ConditionKind]bool{
		KeyInvalid: len(key) > maxKey,
		KeyReused:  !free && before.body != c.body,
		KeyBusy:    !free && before.body == c.body && before.answer == nil,
		KeyKnown:   !free && before.body == c.body && before.answer != nil && p.Conditions[KeyKnown].Status != 0,
	} {
		if is {
			a := p.Refused(Condition{Kind: kind})
			return &a, func(*Answer) {}
		}
	}
	if !free {
		return before.answer, func(*Answer) {}
	}
	if k.calls == nil {
		k.calls = map[string]*keyed{}
	}
	k.calls[key] = c
	return nil, func(a *Answer) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if c.answer = a; a == nil && k.calls[key] == c {
			delete(k.calls, key)
		}
	}
}

// Reset forgets all keys.
func (k *Keys) Reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = nil
}
