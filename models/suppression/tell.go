package suppression

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/models/feed"
)

const (
	untoldOwner = "suppressions" // of the documents with notes
	untoldKind  = "untold"
	untoldParts = 64

	// maxUntold is how many addresses the notes of a document have before no further note is added, so that it stays
	// below models.MaxDocument.
	maxUntold = 2000
	// keepUnstored is how long an addition is waited for that was noted and not stored.
	keepUnstored = time.Hour
)

// errFull says that a document has no room for a further note.
var errFull = fmt.Errorf("%w: too many additions to suppression lists are not told yet", models.ErrUnavailable)

// untold is a document with notes of additions that are to be told. There are a few, which are changed in place: rows
// that come and go would leave tombstones.
type untold struct {
	Notes []note `json:"notes,omitempty"`
}

// note says what is being added to a list. It is written before the entries are.
type note struct {
	Token     models.Token `json:"token"`
	List      string       `json:"list"`
	Since     time.Time    `json:"since"`
	Addresses int          `json:"addresses"`
	Added     []byte       `json:"added"` // codec.EncodeFeedSuppressions
	Marks     []byte       `json:"marks"` // codec.EncodeMarks

	key  string                   // of its document
	left []models.FeedSuppression // what is not told
}

// note notes additions to a list that are about to be stored. If too many wait to be told, it tells them itself.
func (l *Lists) note(ctx context.Context, list string, es []models.Suppression) error {
	added := make([]models.FeedSuppression, len(es))
	for i := range es {
		added[i] = es[i].ForFeed()
	}
	n := note{
		Token:     models.NewToken(),
		List:      list,
		Since:     time.Now().UTC(),
		Addresses: len(es),
		Added:     codec.EncodeFeedSuppressions(added),
		Marks:     codec.EncodeMarks(marksOf(es)),
	}
	err := l.putNote(ctx, &n)
	if errors.Is(err, errFull) {
		if err := l.Tell(ctx, time.Now()); err != nil {
			return err
		}
		err = l.putNote(ctx, &n)
	}
	return err
}

func (l *Lists) putNote(ctx context.Context, n *note) error {
	key := fmt.Sprintf("%02x", rand.IntN(untoldParts)) //nolint:gosec // spread, no secret
	_, _, err := models.ChangeDocument(ctx, l.store, untoldOwner, untoldKind, key, func(d *untold, _ int) error {
		size := 0
		for i := range d.Notes {
			size += d.Notes[i].Addresses
		}
		if size >= maxUntold {
			return errFull
		}
		d.Notes = append(d.Notes, *n)
		return nil
	})
	return err
}

// Untold reports whether additions are noted that Tell has not told yet.
func (l *Lists) Untold(ctx context.Context) (bool, error) {
	docs, err := l.store.Documents(ctx, untoldOwner, untoldKind, "", untoldParts)
	return slices.ContainsFunc(docs, func(d models.Document) bool { return len(d.Value) > len("{}") }), err
}

// Tell tells the feeds which addresses were added to the lists, each at least once, with an ID that is the same if it
// is told again. It may be called by several processes at once; one at a time is enough. An error about one list
// does not keep others.
func (l *Lists) Tell(ctx context.Context, now time.Time) error {
	docs, err := l.store.Documents(ctx, untoldOwner, untoldKind, "", untoldParts)
	if err != nil {
		return err
	}
	byList := map[string][]*note{}
	for i := range docs {
		var d untold
		if err := docs[i].Decode(&d); err != nil {
			return err
		}
		for k := range d.Notes {
			n := &d.Notes[k]
			n.key = docs[i].Key
			byList[n.List] = append(byList[n.List], n)
		}
	}
	var failed []error
	done := map[string][]*note{} // by key
	for list, notes := range byList {
		if err := l.tellList(ctx, list, notes, now); err != nil {
			failed = append(failed, fmt.Errorf("list %s: %w", list, err))
			continue
		}
		for _, n := range notes {
			done[n.key] = append(done[n.key], n)
		}
	}
	for key, notes := range done {
		failed = append(failed, l.removeNotes(ctx, key, notes))
	}
	return errors.Join(failed...)
}

// tellList tells the noted additions to a list that are stored, and sets what is left of the notes. The log of the
// list gets their marks before: the process that stored them may have been killed.
func (l *Lists) tellList(ctx context.Context, list string, notes []*note, now time.Time) error {
	var marks []uint64
	var told []models.FeedSuppression
	seen := map[string]bool{} // IDs; an event that is reported twice at once is noted twice
	for _, n := range notes {
		added, err := codec.DecodeFeedSuppressions(n.Added)
		if err != nil {
			return err
		}
		stored, err := l.stored(ctx, list, added)
		if err != nil {
			return err
		}
		before := len(told)
		for i := range added {
			e := &added[i]
			row := stored[e.SuppressionKey]
			switch {
			case row == nil || row.At.Before(e.At):
				if now.Sub(n.Since) < keepUnstored {
					n.left = append(n.left, *e)
				}
			case row.InEffect(now) && !seen[e.ID(list)]: // otherwise it was removed meanwhile
				seen[e.ID(list)] = true
				told = append(told, *e)
			}
		}
		if len(told) > before {
			some, err := codec.DecodeMarks(n.Marks)
			if err != nil {
				return err
			}
			marks = append(marks, some...)
		}
	}
	if len(told) == 0 {
		return nil
	}
	if err := l.addMarks(ctx, list, marks); err != nil {
		return err
	}
	return feed.TellSuppressions(ctx, l.store, list, told)
}

// stored returns the stored entries of the addresses of additions.
func (l *Lists) stored(
	ctx context.Context, list string, added []models.FeedSuppression,
) (map[models.SuppressionKey]*models.Suppression, error) {
	hashes := make([]models.AddressHash, len(added))
	for i := range added {
		hashes[i] = added[i].Hash
	}
	there, err := l.store.SuppressionsOf(ctx, list, hashes...)
	if err != nil {
		return nil, err
	}
	out := make(map[models.SuppressionKey]*models.Suppression, len(there))
	for i := range there {
		out[there[i].SuppressionKey] = &there[i]
	}
	return out, nil
}

// removeNotes removes from a document what was told.
func (l *Lists) removeNotes(ctx context.Context, key string, notes []*note) error {
	left := map[models.Token]*note{}
	for _, n := range notes {
		left[n.Token] = n
	}
	_, _, err := models.ChangeDocument(ctx, l.store, untoldOwner, untoldKind, key, func(d *untold, _ int) error {
		d.Notes = slices.DeleteFunc(d.Notes, func(n note) bool {
			return left[n.Token] != nil && len(left[n.Token].left) == 0
		})
		for i := range d.Notes {
			if n := left[d.Notes[i].Token]; n != nil && len(n.left) < d.Notes[i].Addresses {
				d.Notes[i].Addresses, d.Notes[i].Added = len(n.left), codec.EncodeFeedSuppressions(n.left)
			}
		}
		return nil
	})
	return err
}
