package service

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/flow"
)

// BatchView is a batch as it is shown.
type BatchView struct {
	ID         models.ID            `json:"id"`
	User       string               `json:"user,omitempty"` // the owner, if it is not the caller
	State      models.BatchState    `json:"state"`
	Stopped    bool                 `json:"stopped,omitempty"`    // no call begins until the batch is resumed
	StoppedBy  string               `json:"stopped_by,omitempty"` // a user's ID, or "cli:" and a name
	Cancelled  bool                 `json:"cancelled,omitempty"`
	Waits      *models.Wait         `json:"waits,omitempty"` // what it waits for; in a list only a command
	Subject    string               `json:"subject"`
	From       models.Address       `json:"from"`
	ReplyTo    models.Address       `json:"reply_to,omitzero"`
	Lane       models.Lane          `json:"lane,omitempty"`       // empty if the batch is damaged
	OnUnknown  models.UnknownPolicy `json:"on_unknown,omitempty"` // empty if the batch is damaged
	Providers  []string             `json:"providers,omitempty"`
	Recipients int                  `json:"recipients"`
	Duplicates int                  `json:"duplicates"`
	Counts     Counts               `json:"counts"`
	CreatedAt  time.Time            `json:"created_at"`
	Deadline   time.Time            `json:"deadline,omitzero"` // zero if the batch is damaged
}

// BatchPage is a page of batches. Next is empty on the last page.
type BatchPage struct {
	Batches []BatchView `json:"batches"`
	Next    string      `json:"next_cursor"`
}

// total returns the sum of the summaries of a batch, and the number of a chunk with queued
// recipients, or -1. It prefers a chunk with recipients that were never tried.
func (s *Service) total(ctx context.Context, b *models.Batch) (sum models.Summary, queued int, err error) {
	queued = -1
	next, untried := 0, false
	for cs, err := range s.store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			return sum, -1, err
		}
		sum.Add(&cs.Summary)
		n := cs.Chunk.ChunkNumber()
		if n > next && !untried { // the chunk before has no summary yet
			queued, untried = next, true
		}
		if next = n + 1; !untried && cs.Summary.Queued > 0 && (queued < 0 || cs.Summary.Untried > 0) {
			queued, untried = n, cs.Summary.Untried > 0
		}
	}
	if next < b.Chunks && !untried {
		queued = next
	}
	return b.Total(sum), queued, nil
}

// view returns a batch as lists show it, and the number of a chunk with queued recipients,
// or -1.
func (s *Service) view(ctx context.Context, b *models.Batch) (BatchView, int, error) {
	sum, queued, err := s.total(ctx, b)
	if err != nil {
		return BatchView{}, -1, err
	}
	if err := s.commandLog.EnsureFresh(ctx, rulesAge); err != nil {
		return BatchView{}, -1, err
	}
	rules := s.commandLog.Rules()
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
	return v, queued, nil
}

// Batches returns a page of the caller's batches, newest first.
func (s *Service) Batches(ctx context.Context, who Caller, p Page) (BatchPage, error) {
	var q query
	list := "batches " + who.User
	n, before := q.limit(p), q.cursor(p, list)
	if err := q.err(); err != nil {
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
			out.Batches[i], _, err = s.view(ctx, &batches[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return BatchPage{}, storeError("sum batches", err)
	}
	return out, nil
}

// BatchFilter selects batches. The zero value selects all of the caller.
type BatchFilter struct {
	State models.BatchState // empty: any
	Day   string            // UTC day of acceptance, like 2026-01-31; empty: any
	User  string            // ID of the owner; empty: the caller. Only operators may name others
}

// maxScan is the number of batches that one request reads. A page may be short and still
// have a next cursor.
const maxScan = 300

// FindBatches returns a page of the batches that a filter selects, newest first.
func (s *Service) FindBatches(ctx context.Context, who Caller, f BatchFilter, p Page) (BatchPage, error) {
	user := who.User
	if f.User != "" && f.User != user {
		if err := who.operates(); err != nil {
			return BatchPage{}, err
		}
		user = f.User
	}
	var q query
	list := "batches " + user + " " + string(f.State) + " " + f.Day
	n, before := q.limit(p), q.cursor(p, list)
	if f.State != "" && f.State != models.BatchQueued && f.State != models.BatchSending && f.State != models.BatchDone {
		q.bad("state", "state must be queued, sending or done.")
	}
	day := q.day("day", f.Day, time.Time{})
	if err := q.err(); err != nil {
		return BatchPage{}, err
	}
	if !day.IsZero() && before.IsZero() {
		before = models.MinID(day.Add(24 * time.Hour))
	}
	out := BatchPage{Batches: []BatchView{}}
	for scanned := 0; scanned < maxScan; {
		batches, err := s.store.Batches(ctx, user, before, n+1)
		if err != nil {
			return BatchPage{}, storeError("list batches", err)
		}
		for i := range batches {
			b := &batches[i]
			if b.Created().Before(day) {
				return out, nil // all others are older
			}
			v, _, err := s.view(ctx, b)
			if err != nil {
				return BatchPage{}, storeError("sum batch", err)
			}
			if f.State == "" || v.State == f.State {
				if len(out.Batches) == n {
					out.Next = cursorOf(list, before)
					return out, nil
				}
				out.Batches = append(out.Batches, v)
			}
			before = b.ID
		}
		if len(batches) <= n {
			return out, nil
		}
		scanned += len(batches)
	}
	out.Next = cursorOf(list, before)
	return out, nil
}

// readable returns a batch that the caller may read: an own one, or any if the caller is
// an operator. All others are not found.
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

// readableBatch parses the ID of a batch and returns what readable returns for it.
func (s *Service) readableBatch(ctx context.Context, who Caller, id string) (*models.Batch, error) {
	batch, err := models.ParseBatchID(id)
	if err != nil {
		return nil, notFound("batch")
	}
	return s.readable(ctx, who, batch)
}

// controllable returns a batch that the caller may control: an own one, or any if the
// caller is an operator. All others are not found.
func (s *Service) controllable(ctx context.Context, who Caller, id models.ID) (*models.Batch, error) {
	b, err := s.readable(ctx, who, id)
	if err == nil && b.User == who.User {
		err = who.Need(models.ScopeSend)
	}
	return b, err
}

// Batch returns one batch with its counts and with what it waits for.
func (s *Service) Batch(ctx context.Context, who Caller, id string) (BatchView, error) {
	return s.readView(ctx, who, id, true)
}

// ListedBatch returns one batch as lists show it. It reads no chunk, so Waits is set only if
// a command withholds the batch.
func (s *Service) ListedBatch(ctx context.Context, who Caller, id string) (BatchView, error) {
	return s.readView(ctx, who, id, false)
}

func (s *Service) readView(ctx context.Context, who Caller, id string, waits bool) (BatchView, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return BatchView{}, err
	}
	v, queued, err := s.view(ctx, b)
	if err == nil && waits {
		v.Waits, err = s.batchWait(ctx, b, queued)
	}
	if err != nil {
		return BatchView{}, storeError("sum batch", err)
	}
	if b.User != who.User {
		v.User = b.User
	}
	return v, nil
}

// Content returns the content of a batch.
func (s *Service) Content(ctx context.Context, who Caller, id string) (models.Content, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return models.Content{}, err
	}
	return b.Content, nil
}

// Flow returns how a batch was handed over to the providers, and when they were failing.
func (s *Service) Flow(ctx context.Context, who Caller, id string) (flow.Flow, error) {
	b, err := s.readableBatch(ctx, who, id)
	if err != nil {
		return flow.Flow{}, err
	}
	sample := flow.Sample(b.Chunks)
	records := make([]flow.Record, len(sample))
	for i, n := range sample {
		r := &records[i]
		if r.Entries, r.Outcomes, err = s.store.Calls(ctx, b.ID.Chunk(n)); err != nil {
			return flow.Flow{}, storeError("read the calls of a batch", err)
		}
	}
	health, err := s.failedCalls(ctx)
	if err != nil {
		return flow.Flow{}, storeError("read the times of failed calls", err)
	}
	return flow.Of(b.Chunks, records, health, time.Now()), nil
}
