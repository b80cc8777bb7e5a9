package models

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// SuppressionReason says why an address is suppressed. The words are part of the API.
type SuppressionReason string

// The reasons, the strongest first.
const (
	Complaint   SuppressionReason = "complaint"
	HardBounce  SuppressionReason = "hard_bounce"
	Manual      SuppressionReason = "manual"
	Unsubscribe SuppressionReason = "unsubscribe"
	SoftBounce  SuppressionReason = "soft_bounce"
)

// SuppressionReasons lists the reasons, the strongest first.
var SuppressionReasons = []SuppressionReason{Complaint, HardBounce, Manual, Unsubscribe, SoftBounce}

// Valid reports whether r is one of the reasons.
func (r SuppressionReason) Valid() bool { return slices.Contains(SuppressionReasons, r) }

// suppressionWords are the reasons as sentence fragments for people.
var suppressionWords = map[SuppressionReason]string{
	Complaint:   "the recipient complained about earlier mail",
	HardBounce:  "earlier mail bounced because the mailbox does not exist",
	Manual:      "the address was added to the list manually",
	Unsubscribe: "the recipient unsubscribed",
	SoftBounce:  "several mails in a row could not be delivered",
}

// Words returns the reason as a sentence fragment for people.
func (r SuppressionReason) Words() string { return cmp.Or(suppressionWords[r], string(r)) }

// SuppressionOrigin says what made an entry. The words are part of the API.
type SuppressionOrigin string

// The origins.
const (
	FromEvent  SuppressionOrigin = "event"  // a provider's event; Log says about which mail
	FromAPI    SuppressionOrigin = "api"    // a request
	FromPage   SuppressionOrigin = "page"   // the dashboard
	FromImport SuppressionOrigin = "import" // a CSV file
	FromLink   SuppressionOrigin = "link"   // the unsubscribe link of a mail
	// FromProvider: a suppression list of a provider; By is the provider.
	FromProvider SuppressionOrigin = "provider"
)

// EveryonesList is the name of the suppression list that applies to the mail of all users.
// The list of one user has the user's ID as its name.
const EveryonesList = "*"

// AddressHash identifies an address in a suppression list. It stays when the address is
// erased.
type AddressHash [16]byte

// HashAddress returns the hash of an address, which is the same in upper and lower case.
func HashAddress(address string) (h AddressHash) {
	sum := sha256.Sum256([]byte(strings.ToLower(address)))
	copy(h[:], sum[:])
	return h
}

// SuppressionKey identifies an entry of a list. There is one entry for an address, a
// category and a reason. Keys are in the order of their hashes, which is no order for
// people, and of their categories and reasons.
type SuppressionKey struct {
	Hash     AddressHash       `json:"-"`
	Category string            `json:"category,omitempty"` // kind of mail; empty: all
	Reason   SuppressionReason `json:"reason"`
}

// Compare returns -1, 0 or 1 if k is before, equal to, or after o.
func (k *SuppressionKey) Compare(o *SuppressionKey) int {
	return cmp.Or(
		bytes.Compare(k.Hash[:], o.Hash[:]),
		cmp.Compare(k.Category, o.Category),
		cmp.Compare(k.Reason, o.Reason),
	)
}

// Suppression is an entry of a suppression list: mail to the address is not sent.
type Suppression struct {
	Email string `json:"email,omitempty"` // in lower case; empty: it was erased
	SuppressionKey
	Origin  SuppressionOrigin `json:"origin"`
	Log     ID                `json:"log,omitzero"` // the mail that an event was about
	By      string            `json:"by,omitempty"` // who added or removed it
	Why     string            `json:"why,omitempty"`
	At      time.Time         `json:"at"`                  // when it began, or was removed; in whole milliseconds
	Expires time.Time         `json:"expires_at,omitzero"` // zero: never
	Removed bool              `json:"removed,omitempty"`   // it suppresses nothing any more

	// Mark is MarkAddress of an address that is not known any more; 0: of Email.
	Mark uint64 `json:"-"`
}

// NewSuppression returns an entry for an address.
func NewSuppression(email string, reason SuppressionReason, origin SuppressionOrigin, at time.Time) Suppression {
	return Suppression{
		Email:          strings.ToLower(email),
		SuppressionKey: SuppressionKey{Hash: HashAddress(email), Reason: reason},
		Origin:         origin,
		At:             at.UTC().Truncate(time.Millisecond),
	}
}

// InEffect reports whether the entry suppresses mail at a time.
func (s *Suppression) InEffect(now time.Time) bool {
	return !s.Removed && (s.Expires.IsZero() || now.Before(s.Expires))
}

// Meets reports whether the entry suppresses mail of a category at a time.
func (s *Suppression) Meets(category string, now time.Time) bool {
	return s.InEffect(now) && (s.Category == "" || s.Category == category)
}

// Words says why the mail is not sent, for people.
func (s *Suppression) Words() string {
	if s.Category == "" {
		return s.Reason.Words()
	}
	return s.Reason.Words() + " (category " + s.Category + ")"
}

// Strongest returns the entry with the strongest reason among those that suppress mail of a
// category at a time, or nil if none does.
func Strongest(entries []Suppression, category string, now time.Time) (found *Suppression) {
	rank := func(s *Suppression) int { return slices.Index(SuppressionReasons, s.Reason) }
	for i := range entries {
		if s := &entries[i]; s.Meets(category, now) && (found == nil || rank(s) < rank(found)) {
			found = s
		}
	}
	return found
}

// AddressSuppressed is the event that an address was added to a suppression list. No provider reports it.
const AddressSuppressed EventKind = "suppressed"

// SuppressionAdded is the kind of the notice that an address was added to everyone's suppression list.
const SuppressionAdded NoticeKind = "suppression.added"

// FeedSuppression is an addition to a suppression list in a feed, without the address, which only the list has.
type FeedSuppression struct {
	SuppressionKey
	Origin  SuppressionOrigin
	Log     ID
	At      time.Time
	Expires time.Time // zero: never
}

// ForFeed returns the entry as a feed publishes it.
func (s *Suppression) ForFeed() FeedSuppression {
	return FeedSuppression{SuppressionKey: s.SuppressionKey, Origin: s.Origin, Log: s.Log, At: s.At, Expires: s.Expires}
}

// ID returns the ID of the addition to a list. An address that is removed and added again has another one.
func (s *FeedSuppression) ID(list string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %x %s %s %d", list, s.Hash, s.Category, s.Reason, s.At.UnixMilli()))
	return "sup_" + hex.EncodeToString(sum[:16])
}

// SuppressionAddition is an entry of the log of additions of a suppression list: numbers 1,
// 2, 3, …. It never changes and is never removed.
type SuppressionAddition struct {
	Number int
	Token  Token    // names the append, to resolve an unknown outcome
	Marks  []uint64 // of addresses that were added; see MarkAddress
}

// MarkAddress returns a short hash of an address, which is the same in upper and lower case.
// Nearly all addresses have different marks. It is computed for every recipient, so that it is
// a fast hash.
func MarkAddress(address string) uint64 { return xxhash.Sum64String(strings.ToLower(address)) }

// SuppressionStore stores suppression lists. Each has its entries, and a log of the
// addresses that were ever added, from which processes learn in which entries to look.
type SuppressionStore interface {
	// PutSuppressions stores entries of a list. An entry whose At is before that of the
	// stored entry with the same key changes nothing, and one with the same At replaces
	// it or changes nothing.
	PutSuppressions(ctx context.Context, list string, es ...Suppression) error
	// SuppressionsOf returns the entries of addresses, also those that are removed or have
	// expired, in the order of their keys.
	SuppressionsOf(ctx context.Context, list string, hashes ...AddressHash) ([]Suppression, error)
	// Suppressions returns at most limit entries of a list whose keys are greater than after
	// (zero: from the first), ascending, also those that are removed or have expired.
	Suppressions(ctx context.Context, list string, after SuppressionKey, limit int) ([]Suppression, error)
	// AppendAddition appends a to the log of additions of a list by compare-and-set.
	// a.Number must be one more than the highest number in the log. If several callers
	// append with the same number, exactly one succeeds, and the others get ErrExists.
	// Appending an addition again with the same Token succeeds. Unknown outcomes are
	// resolved as those of Append. Errors: ErrOutcomeUnknown, ErrInvalid (the number leaves
	// a gap).
	AppendAddition(ctx context.Context, list string, a SuppressionAddition) error
	// Additions returns at most limit additions with numbers greater than after, ascending.
	// It returns every addition whose append returned nil before.
	Additions(ctx context.Context, list string, after, limit int) ([]SuppressionAddition, error)
}

// UnsubscribeURL is the name of the placeholder for the address at which a recipient
// unsubscribes from the category of a batch.
const UnsubscribeURL = "unsubscribe_url"

// Unsubscription lets the recipients of a batch unsubscribe.
type Unsubscription struct {
	URL string `json:"url"` // what a token is appended to
	Key []byte `json:"key"` // signs the tokens
}

// NewUnsubscription returns an Unsubscription with a new key. url is that of the page, without
// the token.
func NewUnsubscription(url string) *Unsubscription {
	key := make([]byte, 16)
	if _, err := rand.Read(key); err != nil {
		panic("models: no randomness: " + err.Error())
	}
	return &Unsubscription{URL: url, Key: key}
}

// ForCall returns a recipient of the batch as it is handed to a provider.
func (b *Batch) ForCall(log ID, r Recipient) CallRecipient {
	if _, own := r.Vars[UnsubscribeURL]; b.Unsubscribe != nil && !own {
		vars := make(map[string]string, len(r.Vars)+1)
		maps.Copy(vars, r.Vars)
		vars[UnsubscribeURL] = b.Unsubscribe.URL + b.Unsubscribe.Token(log, r.Email)
		r.Vars = vars
	}
	return CallRecipient{Log: log, Recipient: r}
}

// UnsubscribeToken is what a token says: whose mail it was in. The recipient is known by it
// even after the address was removed.
type UnsubscribeToken struct {
	Log  ID
	Hash AddressHash
	Mark uint64
	sum  []byte
}

const (
	tokenBody = len(ID{}) + len(AddressHash{}) + 8
	tokenSum  = 16
)

// Token returns the token of a recipient.
func (u *Unsubscription) Token(log ID, address string) string {
	h := HashAddress(address)
	body := append(append(make([]byte, 0, tokenBody+tokenSum), log[:]...), h[:]...)
	body = binary.BigEndian.AppendUint64(body, MarkAddress(address))
	return base64.RawURLEncoding.EncodeToString(append(body, u.sum(body)...))
}

func (u *Unsubscription) sum(body []byte) []byte {
	h := hmac.New(sha256.New, u.Key)
	h.Write(body) // never fails
	return h.Sum(nil)[:tokenSum]
}

// ParseUnsubscribeToken parses a token, which is not verified by that. Errors: ErrInvalid.
func ParseUnsubscribeToken(text string) (t UnsubscribeToken, err error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != tokenBody+tokenSum || len(text) != base64.RawURLEncoding.EncodedLen(len(raw)) {
		return t, ErrInvalid
	}
	copy(t.Log[:], raw)
	copy(t.Hash[:], raw[len(t.Log):])
	t.Mark = binary.BigEndian.Uint64(raw[len(t.Log)+len(t.Hash):])
	t.sum = raw[tokenBody:]
	return t, nil
}

// Verify reports whether u has signed the token.
func (u *Unsubscription) Verify(t *UnsubscribeToken) bool {
	body := append(append(make([]byte, 0, tokenBody), t.Log[:]...), t.Hash[:]...)
	return hmac.Equal(t.sum, u.sum(binary.BigEndian.AppendUint64(body, t.Mark)))
}
