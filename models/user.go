package models

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"
)

// User owns batches and API keys.
type User struct {
	ID      string    `json:"id"`   // opaque, 16 characters
	Name    string    `json:"name"` // unique, lower-case
	Created time.Time `json:"created"`
}

// Key is an API key. Only the hash of its secret is stored.
type Key struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Name    string    `json:"name"`
	Hash    string    `json:"hash"` // hex of SHA-256 over the whole secret
	Created time.Time `json:"created"`
	Revoked time.Time `json:"revoked,omitzero"` // zero: valid
	KeyOptions
}

// KeyOptions restrict the use of a key.
type KeyOptions struct {
	Scopes   []Scope   `json:"scopes,omitempty"`   // empty: send and read
	Expires  time.Time `json:"expires,omitzero"`   // zero: never
	Networks []string  `json:"networks,omitempty"` // CIDR; empty: from anywhere
}

// Scope is a permission of a key.
type Scope string

// The scopes.
const (
	ScopeSend    Scope = "send"    // post batches and control own batches
	ScopeRead    Scope = "read"    // read own batches
	ScopeOperate Scope = "operate" // control providers, users, blocks and queues; read the audit trail
	// ScopePass lets urgent mail reach recipients who unsubscribed from its category.
	ScopePass Scope = "pass_unsubscribes"
)

// Valid reports whether s is a scope.
func (s Scope) Valid() bool {
	return slices.Contains([]Scope{ScopeSend, ScopeRead, ScopeOperate, ScopePass}, s)
}

// May reports whether the key has a scope.
func (o *KeyOptions) May(s Scope) bool {
	if len(o.Scopes) == 0 {
		return s == ScopeSend || s == ScopeRead
	}
	return slices.Contains(o.Scopes, s)
}

// secretPrefix begins every API key, so that scanners recognise leaked keys.
const secretPrefix = "sd_"

// NewUserID returns a new user ID.
func NewUserID() string { return randomHex(8) }

// NewKey returns a new key for a user, and its secret: the prefix of the key and 256 bits of randomness. The
// secret is not stored.
func NewKey(user, name string, now time.Time) (key Key, secret string) {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("models: no randomness: " + err.Error())
	}
	key = Key{ID: randomHex(keyIDBytes), User: user, Name: name, Created: now.UTC()}
	secret = key.Prefix() + base64.RawURLEncoding.EncodeToString(b[:])
	key.Hash = HashSecret(secret)
	return key, secret
}

// keyIDBytes is the number of random bytes of a key's ID, which is no secret.
const keyIDBytes = 6

// Prefix returns how the secret of a key begins, so that its owner finds the key that a secret belongs to.
func (k *Key) Prefix() string { return secretPrefix + k.ID + "_" }

// HashSecret returns the stored hash of an API key. The secret is random, so a plain
// hash is enough.
func HashSecret(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

// LooksLikeSecret reports whether s has the form of an API key.
func LooksLikeSecret(s string) bool {
	return strings.HasPrefix(s, secretPrefix) && len(s) == len(secretPrefix)+2*keyIDBytes+len("_")+43
}

func randomHex(n int) string {
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		panic("models: no randomness: " + err.Error())
	}
	return hex.EncodeToString(b)
}

// Limit names something that a user or an API key may have only so much of. The words are
// part of the API.
type Limit string

// The limits of users and API keys.
const (
	RequestsPerSecond Limit = "requests_per_second"
	RequestsAtOnce    Limit = "requests_at_once"
	RecipientsPerHour Limit = "recipients_per_hour"
	RecipientsPerDay  Limit = "recipients_per_day"
	BatchesPerDay     Limit = "batches_per_day"
	StoredBatches     Limit = "stored_batches"
	StoredBytes       Limit = "stored_bytes" // of content, recipients and attachments, before they are compressed
	SpoolBytes        Limit = "spool_bytes"  // of the requests that are being read

	// UrgentRecipientsPerHour refuses nothing: an urgent batch over it becomes bulk.
	UrgentRecipientsPerHour Limit = "urgent_recipients_per_hour"
)

// AllLimits lists the limits in the order in which people read them.
func AllLimits() []Limit {
	return []Limit{
		RequestsPerSecond, RequestsAtOnce, RecipientsPerHour, RecipientsPerDay, UrgentRecipientsPerHour, BatchesPerDay,
		StoredBatches, StoredBytes, SpoolBytes,
	}
}

// Valid reports whether there is such a limit.
func (l Limit) Valid() bool { return slices.Contains(AllLimits(), l) }

// Limits holds the values of limits. 0 means no limit.
type Limits map[Limit]int64

// Over returns the limits of l, and of defaults what l does not set.
func (l Limits) Over(defaults Limits) Limits {
	out := maps.Clone(defaults)
	if out == nil {
		out = Limits{}
	}
	maps.Copy(out, l)
	return out
}
