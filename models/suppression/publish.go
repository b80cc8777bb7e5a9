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
	unpublishedOwner = "suppressions" // of the documents with notes
	unpublishedKind  = "unpublished"
	unpublishedParts = 64

	// maxUnpublished is how many addresses the notes of a document have before no further note is added, so that it stays
	// below models.MaxDocument.
	maxUnpublished = 2000
	// keepUnstored is how long an addition is waited for that was noted and not stored.
	keepUnstored = time.Hour
)

// errFull says that a document has no room for a further note.
var errFull = fmt.Errorf("%w: too many additions to suppression lists are not published yet", models.ErrUnavailable)

// unpublished is a document with notes of additions that are not published yet. A few documents are changed in place,
// because rows that come and go would leave tombstones.
type unpublished struct {
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
	left []models.FeedSuppression // what is not published
}

// note notes additions to a list that are about to be stored. If too many are not published, it publishes them itself.
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
		if err := l.Publish(ctx, time.Now()); err != nil {
			return err
		}
		err = l.putNote(ctx, &n)
	}
	return err
}

func (l *Lists) putNote(ctx context.Context, n *note) error {
	key := fmt.Sprintf("%02x", rand.IntN(unpublishedParts)) //nolint:gosec // spread, no secret
	_, _, err := models.ChangeDocument(ctx, l.store, unpublishedOwner, unpublishedKind, key,
		func(d *unpublished, _ int) error {
			size := 0
			for i := range d.Notes {
				size += d.Notes[i].Addresses
			}
			if size >= maxUnpublished {
				return errFull
			}
			d.Notes = append(d.Notes, *n)
			return nil
		})
	return err
}

// Unpublished reports whether additions are noted that are not published yet.
func (l *Lists) Unpublished(ctx context.Context) (bool, error) {
	docs, err := l.store.Documents(ctx, unpublishedOwner, unpublishedKind, "", unpublishedParts)
	return slices.ContainsFunc(docs, func(d models.Document) bool { return len(d.Value) > len("{}") }), err
}

// Publish writes new suppressions to the feeds, at least once each. A repeat has the same ID. Several processes may
// call it at once; one at a time is enough. After an error about one list it goes on with the others.
func (l *Lists) Publish(ctx context.Context, now time.Time) error {
	docs, err := l.store.Documents(ctx, unpublishedOwner, unpublishedKind, "", unpublishedParts)
	if err != nil {
		return err
	}
	byList := map[string][]*note{}
	for i := range docs {
		var d unpublished
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
		if err := l.publishList(ctx, list, notes, now); err != nil {
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

// publishList publishes the noted additions to a list that are stored, and sets what is left of the notes. It first
// adds their marks to the log of the list, because the process that stored them may have been killed.
func (l *Lists) publishList(ctx context.Context, list string, notes []*note, now time.Time) error {
	var marks []uint64
	var published []models.FeedSuppression
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
		before := len(published)
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
				published = append(published, *e)
			}
		}
		if len(published) > before {
			some, err := codec.DecodeMarks(n.Marks)
			if err != nil {
				return err
			}
			marks = append(marks, some...)
		}
	}
	if len(published) == 0 {
		return nil
	}
	if err := l.addMarks(ctx, list, marks); err != nil {
		return err
	}
	return feed.PublishSuppressions(ctx, l.store, list, published)
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

// removeNotes removes published additions from a document.
func (l *Lists) removeNotes(ctx context.Context, key string, notes []*note) error {
	left := map[models.Token]*note{}
	for _, n := range notes {
		left[n.Token] = n
	}
	_, _, err := models.ChangeDocument(ctx, l.store, unpublishedOwner, unpublishedKind, key,
		func(d *unpublished, _ int) error {
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
