package drift

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	shownPage = 500    // entries that are read at a time
	shownRead = 10_000 // entries that Shown reads at most
)

// Store is the part of models.Store that Shown needs.
type Store interface {
	models.DocumentStore
	SuppressionsOf(ctx context.Context, list string, hashes ...models.AddressHash) ([]models.Suppression, error)
}

// Shown is an entry as it is shown.
type Shown struct {
	Entry
	Removed *models.Suppression // what was removed from everyone's list; nil: nothing
}

// Show returns at most limit entries of a provider with keys greater than after. It leaves out those that everyone's
// list suppresses meanwhile. next is the key to go on after, or empty if there are no more.
func Show(ctx context.Context, s Store, provider, after string, limit int) (out []Shown, next string, err error) {
	for read := 0; ; read += shownPage {
		if read >= shownRead {
			return out, after, nil
		}
		page, err := Entries(ctx, s, after, shownPage)
		if err != nil {
			return nil, "", err
		}
		ours, err := suppressed(ctx, s, page)
		if err != nil {
			return nil, "", err
		}
		for i := range page {
			e := &page[i].Entry
			key := e.Key()
			there := ours[models.HashAddress(e.Email)]
			if e.Provider == provider && models.Strongest(there, e.Category, time.Now()) == nil {
				if len(out) == limit {
					return out, after, nil
				}
				out = append(out, Shown{*e, removed(e, there)})
			}
			after = key
		}
		if len(page) < shownPage {
			return out, "", nil
		}
	}
}

// suppressed returns the entries of everyone's list of the addresses of a page.
func suppressed(ctx context.Context, s Store, page []Stored) (map[models.AddressHash][]models.Suppression, error) {
	hashes := make([]models.AddressHash, len(page))
	for i := range page {
		hashes[i] = models.HashAddress(page[i].Email)
	}
	out := map[models.AddressHash][]models.Suppression{}
	if len(hashes) == 0 {
		return out, nil
	}
	there, err := s.SuppressionsOf(ctx, models.EveryonesList, hashes...)
	for _, e := range there {
		out[e.Hash] = append(out[e.Hash], e)
	}
	return out, err
}

// removed returns the entry that was removed from everyone's list, or nil.
func removed(e *Entry, there []models.Suppression) *models.Suppression {
	for i := range there {
		if r := &there[i]; r.Removed && r.Reason == e.Reason && r.Category == e.Category {
			return r
		}
	}
	return nil
}

// States returns the states of all providers by name.
func States(ctx context.Context, s models.DocumentStore) (map[string]State, error) {
	ds, err := s.Documents(ctx, owner, stateKind, "", 1000)
	if err != nil {
		return nil, err
	}
	out := make(map[string]State, len(ds))
	for i := range ds {
		var st State
		if err := ds[i].Decode(&st); err != nil {
			return nil, err
		}
		out[ds[i].Key] = st
	}
	return out, nil
}

// Note stores an entry, unless it is stored.
func Note(ctx context.Context, s models.DocumentStore, e *Entry) error {
	return Put(ctx, s, []Stored{{Entry: *e, Version: 1}})
}
