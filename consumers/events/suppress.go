package events

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// suppressedBy returns why no more mail is sent to the recipient of an event, or "". A guess
// suppresses no address.
func suppressedBy(ev *models.Event) models.SuppressionReason {
	switch {
	case ev.Guess:
		return ""
	case ev.Kind == models.Complained || ev.Reason == models.SuppressedComplaint:
		return models.Complaint
	case ev.Kind == models.Unsubscribed || ev.Reason == models.SuppressedUnsubscribe:
		return models.Unsubscribe
	case ev.Kind == models.Bounced && ev.Reason == models.MailboxInvalid:
		return models.HardBounce
	}
	return ""
}

// suppressor adds addresses to suppression lists, and notes soft bounces.
type suppressor struct {
	store        Store
	chunks       *dispatch.Chunks
	suppressions *suppression.Lists
	soft         int // soft bounces that suppress an address; 0: none do
}

// suppress adds the recipients of a group's events to the suppression lists of their users, and
// notes their soft bounces. An entry has the time of its event, so that a repeat adds nothing, and
// one that was removed since stays removed.
func (s *suppressor) suppress(ctx context.Context, group *eventGroup) error {
	var soft softBounces
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for i := range group.facts {
		f := &group.facts[i]
		g.Go(func() error { return s.suppressChunk(gctx, f.Chunk, f.Fact.Events, &soft) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return s.noteSoftBounces(ctx, &soft)
}

func (s *suppressor) suppressChunk(
	ctx context.Context, chunk models.ID, events []models.Event, soft *softBounces,
) error {
	isSoft := func(ev *models.Event) bool { return s.soft > 0 && softBounce(ev) }
	if !slices.ContainsFunc(events, func(ev models.Event) bool { return suppressedBy(&ev) != "" || isSoft(&ev) }) {
		return nil
	}
	b, err := s.chunks.Batch(ctx, chunk.Batch())
	if err != nil {
		return err
	}
	recipients, err := s.store.Recipients(ctx, chunk)
	if errors.Is(err, models.ErrNotFound) {
		return nil // the addresses were removed
	}
	if err != nil {
		return err
	}
	var add []models.Suppression
	for i := range events {
		ev := &events[i]
		reason := suppressedBy(ev)
		if ev.Recipient > len(recipients) || recipients[ev.Recipient-1].Erased() {
			continue
		}
		if isSoft(ev) {
			soft.add(b.User, recipients[ev.Recipient-1].Email, chunk.Log(ev.Recipient), ev)
		}
		if reason == "" {
			continue
		}
		e := models.NewSuppression(recipients[ev.Recipient-1].Email, reason, models.FromEvent, ev.At)
		e.Log, e.By = chunk.Log(ev.Recipient), ev.Provider
		if reason == models.Unsubscribe {
			e.Category = b.Category
		}
		add = append(add, e)
	}
	if len(add) == 0 {
		return nil
	}
	return s.suppressions.Add(ctx, b.User, add...)
}
