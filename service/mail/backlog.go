package mail

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/service/backlog"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/problem"
)

// A backlog is shared for a while, and for longer the more it cost: reading it takes a twentieth of the time at most.
const (
	backlogAge  = 2 * time.Second
	backlogPart = 20
	backlogTime = 10 * time.Second // that a read may take
)

// backlogs shares the backlog of all users.
type backlogs struct {
	mu   sync.Mutex
	last backlog.Backlog
	next time.Time // when it is read again
}

// Backlog returns the mail of all users that waits here, for operators.
func (s *Reader) Backlog(ctx context.Context, who caller.Caller) (backlog.Backlog, error) {
	if err := who.NeedOperator(); err != nil {
		return backlog.Backlog{}, err
	}
	b := &s.backlogs
	b.mu.Lock()
	defer b.mu.Unlock()
	began := time.Now()
	if began.Before(b.next) {
		return b.last, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), backlogTime) // others wait for it, too
	defer cancel()
	users, err := s.People.All(ctx)
	if err != nil {
		return backlog.Backlog{}, problem.FromStore("list users", err)
	}
	ids := make([]string, len(users))
	for i := range users {
		ids[i] = users[i].ID
	}
	w, err := s.Waiting(ctx)
	if err != nil {
		return backlog.Backlog{}, err
	}
	first := models.DayOf(began.Add(-maxAge))
	look := func(ctx context.Context, id models.ID) (backlog.Batch, bool, error) {
		return s.waitingBatch(ctx, w, id)
	}
	last, err := backlog.Read(ctx, s.Store, ids, first, began, look)
	if err != nil {
		return backlog.Backlog{}, problem.FromStore("read the mail that waits", err)
	}
	b.last, b.next = last, time.Now().Add(max(backlogAge, backlogPart*time.Since(began)))
	return last, nil
}

// waitingBatch returns what a batch waits for, and false if no mail of it waits here.
func (s *Reader) waitingBatch(ctx context.Context, w *Waits, id models.ID) (out backlog.Batch, waits bool, err error) {
	b, err := s.Store.Batch(ctx, id)
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) {
		return out, false, nil // the check of sums reports it
	}
	if err != nil {
		return out, false, err
	}
	out = backlog.Batch{ID: b.ID, Lane: b.Lane}
	first := -1
	for cs, err := range s.Store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			return out, false, err
		}
		if out.Recipients += cs.Summary.Queued; first < 0 && cs.Summary.Queued > 0 {
			first = cs.Chunk.ChunkNumber()
		}
	}
	if first < 0 {
		return out, false, nil
	}
	rule := w.rules.Batch(&b)
	out.Since = models.LaterOf(b.Created(), rule.Scheduled(&b).ScheduleOf(first).DeliverAt)
	if rule.Waits != nil {
		out.Wait = *rule.Waits
		return out, true, nil
	}
	wait, released, err := s.chunkWait(ctx, w, &b, first, func(s models.State) bool { return s == models.Queued })
	if wait == nil || err != nil {
		return out, false, err
	}
	out.Wait, out.Since = *wait, models.LaterOf(out.Since, released)
	if wait.Code == models.WaitSchedule {
		out.Since = time.Time{}
	}
	return out, true, nil
}

// chunkWait returns what the logs of a chunk in some states wait for, the first in WaitCodes, and when one of the chunk
// was released last. It returns nil if none waits.
func (s *Reader) chunkWait(ctx context.Context, w *Waits, b *models.Batch, n int, in func(models.State) bool,
) (first *models.Wait, released time.Time, err error) {
	entries, facts, err := s.Store.Record(ctx, b.ID.Chunk(n))
	var recipients []models.Recipient
	byDomain := slices.ContainsFunc(
		policy.BlocksMeeting(w.rules, b), func(bl models.Block) bool { return bl.Domain != "" })
	if err == nil && byDomain && !b.Redacted {
		recipients, err = s.Store.Recipients(ctx, b.ID.Chunk(n))
	}
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) {
		return nil, released, nil // the check of sums reports it
	}
	if err != nil {
		return nil, released, err
	}
	for i := range entries {
		if entries[i].Kind == models.Release {
			released = models.LaterOf(released, entries[i].At)
		}
	}
	v := models.Resolve(b.ChunkSize(n), entries, facts)
	for i, wait := range w.logs(b.OfChunk(n), v, recipients) {
		if wait != nil && in(v.Logs[i].State) && (first == nil || wait.Before(first)) {
			first = wait
		}
	}
	return first, released, nil
}
