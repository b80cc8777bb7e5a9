package suppression

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// MaxMarks is the maximum number of marks of one addition to a list.
const MaxMarks = 1000

// Add stores entries of a list. Every process knows them control.MaxRuleAge after Add has returned nil. Those that add
// an address are published in the feed of the list's user; see Publish. After an error some may be stored; Add may be
// called again.
func (l *Lists) Add(ctx context.Context, name string, es ...models.Suppression) error {
	hashes := make([]models.AddressHash, len(es))
	for i := range es {
		hashes[i] = es[i].Hash
	}
	there, err := l.store.SuppressionsOf(ctx, name, hashes...)
	if err != nil {
		return err
	}
	return l.AddBeside(ctx, name, there, es...)
}

// AddBeside does what Add does for a caller that has just read the stored entries of the addresses.
func (l *Lists) AddBeside(
	ctx context.Context, name string, there []models.Suppression, es ...models.Suppression,
) error {
	if added := addedBy(there, es, time.Now()); len(added) > 0 {
		if err := l.note(ctx, name, added); err != nil {
			return err
		}
	}
	if err := l.store.PutSuppressions(ctx, name, es...); err != nil {
		return err
	}
	return l.addMarks(ctx, name, marksOf(es))
}

// addedBy returns the entries that add an address to a list: no entry with their key is in effect. there has the stored
// entries of their addresses.
func addedBy(there, es []models.Suppression, now time.Time) (added []models.Suppression) {
	known := make(map[models.SuppressionKey]*models.Suppression, len(there))
	for i := range there {
		known[there[i].SuppressionKey] = &there[i]
	}
	for i := range es {
		e := &es[i]
		old := known[e.SuppressionKey]
		if e.InEffect(now) && (old == nil || !old.InEffect(now) && old.At.Before(e.At)) {
			known[e.SuppressionKey] = e
			added = append(added, *e)
		}
	}
	return added
}

// marksOf returns the marks of the addresses of entries.
func marksOf(es []models.Suppression) []uint64 {
	marks := make([]uint64, len(es))
	for i := range es {
		marks[i] = cmp.Or(es[i].Mark, models.MarkAddress(es[i].Email))
	}
	return marks
}

// addMarks adds those marks to the log of a list that it does not have.
func (l *Lists) addMarks(ctx context.Context, name string, marks []uint64) error {
	slices.Sort(marks)
	marks = slices.Compact(marks)
	v := l.get(name)
	select {
	case v.adding <- struct{}{}:
		defer func() { <-v.adding }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		v, err := l.upToDate(ctx, name, 0)
		if err != nil {
			return err
		}
		v.mu.RLock()
		number := v.upTo + 1
		marks = slices.DeleteFunc(marks, func(m uint64) bool {
			_, known := v.marks[m]
			return known
		})
		v.mu.RUnlock()
		if len(marks) == 0 {
			return nil
		}
		a := models.SuppressionAddition{
			Number: number,
			Token:  models.NewToken(),
			Marks:  marks[:min(len(marks), MaxMarks)],
		}
		err = l.store.AppendAddition(ctx, name, a)
		switch {
		case errors.Is(err, models.ErrExists):
			continue // another process was first
		case errors.Is(err, models.ErrOutcomeUnknown):
			err = l.store.AppendAddition(ctx, name, a)
		}
		if err != nil && !errors.Is(err, models.ErrExists) {
			return err
		}
		if err == nil {
			marks = marks[len(a.Marks):]
		}
		if len(marks) == 0 {
			_, err = l.upToDate(ctx, name, 0)
			return err
		}
	}
}
