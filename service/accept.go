package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/tracing"
)

// Accepted is what is told of a batch that was just accepted.
type Accepted struct {
	ID         models.ID         `json:"id"`
	State      models.BatchState `json:"state"`
	Recipients int               `json:"recipients"`
	Duplicates int               `json:"duplicates"`
	Lane       models.Lane       `json:"lane"`
	CreatedAt  time.Time         `json:"created_at"`
	Deadline   time.Time         `json:"deadline"`
}

// Accept checks a batch, stores it and has it announced. When it returns without
// an error, all of it is stored; after any error but acceptance_unknown it is
// certain that nothing of it will be sent. A repeat of a request that was
// accepted gets the same answer, and replayed is true, also where it would be
// refused by now.
func (s *Service) Accept(ctx context.Context, who Caller, in *Intake, r Repeat) (a Accepted, replayed bool, err error) {
	b, wrong := in.Check()
	if wrong != nil {
		if before, err := s.begunBefore(ctx, who, r); err != nil || !before {
			return Accepted{}, false, cmp.Or(err, wrong)
		}
	}
	return once(ctx, s, who, r, func(ctx context.Context, c models.Claim, older bool) (Accepted, error) {
		b.ID, b.User = c.ID, who.User
		if older {
			there, err := s.store.Batch(ctx, b.ID)
			if err == nil {
				return s.accepted(&there), nil // only the answer was not given
			}
			if !errors.Is(err, models.ErrNotFound) {
				return Accepted{}, storeError("read batch", err)
			}
		}
		if wrong == nil {
			wrong = s.maySend(ctx, who.User, b.Content.From)
		}
		if wrong == nil {
			wrong = in.Dated(&b, c.At)
		}
		if wrong != nil && older {
			return s.rejectStaleRetry(ctx, &b, wrong)
		}
		if wrong != nil {
			return Accepted{}, wrong
		}
		span := tracing.Start(
			b.ID,
			"accept",
			time.Now(),
			"recipients",
			strconv.Itoa(b.Recipients),
			"chunks",
			strconv.Itoa(b.Chunks),
			"lane",
			string(b.Lane),
		)
		if err := s.accept(ctx, &b, in.spool); err != nil {
			span.End("not stored")
			return Accepted{}, refused(&b, err)
		}
		span.End("")
		return s.accepted(&b), nil
	})
}

// rejectStaleRetry refuses a repeat that would have been accepted when the first try was
// made, with nothing stored, unless that turns out to be stored after all.
func (s *Service) rejectStaleRetry(ctx context.Context, b *models.Batch, why error) (Accepted, error) {
	gone, err := s.store.AbandonBatch(ctx, b.ID, max(b.Chunks, 1))
	if err != nil {
		return Accepted{}, storeError("settle batch", err)
	}
	if gone {
		return Accepted{}, why
	}
	there, err := s.store.Batch(ctx, b.ID)
	if err != nil {
		return Accepted{}, storeError("read batch", err)
	}
	return s.accepted(&there), nil
}

// accepted announces a stored batch and tells of it.
func (s *Service) accepted(b *models.Batch) Accepted {
	s.announce[b.Lane].add(b)
	s.tallies[b.Lane].batches.Add(1)
	s.tallies[b.Lane].recipients.Add(int64(b.Recipients))
	s.log.Info(
		"batch accepted",
		"batch_id",
		b.ID.String(),
		"user_id",
		b.User,
		"recipients",
		b.Recipients,
		"lane",
		string(b.Lane),
	)
	return Accepted{ID: b.ID, State: models.BatchQueued, Recipients: b.Recipients, Duplicates: b.Duplicates, Lane: b.Lane,
		CreatedAt: b.Created(), Deadline: b.Deadline}
}

// accept stores a batch: the agenda entry first, so that whatever follows is
// found again, then all chunks but the first, then the batch itself with its
// first chunk. Until that last write nothing exists; the client going away
// before it ends the request, after it does not matter.
func (s *Service) accept(ctx context.Context, b *models.Batch, sp *spool) error {
	if b.Lane == models.Urgent {
		s.cfg.Priority.NoteUrgent()
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.IntakeTime)
	defer cancel()
	entry := models.AgendaEntry{
		Due:    b.Created().Add(s.cfg.Recheck),
		Kind:   models.LookAtBatch,
		ID:     b.ID,
		User:   b.User,
		Chunks: b.Chunks,
		Lane:   b.Lane,
	}
	if err := s.store.Schedule(ctx, entry); err != nil {
		return err
	}
	first, err := s.putChunks(ctx, b, sp)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.commit(context.WithoutCancel(ctx), b, first); err != nil {
		return err
	}
	s.told(b, first)
	return nil
}

// errAcceptanceUnknown: the deciding write was sent, and it is unknown whether
// it took.
var errAcceptanceUnknown = errors.New("acceptance unknown")

// commit makes the deciding write. Once its outcome is unknown only a definite
// answer of a later try settles it: an unavailable store says nothing of the
// first one.
func (s *Service) commit(ctx context.Context, b *models.Batch, first models.Chunk) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SettleTime)
	defer cancel()
	unknown := false
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.store.PutBatch(ctx, *b, first)
		switch {
		case err == nil, errors.Is(err, models.ErrNotFound):
			return err
		case errors.Is(err, models.ErrOutcomeUnknown):
			unknown = true
		case !unknown && (errors.Is(err, models.ErrUnavailable) || errors.Is(err, models.ErrInvalid) || errors.Is(err, models.ErrClosed)):
			return err
		default:
			unknown = true // also an error that says nothing, like a deadline's
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errAcceptanceUnknown, err)
		case <-time.After(wait):
		}
	}
}

// putChunks stores all chunks but the first, a few at a time, and returns that.
func (s *Service) putChunks(ctx context.Context, b *models.Batch, sp *spool) (models.Chunk, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	var first models.Chunk
	n := 0
	sizes := sp.cut().sizes
	current := make([]models.Recipient, 0, sizes[0])
	err := sp.each(func(_ int, r models.Recipient) error {
		current = append(current, r)
		if len(current) < sizes[n] {
			return nil
		}
		chunk := models.Chunk{ID: b.ID.Chunk(n), Recipients: current}
		if n == 0 {
			first = chunk
		} else {
			g.Go(func() error { return s.store.PutChunk(ctx, chunk) })
		}
		if n++; n < len(sizes) {
			current = make([]models.Recipient, 0, sizes[n])
		}
		return ctx.Err()
	})
	if werr := g.Wait(); werr != nil {
		err = werr
	}
	return first, err
}

// refused says why a batch could not be stored.
func refused(b *models.Batch, err error) error {
	var e *Error
	switch {
	case errors.Is(err, errAcceptanceUnknown):
		e = Fail(Unavailable, "acceptance_unknown",
			"The store did not say whether the batch was kept. Ask for it under its id before sending it again.").After(30)
		e.BatchID = b.ID.String()
	case errors.Is(err, errSpool):
		return spoolError(err)
	case errors.Is(err, models.ErrNotFound):
		e = Fail(
			Unavailable,
			"intake_too_slow",
			"Storing took so long that the batch was cleared away. Nothing will be sent; repeat the request.",
		).After(
			30,
		)
	default:
		e = Fail(
			Unavailable,
			"store_unavailable",
			"The store cannot be reached. Nothing will be sent; repeat the request.",
		).After(
			5,
		)
	}
	return e.Because(fmt.Errorf("batch %s: %w", b.ID, err))
}
