package suppressions

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Unsubscribing is what a link to unsubscribe is about.
type Unsubscribing struct {
	Email        string // empty: it was removed
	Sender       string // empty: it was removed
	Category     string // kind of mail; empty: all mail of the user
	Unsubscribed bool
}

// Unsubscribing returns what the link with a token is about.
func (s *Lists) Unsubscribing(ctx context.Context, token string) (Unsubscribing, error) {
	list, e, out, err := s.link(ctx, token)
	if err != nil {
		return out, err
	}
	old, err := s.entry(ctx, list, e.SuppressionKey)
	out.Unsubscribed = old != nil && old.InEffect(time.Now())
	return out, err
}

// entry returns an entry of a suppression list; nil: there is none.
func (s *Lists) entry(ctx context.Context, list string, k models.SuppressionKey) (*models.Suppression, error) {
	there, err := s.Store.SuppressionsOf(ctx, list, k.Hash)
	if err != nil {
		return nil, problem.FromStore("read suppressions", err)
	}
	for i := range there {
		if there[i].SuppressionKey == k {
			return &there[i], nil
		}
	}
	return nil, nil
}

// Unsubscribe suppresses the recipient of a link for its category. When it returns, no call
// begins any more that contains the address. It undoes that if again reports that the recipient wants the mail again.
// Only a valid link calls again.
func (s *Lists) Unsubscribe(ctx context.Context, token string, again func() bool) (Unsubscribing, error) {
	list, e, out, err := s.link(ctx, token)
	if err != nil {
		return out, err
	}
	if again() {
		return out, s.resubscribe(ctx, list, &e)
	}
	if _, err := s.add(ctx, list, []models.Suppression{e}); err != nil {
		return out, err
	}
	s.Audit.Await(ctx)
	out.Unsubscribed = true
	return out, ctx.Err()
}

// resubscribe removes the entry that a link has made.
func (s *Lists) resubscribe(ctx context.Context, list string, e *models.Suppression) error {
	old, err := s.entry(ctx, list, e.SuppressionKey)
	if err != nil || old == nil || old.Removed {
		return err
	}
	old.Removed, old.Origin, old.By = true, models.FromLink, ""
	old.At = models.LaterOf(e.At, old.At.Add(time.Millisecond))
	if err := s.Store.PutSuppressions(ctx, list, *old); err != nil {
		return problem.FromStore("remove suppressions", err)
	}
	return nil
}

// link returns the entry that the link with a token makes, and its list. The batch stays long
// after its recipients were removed, and so does the link.
func (s *Lists) link(
	ctx context.Context, token string,
) (list string, e models.Suppression, out Unsubscribing, err error) {
	t, err := models.ParseUnsubscribeToken(token)
	if err != nil {
		return "", e, out, problem.NoSuch("link")
	}
	b, err := s.Store.Batch(ctx, t.Log.Batch())
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return "", e, out, problem.FromStore("read batch", err)
	}
	if err != nil || b.Unsubscribe == nil || !b.Unsubscribe.Verify(&t) {
		return "", e, out, problem.NoSuch("link")
	}
	rs, err := s.Store.Recipients(ctx, t.Log.ChunkID())
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return "", e, out, problem.FromStore("read recipients", err)
	}
	if n := t.Log.Recipient(); n <= len(rs) && models.HashAddress(rs[n-1].Email) == t.Hash {
		out.Email = rs[n-1].Email
	}
	out.Sender, out.Category = b.Content.From.Email, b.Category
	e = models.NewSuppression(out.Email, models.Unsubscribe, models.FromLink, time.Now())
	e.Hash, e.Mark, e.Category, e.Log = t.Hash, t.Mark, b.Category, t.Log
	return b.User, e, out, nil
}
