// Package backlog finds the mail that waits here: how much, in which lane, for what, and since when.
//
// The sums say exactly how much mail is queued. What mail waits for is a decision per batch. It is made for the batches
// that wait longest and for the newest ones, so that a read costs no more when a million messages wait.
package backlog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/walk"
)

const (
	// side is how many batches are read from each end of the mail that waits.
	side = 250
	// atOnce is how many users or batches are read at the same time.
	atOnce = 8
)

// Batch is a batch with mail that waits here.
type Batch struct {
	ID         models.ID
	Lane       models.Lane
	Recipients int64       // that are queued
	Wait       models.Wait // of one of them
	Since      time.Time   // when it began to wait; zero: its time has not come
}

// Line is the mail of a lane that waits for the same.
type Line struct {
	Lane       models.Lane     `json:"lane"`
	Code       models.WaitCode `json:"code"`
	Provider   string          `json:"provider,omitempty"` // that the mail waits for, if it is one
	Recipients int64           `json:"recipients"`
	Batches    int             `json:"batches"`
	Since      time.Time       `json:"since,omitzero"` // when the oldest batch began to wait; zero: no time has come yet
	Until      time.Time       `json:"until,omitzero"` // the first time at which some of it is tried again; zero: unknown
	Text       string          `json:"text"`           // what the oldest batch waits for, for people
	Oldest     models.ID       `json:"oldest_batch"`
}

// Backlog is the mail that waits here at a moment.
type Backlog struct {
	At     time.Time `json:"at"`
	Queued int64     `json:"queued"` // recipients, by the sums
	Sent   int64     `json:"sent"`   // recipients without a report, by the sums
	Lines  []Line    `json:"waits"`  // urgent mail first, and of a lane what waits longest
	// Partial reports that more batches wait than were read: Lines are of the oldest and the newest ones.
	Partial bool `json:"partial,omitempty"`
}

// Oldest returns the line of a lane whose mail waits longest by itself, and false if there is none. Mail that waits for
// its time, for a command or for evidence is as it should be.
func (b *Backlog) Oldest(lane models.Lane) (l Line, ok bool) {
	for _, line := range b.Lines {
		w := models.Wait{Code: line.Code}
		if line.Lane != lane || line.Since.IsZero() || w.ByCommand() || line.Code == models.WaitEvidence {
			continue
		}
		if !ok || line.Since.Before(l.Since) {
			l, ok = line, true
		}
	}
	return l, ok
}

// Reason is a lane and what its mail waits for.
type Reason struct {
	Lane models.Lane
	Code models.WaitCode
}

// ByReason adds up the lines of all providers. Since is that of the oldest mail.
func (b *Backlog) ByReason() map[Reason]Line {
	out := map[Reason]Line{}
	for _, l := range b.Lines {
		key := Reason{l.Lane, l.Code}
		sum, there := out[key]
		if sum.Recipients += l.Recipients; !there || !l.Since.IsZero() && l.Since.Before(sum.Since) {
			sum.Since = l.Since
		}
		out[key] = sum
	}
	return out
}

// Read returns the backlog of users, of mail that was accepted since first. look returns what a batch waits for, and
// false if it does not wait.
func Read(
	ctx context.Context, store walk.Store, users []string, first, now time.Time,
	look func(context.Context, models.ID) (Batch, bool, error),
) (out Backlog, err error) {
	out.At = now
	waiting, err := out.sums(ctx, store, users, first, now)
	if err != nil || len(waiting) == 0 {
		return out, err
	}
	var ids []models.ID
	for _, up := range []bool{true, false} {
		found, more, err := ends(ctx, store, waiting, walk.Span{First: first, Last: now.Add(time.Hour), Up: up})
		if err != nil {
			return out, err
		}
		ids, out.Partial = append(ids, found...), out.Partial || more
	}
	slices.SortFunc(ids, models.ID.Compare)
	return out, out.look(ctx, slices.Compact(ids), look)
}

// sums adds up what is queued and sent, and returns the users whose mail is queued.
func (b *Backlog) sums(
	ctx context.Context, store walk.Store, users []string, first, now time.Time,
) (waiting []string, err error) {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, user := range users {
		g.Go(func() error {
			days, err := store.Nodes(ctx, user, models.Day, first, now.Add(time.Hour))
			mu.Lock()
			defer mu.Unlock()
			queued := int64(0)
			for i := range days {
				queued += days[i].Summary.Queued
				b.Sent += days[i].Summary.Sent
			}
			if b.Queued += queued; queued > 0 {
				waiting = append(waiting, user)
			}
			return err
		})
	}
	return waiting, g.Wait()
}

// ends returns the first batches of a walk over mail that is queued, and whether there are more.
func ends(ctx context.Context, store walk.Store, users []string, s walk.Span) (ids []models.ID, more bool, err error) {
	walks := make([]walk.Steps, len(users))
	for i, user := range users {
		s.User = user
		walks[i] = walk.Chunks(ctx, store, s, func(sum *models.Summary) bool { return sum.Queued > 0 })
	}
	for step, err := range walk.Batched(walk.Merge(walks, s.Up)) {
		if err != nil {
			return nil, false, err
		}
		if !step.Found {
			continue
		}
		if len(ids) == side {
			return ids, true, nil
		}
		ids = append(ids, step.At)
	}
	return ids, false, nil
}

// look adds what batches wait for.
func (b *Backlog) look(
	ctx context.Context, ids []models.ID, look func(context.Context, models.ID) (Batch, bool, error),
) error {
	found := make([]*Batch, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, id := range ids {
		g.Go(func() error {
			one, waits, err := look(ctx, id)
			if waits {
				found[i] = &one
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, one := range found {
		if one != nil {
			b.add(one)
		}
	}
	slices.SortStableFunc(b.Lines, func(x, y Line) int {
		return cmp.Or(rank(&x)-rank(&y), x.Since.Compare(y.Since), cmp.Compare(y.Recipients, x.Recipients))
	})
	return nil
}

// rank orders lines: urgent mail first, and last of a lane the mail whose time has not come.
func rank(l *Line) (n int) {
	if l.Lane != models.Urgent {
		n += 2
	}
	if l.Since.IsZero() {
		n++
	}
	return n
}

// add counts a batch with those that wait for the same.
func (b *Backlog) add(one *Batch) {
	i := slices.IndexFunc(b.Lines, func(l Line) bool {
		return l.Lane == one.Lane && l.Code == one.Wait.Code && l.Provider == one.Wait.Provider
	})
	if i < 0 {
		i = len(b.Lines)
		b.Lines = append(b.Lines, Line{Lane: one.Lane, Code: one.Wait.Code, Provider: one.Wait.Provider, Since: one.Since,
			Text: one.Wait.Text, Oldest: one.ID})
	}
	l := &b.Lines[i]
	l.Recipients += one.Recipients
	l.Batches++
	if until := one.Wait.Until; l.Until.IsZero() || !until.IsZero() && until.Before(l.Until) {
		l.Until = until
	}
	if !one.Since.IsZero() && (l.Since.IsZero() || one.Since.Before(l.Since)) {
		l.Since, l.Text, l.Oldest = one.Since, one.Wait.Text, one.ID
	}
}
