package service

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
)

// Unsubscribing is what a link to unsubscribe is about.
type Unsubscribing struct {
	Email        string // empty: it was removed
	Sender       string // empty: it was removed
	Category     string // kind of mail; empty: all mail of the user
	Unsubscribed bool
}

// Unsubscribing returns what the link with a token is about.
func (s *Service) Unsubscribing(ctx context.Context, token string) (Unsubscribing, error) {
	list, e, out, err := s.link(ctx, token)
	if err != nil {
		return out, err
	}
	there, err := s.store.SuppressionsOf(ctx, list, e.Hash)
	if err != nil {
		return out, storeError("read suppressions", err)
	}
	for i := range there {
		out.Unsubscribed = out.Unsubscribed || there[i].SuppressionKey == e.SuppressionKey && there[i].InEffect(time.Now())
	}
	return out, nil
}

// Unsubscribe suppresses the recipient of a link for its category. When it returns, no call
// begins any more that contains the address.
func (s *Service) Unsubscribe(ctx context.Context, token string) (Unsubscribing, error) {
	list, e, out, err := s.link(ctx, token)
	if err != nil {
		return out, err
	}
	if _, err := s.addSuppressions(ctx, list, []models.Suppression{e}); err != nil {
		return out, err
	}
	s.awaitPropagation(ctx)
	out.Unsubscribed = true
	return out, ctx.Err()
}

// Resubscribe undoes Unsubscribe.
func (s *Service) Resubscribe(ctx context.Context, token string) (Unsubscribing, error) {
	list, e, out, err := s.link(ctx, token)
	if err != nil {
		return out, err
	}
	there, err := s.store.SuppressionsOf(ctx, list, e.Hash)
	if err != nil {
		return out, storeError("read suppressions", err)
	}
	for i := range there {
		if old := &there[i]; old.SuppressionKey == e.SuppressionKey && !old.Removed {
			old.Removed, old.Origin, old.By = true, models.FromLink, ""
			old.At = models.LaterOf(e.At, old.At.Add(time.Millisecond))
			if err := s.store.PutSuppressions(ctx, list, *old); err != nil {
				return out, storeError("remove suppressions", err)
			}
		}
	}
	return out, nil
}

// link returns the entry that the link with a token makes, and its list. The batch stays long
// after its recipients were removed, and so does the link.
func (s *Service) link(
	ctx context.Context, token string,
) (list string, e models.Suppression, out Unsubscribing, err error) {
	t, err := models.ParseUnsubscribeToken(token)
	if err != nil {
		return "", e, out, noSuch("link")
	}
	b, err := s.store.Batch(ctx, t.Log.Batch())
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return "", e, out, storeError("read batch", err)
	}
	if err != nil || b.Unsubscribe == nil || !b.Unsubscribe.Verify(&t) {
		return "", e, out, noSuch("link")
	}
	rs, err := s.store.Recipients(ctx, t.Log.ChunkID())
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return "", e, out, storeError("read recipients", err)
	}
	if n := t.Log.Recipient(); n <= len(rs) && models.HashAddress(rs[n-1].Email) == t.Hash {
		out.Email = rs[n-1].Email
	}
	out.Sender, out.Category = b.Content.From.Email, b.Category
	e = models.NewSuppression(out.Email, models.Unsubscribe, models.FromLink, time.Now())
	e.Hash, e.Mark, e.Category, e.Log = t.Hash, t.Mark, b.Category, t.Log
	return b.User, e, out, nil
}

// entriesOf returns the entries of an address in the list that the caller means.
func (s *Service) entriesOf(ctx context.Context, who Caller, email string) (string, []models.Suppression, error) {
	list, err := suppressionList(who)
	if err != nil {
		return "", nil, err
	}
	a, err := intake.ParseAddress(email)
	if err != nil {
		return "", nil, noSuch("suppression")
	}
	entries, err := s.store.SuppressionsOf(ctx, list, models.HashAddress(a.Email))
	if err != nil {
		return "", nil, storeError("read suppressions", err)
	}
	return list, entries, nil
}

// Unsuppress removes the entries of an address from the caller's suppression list, or from
// everyone's, those of one reason or category if f has one. Complaints and hard bounces are
// removed only with a reason, which the audit trail shows. It reports whether any was in
// effect.
func (s *Service) Unsuppress(
	ctx context.Context, who Caller, email string, f SuppressionFilter, why string,
) (changed bool, err error) {
	if err := errors.Join(who.Need(models.ScopeSend), checkWhy(why)); err != nil {
		return false, err
	}
	list, entries, err := s.entriesOf(ctx, who, email)
	if err != nil {
		return false, err
	}
	entries = slices.DeleteFunc(entries, func(e models.Suppression) bool {
		return f.Reason != "" && f.Reason != e.Reason || f.Category != "" && f.Category != e.Category
	})
	if len(entries) == 0 {
		return false, noSuch("suppression")
	}
	now := time.Now()
	entries = slices.DeleteFunc(entries, func(e models.Suppression) bool { return !e.InEffect(now) })
	if len(entries) == 0 {
		return false, nil
	}
	hard := func(e models.Suppression) bool { return e.Reason == models.Complaint || e.Reason == models.HardBounce }
	if why == "" && slices.ContainsFunc(entries, hard) {
		var q query
		q.bad("why", "Say why mail may be sent to an address that complained or bounced for good.")
		return false, q.err()
	}
	command := models.Command{
		Kind:    models.RemovedSuppression,
		User:    who.User,
		Subject: hex.EncodeToString(entries[0].Hash[:]),
		Why:     why,
	}
	if _, err := s.appendCommand(ctx, who, &command, nil); err != nil {
		return false, err
	}
	for i := range entries {
		e := &entries[i]
		e.Removed, e.By, e.Why = true, who.by(), why
		e.At = models.LaterOf(now.UTC().Truncate(time.Millisecond), e.At.Add(time.Millisecond))
	}
	if err := s.store.PutSuppressions(ctx, list, entries...); err != nil {
		return false, storeError("remove suppressions", err)
	}
	return true, nil
}

// eraseSuppressions removes an address from the entries of all lists. Its hash stays, so that
// the address stays suppressed.
func (s *Service) eraseSuppressions(ctx context.Context, address string) error {
	users, err := s.store.Users(ctx)
	if err != nil {
		return storeError("read users", err)
	}
	lists := []string{models.EveryonesList}
	for i := range users {
		lists = append(lists, users[i].ID)
	}
	for _, list := range lists {
		entries, err := s.store.SuppressionsOf(ctx, list, models.HashAddress(address))
		if err != nil {
			return storeError("read suppressions", err)
		}
		entries = slices.DeleteFunc(entries, func(e models.Suppression) bool { return e.Email == "" })
		for i := range entries {
			e := &entries[i]
			e.Email, e.Why, e.At = "", "", e.At.Add(time.Millisecond)
		}
		if err := s.store.PutSuppressions(ctx, list, entries...); err != nil {
			return storeError("erase suppressions", err)
		}
	}
	return nil
}
