package service

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// BatchView is how a batch is shown.
type BatchView struct {
	ID         models.ID            `json:"id"`
	User       string               `json:"user,omitempty"` // whose it is, where it is not the caller's
	State      models.BatchState    `json:"state"`
	Stopped    bool                 `json:"stopped,omitempty"`    // by an order; nothing more is handed over until a resume
	StoppedBy  string               `json:"stopped_by,omitempty"` // a user's id, or "cli:" and a name
	Cancelled  bool                 `json:"cancelled,omitempty"`
	Waits      string               `json:"waits,omitempty"` // why an order keeps it from going on
	Subject    string               `json:"subject"`
	From       models.Address       `json:"from"`
	ReplyTo    models.Address       `json:"reply_to,omitzero"`
	Lane       models.Lane          `json:"lane,omitempty"`       // not known of a damaged one
	OnUnknown  models.UnknownPolicy `json:"on_unknown,omitempty"` // same
	Providers  []string             `json:"providers,omitempty"`
	Recipients int                  `json:"recipients"`
	Duplicates int                  `json:"duplicates"`
	Counts     Counts               `json:"counts"`
	CreatedAt  time.Time            `json:"created_at"`
	Deadline   time.Time            `json:"deadline,omitzero"` // same
}

// BatchPage is a part of the list of batches; Next is empty on the last one.
type BatchPage struct {
	Batches []BatchView `json:"batches"`
	Next    string      `json:"next_cursor"`
}

// total sums the chunk summaries of a batch.
func (s *Service) total(ctx context.Context, b *models.Batch) (models.Summary, error) {
	var sum models.Summary
	for cs, err := range s.store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			return sum, err
		}
		sum.Add(&cs.Summary)
	}
	return b.Total(sum), nil
}

func (s *Service) view(ctx context.Context, b *models.Batch) (BatchView, error) {
	sum, err := s.total(ctx, b)
	if err != nil {
		return BatchView{}, err
	}
	if err := s.journal.EnsureFresh(ctx, rulesAge); err != nil {
		return BatchView{}, err
	}
	rules := s.journal.Rules()
	v := BatchView{
		ID:         b.ID,
		State:      b.StateOf(sum),
		Subject:    b.Content.Subject,
		From:       b.Content.From,
		ReplyTo:    b.Content.ReplyTo,
		Lane:       b.Lane,
		OnUnknown:  b.OnUnknown,
		Providers:  b.Providers,
		Recipients: b.Recipients,
		Duplicates: b.Duplicates,
		Counts:     CountsOf(&sum),
		CreatedAt:  b.Created(),
		Deadline:   b.Deadline,
		Waits:      rules.Batch(b).Waits,
	}
	v.Stopped, v.Cancelled = rules.Stopped(b.ID)
	v.StoppedBy = rules.StoppedBy(b.ID)
	return v, nil
}

// Batches lists the caller's batches, newest first.
func (s *Service) Batches(ctx context.Context, who Caller, p Page) (BatchPage, error) {
	var q Query
	list := "batches " + who.User
	n, before := q.limit(p), q.cursor(p, list)
	if err := q.Err(); err != nil {
		return BatchPage{}, err
	}
	batches, err := s.store.Batches(ctx, who.User, before, n+1)
	if err != nil {
		return BatchPage{}, storeError("list batches", err)
	}
	out := BatchPage{}
	if len(batches) > n {
		batches = batches[:n]
		out.Next = cursorOf(list, batches[n-1].ID)
	}
	out.Batches = make([]BatchView, len(batches))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range batches {
		g.Go(func() (err error) {
			out.Batches[i], err = s.view(ctx, &batches[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return BatchPage{}, storeError("sum batches", err)
	}
	return out, nil
}

// readable reads a batch that the caller may read: one's own, or any for an
// operator. Everything else is not found.
func (s *Service) readable(ctx context.Context, who Caller, id models.ID) (*models.Batch, error) {
	b, err := s.store.Batch(ctx, id)
	if err == nil && b.User != who.User && !who.May(models.ScopeOperate) {
		err = models.ErrNotFound
	}
	if errors.Is(err, models.ErrNotFound) {
		return nil, notFound("batch")
	}
	if err != nil {
		return nil, storeError("read batch", err)
	}
	return &b, nil
}

// readableBatch is readable for an id as it was sent.
func (s *Service) readableBatch(ctx context.Context, who Caller, id string) (*models.Batch, error) {
	batch, err := models.ParseBatchID(id)
	if err != nil {
		return nil, notFound("batch")
	}
	return s.readable(ctx, who, batch)
}

// Batch reads one batch with its counts.
func (s *Service) Batch(ctx context.Context, who Caller, id string) (BatchView, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return BatchView{}, err
	}
	v, err := s.view(ctx, b)
	if err != nil {
		return BatchView{}, storeError("sum batch", err)
	}
	if b.User != who.User {
		v.User = b.User
	}
	return v, nil
}

// Content reads what a batch says.
func (s *Service) Content(ctx context.Context, who Caller, id string) (models.Content, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return models.Content{}, err
	}
	return b.Content, nil
}
