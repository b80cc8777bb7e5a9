package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Release is an order to let go what is held at a provider in a time range.
type Release struct {
	Provider string    // empty: any
	From, To time.Time // of acceptance
	Why      string

	request models.ID
	waiting int // batches that it reached, and that another order keeps from going out
}

// Released tells how many batches an order reached. Warning is empty where it
// reached none.
type Released struct {
	Batches int    `json:"batches"`
	Warning string `json:"warning"`
}

// maxReleaseRange bounds a release by time.
const maxReleaseRange = 31 * 24 * time.Hour

// ReleaseRange releases everything that is held for an unknown outcome, of the
// caller's batches or, for an operator, of all.
func (s *Service) ReleaseRange(ctx context.Context, who Caller, rel Release, r Repeat) (Released, bool, error) {
	return once(ctx, s, who, r, func(ctx context.Context, claim models.Claim, _ bool) (Released, error) {
		rel.request = claim.ID
		if err := s.checkRelease(who, &rel); err != nil {
			return Released{}, err
		}
		users := []models.User{{ID: who.User}}
		if who.May(models.ScopeOperate) {
			var err error
			if users, err = s.store.Users(ctx); err != nil {
				return Released{}, storeError("list users", err)
			}
		}
		var batches []models.AgendaEntry
		var err error
		for i := 0; i < len(users) && err == nil; i++ {
			batches, err = s.releaseUser(ctx, who, users[i].ID, &rel, batches)
		}
		if len(batches) > 0 {
			s.awaitPropagation(context.WithoutCancel(ctx))
		}
		out := Released{Batches: len(batches)}
		if len(batches) > 0 {
			out.Warning = mayDoubleWarning
		}
		if !s.resume(ctx, batches...) {
			out.Warning += " " + lateWarning
		}
		if rel.waiting > 0 {
			out.Warning += fmt.Sprintf(
				" Of %d of the batches nothing goes out yet: another order keeps them (a stop, a pause, a hold, a block rule, providers offline).",
				rel.waiting,
			)
		}
		var e *Error
		if len(batches) > 0 && errors.As(err, &e) && e.Code == "store_unavailable" {
			e.Detail = fmt.Sprintf(
				"%d batches were released; then the store could not be reached. Repeat the request for the rest.",
				len(batches),
			)
		}
		return out, err
	})
}

func (s *Service) checkRelease(who Caller, rel *Release) error {
	if !who.May(models.ScopeOperate) {
		if err := who.Need(models.ScopeSend); err != nil {
			return err
		}
	}
	var f Form
	if rel.Provider != "" && !s.known[rel.Provider] {
		f.Wrong("/provider", "unknown_provider", "No provider is called %s.", Quote(rel.Provider))
	}
	if rel.From.IsZero() {
		f.Wrong("/from", "required", "Give from: batches accepted at or after it.")
	}
	if rel.To.IsZero() {
		f.Wrong("/to", "required", "Give to: batches accepted at or before it.")
	}
	if !rel.From.IsZero() && !rel.To.IsZero() && (rel.To.Before(rel.From) || rel.To.Sub(rel.From) > maxReleaseRange) {
		f.Wrong("/to", "invalid_value", "to is not before from, and at most 31 days after it.")
	}
	return f.Err()
}

// releaseUser orders the release of a user's batches. It adds those whose order
// stands, also where it fails later.
func (s *Service) releaseUser(
	ctx context.Context,
	who Caller,
	user string,
	rel *Release,
	ordered []models.AgendaEntry,
) ([]models.AgendaEntry, error) {
	const page = 100
	before, last := models.MaxID(rel.To), models.MinID(rel.From).Time()
	for {
		batches, err := s.store.Batches(ctx, user, before, page)
		if err != nil {
			return ordered, storeError("list batches", err)
		}
		for i := range batches {
			b := &batches[i]
			if b.Created().Before(last) {
				return ordered, nil
			}
			if b.Damaged { // nothing goes on with it
				continue
			}
			held, err := s.holds(ctx, b, rel.Provider)
			if err != nil {
				return ordered, err
			}
			if !held {
				continue
			}
			_, err = s.place(
				ctx,
				who,
				b,
				&models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Provider: rel.Provider, Why: rel.Why, Request: rel.request},
			)
			var e *Error
			if errors.As(err, &e) && e.Kind == Conflict { // cancelled
				continue
			}
			if err != nil {
				return ordered, err
			}
			ordered = append(ordered, goingOn(b))
			if len(s.waitsFor(s.journal.Rules(), b)) > 0 {
				rel.waiting++
			}
		}
		if len(batches) < page {
			return ordered, nil
		}
		before = batches[len(batches)-1].ID
	}
}

// holds reports whether a batch may have logs that are held at a provider.
func (s *Service) holds(ctx context.Context, b *models.Batch, provider string) (bool, error) {
	sum, err := s.total(ctx, b)
	if err != nil {
		return false, storeError("sum batch", err)
	}
	tried := provider == "" || sum.Providers[provider].Tried > 0
	return tried && sum.Reasons[models.OutcomeUnknown]+sum.Reasons[models.NoFinalEvent] > 0, nil
}
