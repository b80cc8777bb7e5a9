// Package drift stores what providers suppress and we do not, and how far their suppression lists
// were read.
package drift

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// The documents. All belong to everyone: providers do not say whose mail an address is known from.
const (
	owner     = models.EveryonesList
	stateKind = "provider_lists"  // a document for each provider
	entryKind = "provider_listed" // a document for each address, provider and list
)

// State says how far the lists of a provider were read.
type State struct {
	Began time.Time         `json:"began,omitzero"`  // begin of the last round
	Read  time.Time         `json:"read,omitzero"`   // begin of the last round without an error
	Error string            `json:"error,omitempty"` // of the last round
	Shown int               `json:"shown,omitempty"` // number of entries that are stored, about
	Lists map[string]*Cover `json:"lists,omitempty"` // by name
}

// Refused returns the lists that the provider's key may not read, in their order.
func (s *State) Refused(lists []models.ProviderList) (names []string) {
	for _, l := range lists {
		if c := s.Lists[l.Name]; c != nil && c.Refused {
			names = append(names, l.Name)
		}
	}
	return names
}

// Cover says how far a list was read.
type Cover struct {
	Since   time.Time `json:"since,omitzero"` // the next pass reads what began since then
	Whole   time.Time `json:"whole,omitzero"` // begin of the last pass over the whole list
	Pass    *Pass     `json:"pass,omitempty"` // nil: none is unfinished
	Refused bool      `json:"refused,omitempty"`
}

// Pass is one reading of a list.
type Pass struct {
	From   time.Time `json:"from,omitzero"` // zero: of the whole list
	To     time.Time `json:"to"`            // when it began
	Cursor string    `json:"cursor"`        // of the next page
}

// Entry is an address that a provider suppresses and we do not.
type Entry struct {
	Email    string                   `json:"email"`
	Provider string                   `json:"provider"`
	List     string                   `json:"list"`
	Category string                   `json:"category,omitempty"` // of the unwanted mail; empty: all
	Reason   models.SuppressionReason `json:"reason,omitempty"`   // empty: it is none that holds everywhere
	Text     string                   `json:"text,omitempty"`     // what the provider says
	At       time.Time                `json:"at"`                 // when it began
	Seen     time.Time                `json:"seen"`               // begin of the pass that found it
}

// Key returns the key of an entry. It begins with the hash of the address.
func (e *Entry) Key() string { return KeyOf(models.HashAddress(e.Email), e.Provider, e.List) }

// KeyOf returns the key of the entry of an address.
func KeyOf(h models.AddressHash, provider, list string) string {
	return prefix(h) + provider + "/" + list
}

// ParseKey reverses KeyOf.
func ParseKey(key string) (h models.AddressHash, provider, list string) {
	address, rest, _ := strings.Cut(key, "/")
	provider, list, _ = strings.Cut(rest, "/")
	raw, _ := hex.DecodeString(address)
	copy(h[:], raw)
	return h, provider, list
}

func prefix(h models.AddressHash) string { return hex.EncodeToString(h[:]) + "/" }

// ReadState returns the state of a provider and its version, 0 if there is none.
func ReadState(ctx context.Context, s models.DocumentStore, provider string) (State, int, error) {
	return models.ReadDocument[State](ctx, s, owner, stateKind, provider)
}

// PutState stores the state of a provider with a version, by compare-and-set. Errors: those of
// PutDocument.
func PutState(ctx context.Context, s models.DocumentStore, provider string, st *State, version int) error {
	return put(ctx, s, stateKind, models.Document{Key: provider, Version: version}, st)
}

// put stores a document with a value.
func put(ctx context.Context, s models.DocumentStore, kind string, d models.Document, value any) (err error) {
	if d.Value, err = json.Marshal(value); err != nil {
		return err
	}
	return s.PutDocument(ctx, owner, kind, d)
}

// Stored is a stored entry with its version.
type Stored struct {
	Entry
	Version int
}

func (e *Stored) document() (d models.Document, err error) {
	d = models.Document{Key: e.Key(), Version: e.Version}
	d.Value, err = json.Marshal(e.Entry)
	return d, err
}

func decode(ds []models.Document) ([]Stored, error) {
	out := make([]Stored, len(ds))
	for i := range ds {
		out[i].Version = ds[i].Version
		if err := ds[i].Decode(&out[i].Entry); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Entries returns at most limit entries of all providers with keys greater than after, ascending.
func Entries(ctx context.Context, s models.DocumentStore, after string, limit int) ([]Stored, error) {
	ds, err := s.Documents(ctx, owner, entryKind, after, limit)
	if err != nil {
		return nil, err
	}
	return decode(ds)
}

// EntriesOf returns the stored entries with these keys, by key.
func EntriesOf(ctx context.Context, s models.DocumentStore, keys []string) (map[string]Stored, error) {
	ds, err := s.DocumentsOf(ctx, owner, entryKind, keys)
	if err != nil {
		return nil, err
	}
	es, err := decode(ds)
	out := make(map[string]Stored, len(es))
	for i := range es {
		out[es[i].Key()] = es[i]
	}
	return out, err
}

// Put stores entries, each with a version that is one more than the stored one. An entry that another
// caller has changed meanwhile is left as it is.
func Put(ctx context.Context, s models.DocumentStore, es []Stored) error {
	ds, err := documents(es)
	if err != nil || len(ds) == 0 {
		return err
	}
	_, err = s.PutDocuments(ctx, owner, entryKind, ds)
	return err
}

// Remove removes entries that still have their version.
func Remove(ctx context.Context, s models.DocumentStore, es []Stored) error {
	ds, err := documents(es)
	if err != nil || len(ds) == 0 {
		return err
	}
	return s.RemoveDocuments(ctx, owner, entryKind, ds)
}

func documents(es []Stored) (ds []models.Document, err error) {
	for i := range es {
		d, err := es[i].document()
		if err != nil {
			return nil, err
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// maxOfAddress is more than the number of entries of an address: its lists at all providers.
const maxOfAddress = 1000

// Forget removes the entries of an address that match.
func Forget(ctx context.Context, s models.DocumentStore, address string, match func(*Entry) bool) error {
	before := prefix(models.HashAddress(address))
	found, err := Entries(ctx, s, before, maxOfAddress)
	if err != nil {
		return err
	}
	var drop []Stored
	for i := range found {
		if !strings.HasPrefix(found[i].Key(), before) {
			break
		}
		if match(&found[i].Entry) {
			drop = append(drop, found[i])
		}
	}
	return Remove(ctx, s, drop)
}
