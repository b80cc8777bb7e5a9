package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/tracing"
)

// Recipient is one recipient of a request.
type Recipient = intake.Recipient

// Accepted is the answer to a batch that was accepted.
type Accepted struct {
	ID         models.ID         `json:"id"`
	State      models.BatchState `json:"state"`
	Recipients int               `json:"recipients"`
	Duplicates int               `json:"duplicates"`
	Suppressed int               `json:"suppressed"` // recipients whose logs have failed already
	Rejected   *mail.Rejected    `json:"rejected,omitempty"`
	Lane       models.Lane       `json:"lane"`
	LaneLimit  models.Limit      `json:"lane_limit,omitempty"` // that made it bulk
	CreatedAt  time.Time         `json:"created_at"`
	DeliverAt  time.Time         `json:"deliver_at,omitzero"` // zero: at once
	ExpiresAt  time.Time         `json:"expires_at"`
	OwnTimes   *client.OwnTimes  `json:"own_times,omitempty"` // nil: all recipients have those of the batch
}

// Accept checks a batch, stores it and announces it. If it returns nil, the whole batch is stored. After any error but
// acceptance_unknown nothing of the batch will be sent. A repeat of a request that was accepted gets the same answer,
// even if it would be refused now, and replayed is true.
func (s *Service) Accept(
	ctx context.Context,
	who Caller,
	in *intake.Intake,
	r Repeat,
) (a Accepted, replayed bool, err error) {
	if err := s.Limits.CheckDisk(ctx, who.User); err != nil {
		return Accepted{}, false, err
	}
	b, wrong := in.Check()
	if err := ctx.Err(); err != nil {
		return Accepted{}, false, err
	}
	a, replayed, stored, err := s.acceptOnce(ctx, who, in, b, wrong, r)
	if err == nil && in.Permissive() {
		a.Rejected, err = s.firstRejected(ctx, in, a, stored)
	}
	return a, replayed, err
}

// acceptOnce is Accept for a batch that was checked. wrong is why it cannot be accepted, if anything. stored reports
// whether this call stored it.
func (s *Service) acceptOnce(
	ctx context.Context, who Caller, in *intake.Intake, b models.Batch, wrong error, r Repeat,
) (a Accepted, replayed, stored bool, err error) {
	if wrong != nil {
		if begun, err := s.guard.Begun(ctx, who.User, r); err != nil || !begun {
			return Accepted{}, false, false, cmp.Or(err, wrong)
		}
	}
	found := false
	do := func(ctx context.Context, c models.Claim, older bool) (Accepted, error) {
		b.ID, b.User, b.Via = c.ID, who.User, who.Via
		if older {
			there, err := s.store.Batch(ctx, b.ID)
			if err == nil {
				found = true
				return s.accepted(&there), nil
			}
			if !errors.Is(err, models.ErrNotFound) {
				return Accepted{}, storeError("read batch", err)
			}
			if wrong == nil && (b.Template != nil || in.HasOwnTimes()) {
				wrong = errAttemptAbandoned()
			}
		}
		if wrong == nil {
			wrong = s.allowed(ctx, who, in, &b, c.At)
		}
		if wrong != nil && older {
			return s.rejectStaleRetry(ctx, &b, wrong)
		}
		if wrong != nil {
			return Accepted{}, wrong
		}
		b.PassUnsubscribes = who.PassesUnsubscribes(&b)
		giveBack, err := takeBatch(ctx, s.Limits, who, &b, in)
		if err != nil {
			return Accepted{}, err
		}
		span := tracing.Start(b.ID, "accept", time.Now(),
			"recipients", strconv.Itoa(b.Recipients), "chunks", strconv.Itoa(b.Chunks), "lane", string(b.Lane))
		if err := s.storeBatch(ctx, &b, in); err != nil {
			giveBack()
			span.End("not stored")
			return Accepted{}, acceptError(&b, err)
		}
		span.End("")
		stored = true
		return s.accepted(&b), nil
	}
	a, replayed, err = idempotency.Once(ctx, &s.accepting, who.User, r, do)
	return a, replayed || found, stored, err
}

// check returns the batch of a request that was read, with its times. It checks it against the rules of now.
func (s *Service) check(
	ctx context.Context, who Caller, in *intake.Intake, requested time.Time,
) (models.Batch, error) {
	b, err := in.Check()
	if err = cmp.Or(ctx.Err(), err); err == nil {
		err = s.allowed(ctx, who, in, &b, requested)
	}
	b.PassUnsubscribes = who.PassesUnsubscribes(&b)
	return b, err
}

// allowed checks what a batch asks for against the rules of now, and sets its times.
func (s *Service) allowed(
	ctx context.Context, who Caller, in *intake.Intake, b *models.Batch, requested time.Time,
) error {
	if err := s.People.CheckSender(ctx, who.User, b.Content.From); err != nil {
		return err
	}
	if err := s.checkCarried(in, b); err != nil {
		return err
	}
	return in.SetTimes(b, requested)
}

// firstRejected reports which recipients a permissive request left out. The list is not kept with the answer for
// repeats of the request, so that an erasure reaches all addresses in it.
func (s *Service) firstRejected(
	ctx context.Context, in *intake.Intake, a Accepted, stored bool,
) (out *mail.Rejected, err error) {
	out = new(mail.Rejected)
	if a.Rejected != nil {
		out.Count = a.Rejected.Count
	}
	switch {
	case out.Count == 0:
	case stored:
		if out.First, err = in.FirstRejected(); err != nil {
			s.log.Warn("rejected recipients not listed in the answer", "batch_id", a.ID.String(), "err", err)
		}
	default:
		first, err := models.Rejections(ctx, s.store, a.ID, 0)
		if err != nil && !errors.Is(err, models.ErrNotFound) { // they were removed with the content
			return nil, storeError("read rejected recipients", err)
		}
		out.First = first[:min(len(first), intake.MaxFirstRejected)]
	}
	return out, nil
}

// checkCarried returns an error if none of the providers that a batch may use can carry its message.
func (s *Service) checkCarried(in *intake.Intake, b *models.Batch) error {
	at := "/attachments"
	switch e := b.Envelope; {
	case e != nil && e.To > 1:
		at = "/together"
	case e != nil && e.CC > 0:
		at = "/cc"
	case e != nil:
		at = "/bcc"
	case len(b.Content.Attachments) == 0 && b.OwnHeaders == "":
		return nil
	case len(b.Content.Attachments) == 0:
		at = "/to"
	}
	names, refusals := b.Providers, []string{}
	if len(names) == 0 {
		names = providerNames(s.providers)
	}
	for _, name := range names {
		p := s.providerOf(name)
		refusal := p.Refuses(b)
		if refusal == "" {
			return nil
		}
		refusals = append(refusals, name+": "+refusal)
	}
	in.Wrong(at, "no_provider", "No provider can carry the message. %s.", strings.Join(refusals, "; "))
	return in.Err()
}

// errAttemptAbandoned is the answer to a repeat that cannot finish an earlier attempt. Mail rendered for that attempt
// may differ from mail rendered now, and so may the recipients who are left out because of their times. So chunks of
// both must not become one batch.
func errAttemptAbandoned() error {
	return Fail(Conflict, "attempt_abandoned",
		"An earlier attempt of this request was cut off and was removed. Nothing will be sent; repeat the request.").After(1)
}

// rejectStaleRetry refuses a repeat that is no longer valid, unless its first attempt stored the batch after all.
func (s *Service) rejectStaleRetry(ctx context.Context, b *models.Batch, why error) (Accepted, error) {
	abandoned, err := s.store.AbandonBatch(ctx, b.ID, max(b.Chunks, 1))
	if err != nil {
		return Accepted{}, storeError("abandon batch", err)
	}
	if abandoned {
		return Accepted{}, why
	}
	there, err := s.store.Batch(ctx, b.ID)
	if err != nil {
		return Accepted{}, storeError("read batch", err)
	}
	return s.accepted(&there), nil
}

// accepted announces a stored batch and returns the answer for it.
func (s *Service) accepted(b *models.Batch) Accepted {
	s.announce.batch(b.ID, b.Chunks, b.Lane)
	var rejected *mail.Rejected
	if b.Rejected > 0 {
		rejected = &mail.Rejected{Count: b.Rejected}
	}
	return Accepted{
		ID:         b.ID,
		State:      b.StateOf(models.Summary{Queued: 1}, b.Created()),
		Recipients: b.Recipients,
		Duplicates: b.Duplicates,
		Suppressed: b.Suppressed,
		Rejected:   rejected,
		Lane:       b.Lane,
		LaneLimit:  b.LaneLimit,
		CreatedAt:  b.Created(),
		DeliverAt:  b.DeliverAt,
		ExpiresAt:  b.ExpiresAt,
		OwnTimes:   mail.OwnTimesOf(b),
	}
}

// storeBatch stores a batch. First come its agenda entry, by which the agenda finds the rest, and its times. A batch
// without anything between gets the entry with it. Then come
// the attachments, the rejections and all chunks but the first, and last the batch with its first chunk. The batch
// exists from that last write on. Until then storeBatch ends if the client goes away.
func (s *Service) storeBatch(ctx context.Context, b *models.Batch, in *intake.Intake) error {
	if b.Lane == models.Urgent {
		s.cfg.Priority.NoteUrgent()
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.IntakeGrace/4)
	defer cancel()
	entry := models.AgendaEntry{
		Due:    models.LaterOf(firstDue(b, s.cfg.Recheck), time.Now()),
		Kind:   models.LookAtBatch,
		ID:     b.ID,
		User:   b.User,
		Chunks: b.Chunks,
		Lane:   b.Lane,
	}
	var unscheduled []models.AgendaEntry
	if b.Chunks == 1 && len(b.Content.Attachments) == 0 && b.Rejected == 0 && len(b.Dues(time.Now())) == 0 {
		unscheduled = append(unscheduled, entry) // it comes with the batch, because nothing else does before
	} else if err := s.store.Schedule(ctx, entry); err != nil {
		return err
	}
	if err := mail.PutDues(ctx, s.store, b); err != nil {
		return err
	}
	err := in.Pieces(func(sha256 string, number int, piece []byte) error {
		return s.store.PutPiece(ctx, b.ID, sha256, number, piece)
	})
	if err == nil {
		err = s.putRejected(ctx, b, in)
	}
	if err != nil {
		return err
	}
	first, endings, err := s.putChunks(ctx, b, in)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.putBatch(context.WithoutCancel(ctx), b, first, unscheduled); err != nil {
		return err
	}
	s.endSuppressed(context.WithoutCancel(ctx), endings)
	s.tallies[b.Lane].add(b)
	s.log.Info("batch accepted",
		"batch_id", b.ID.String(), "user_id", b.User, "recipients", b.Recipients, "lane", string(b.Lane))
	s.onAccept(b, first)
	s.acceptTime(b.Lane, in.SinceComplete())
	return nil
}

// firstDue returns when a new batch is reconciled for the first time: after a recheck, or earlier if a time of the
// batch comes sooner.
func firstDue(b *models.Batch, recheck time.Duration) time.Time {
	due := b.Created().Add(recheck)
	if next := b.NextChange(b.Created()); !next.IsZero() {
		due = models.EarlierOf(due, next)
	}
	return due
}

// putRejected stores which recipients were left out, four pieces at a time.
func (s *Service) putRejected(ctx context.Context, b *models.Batch, in *intake.Intake) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	err := in.RejectedPieces(func(number int, piece []byte) error {
		g.Go(func() error { return s.store.PutPiece(ctx, b.ID, models.RejectedPieces, number, piece) })
		return ctx.Err()
	})
	return cmp.Or(g.Wait(), err)
}

// errAcceptanceUnknown means that the outcome of the write of the batch is unknown.
var errAcceptanceUnknown = errors.New("acceptance unknown")

// putBatch writes the batch. After an unknown outcome it retries until the store gives a definite answer: that the
// store is unavailable now says nothing about the first write.
func (s *Service) putBatch(
	ctx context.Context, b *models.Batch, first models.Chunk, es []models.AgendaEntry,
) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RetryTime)
	defer cancel()
	unknown := false
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.store.PutBatch(ctx, *b, first, es...)
		if err == nil || errors.Is(err, models.ErrNotFound) || !unknown && notWritten(err) {
			return err
		}
		unknown = true
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errAcceptanceUnknown, err)
		case <-time.After(wait):
		}
	}
}

// notWritten reports whether an error of a write means that nothing was written. An expired deadline, for example, says
// nothing about it.
func notWritten(err error) bool {
	return !errors.Is(err, models.ErrOutcomeUnknown) &&
		(errors.Is(err, models.ErrUnavailable) || errors.Is(err, models.ErrInvalid) || errors.Is(err, models.ErrClosed))
}

// putChunks stores all chunks but the first, four at a time, and returns the first, and the entries that end suppressed
// recipients.
func (s *Service) putChunks(
	ctx context.Context, b *models.Batch, in *intake.Intake,
) (first models.Chunk, endings []chunkEndings, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	err = in.Chunks(func(n int, recipients []models.Recipient) error {
		chunk := models.Chunk{ID: b.ID.Chunk(n), Recipients: recipients}
		found, err := s.suppressedIn(ctx, b, recipients)
		if err != nil {
			return err
		}
		if len(found.Suppressed) > 0 {
			b.Suppressed += len(found.Suppressed)
			endings = append(endings, chunkEndings{chunk.ID, found.Endings(func(i int) int { return i + 1 })})
		}
		if n == 0 {
			first = chunk
		} else {
			g.Go(func() error { return s.store.PutChunk(ctx, chunk) })
		}
		return ctx.Err()
	})
	if werr := g.Wait(); werr != nil {
		err = werr
	}
	return first, endings, err
}

// acceptError returns the Error for a batch that could not be stored.
func acceptError(b *models.Batch, err error) error {
	var e *Error
	switch {
	case errors.As(err, &e): // the intake's own
		return e
	case errors.Is(err, errAcceptanceUnknown):
		e = Fail(Unavailable, "acceptance_unknown",
			"The store did not confirm the batch, so it may be sent. Look it up by its ID before you send it again.").After(30)
		e.BatchID = b.ID.String()
	case errors.Is(err, models.ErrNotFound):
		e = Fail(Unavailable, "intake_too_slow",
			"The batch took too long to store and was removed. Nothing will be sent; repeat the request.").After(30)
	default:
		e = Fail(Unavailable, "store_unavailable",
			"The store cannot be reached. Nothing will be sent; repeat the request.").After(5)
	}
	return e.Because(fmt.Errorf("batch %s: %w", b.ID, err))
}

// chunkEndings are entries of the ledger of a chunk.
type chunkEndings struct {
	chunk   models.ID
	entries []models.Entry
}

// suppressedIn returns which recipients of a batch are suppressed.
func (s *Service) suppressedIn(ctx context.Context, b *models.Batch, rs []models.Recipient) (suppression.Found, error) {
	mail := suppression.MailOf(b)
	return s.marks.Suppressed(ctx, mail, len(rs), func(i int) string { return rs[i].Email }, control.MaxRuleAge)
}

// endSuppressed appends endings to the ledgers of a batch that was just stored. If that fails, or a worker was quicker,
// the worker appends them.
func (s *Service) endSuppressed(ctx context.Context, endings []chunkEndings) {
	var g errgroup.Group
	g.SetLimit(4)
	for _, c := range endings {
		g.Go(func() error {
			for i, e := range c.entries {
				e.Number, e.Token = i+1, models.NewToken()
				if err := s.store.Append(ctx, c.chunk, e); err != nil {
					s.log.Debug("suppressed recipients not ended; a worker ends them", "chunk", c.chunk.String(), "err", err)
					return nil
				}
			}
			return nil
		})
	}
	_ = g.Wait() // never an error
}
