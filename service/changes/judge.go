package changes

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
	"github.com/safedelivr/safedelivr/service/problem"
)

// readAtOnce is how many batches or chunks are read at the same time.
const readAtOnce = 8

// poll is how often a batch is looked for that another request is storing.
const poll = 20 * time.Millisecond

// read finds the present versions of the messages.
func (t *try) read(ctx context.Context) error {
	ids := make([]string, 0, len(t.tasks))
	for _, k := range t.tasks {
		if k.result.Status == "" {
			ids = append(ids, k.ID)
		}
	}
	there, err := clientid.Read(ctx, t.Store, t.User, ids)
	if err != nil {
		return problem.FromStore("read messages", err)
	}
	if err := t.dropMissing(ctx, there); err != nil {
		return problem.FromStore("read batches", err)
	}
	for _, k := range t.tasks {
		k.message, k.now, k.send, k.cancel = there[k.ID], clientid.Version{}, false, false
		if v := k.message.Last(); v != nil {
			k.now = *v
		}
	}
	return nil
}

// dropMissing removes the newest versions of messages whose batches do not exist.
func (t *try) dropMissing(ctx context.Context, ms map[string]clientid.Message) error {
	for again := true; again; {
		chunks := map[models.ID]int{} // of each batch, at least
		for id := range ms {
			m := ms[id]
			if v := m.Last(); v != nil {
				chunks[v.Log.Batch()] = max(chunks[v.Log.Batch()], v.Log.ChunkNumber()+1)
			}
		}
		if err := t.readBatches(ctx, chunks); err != nil {
			return err
		}
		again = false
		for id, m := range ms {
			if v := m.Last(); v != nil && t.batches[v.Log.Batch()] == nil {
				m.Versions = m.Versions[:len(m.Versions)-1]
				ms[id], again = m, true
			}
		}
	}
	return nil
}

// readBatches reads batches. Those that do not exist can never exist afterwards.
func (t *try) readBatches(ctx context.Context, chunks map[models.ID]int) error {
	found := make(chan *models.Batch, len(chunks))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for id, n := range chunks {
		if t.batches[id] != nil {
			continue
		}
		g.Go(func() error {
			b, err := t.batch(ctx, id, n)
			if err == nil && b != nil {
				found <- b
			}
			return err
		})
	}
	err := g.Wait()
	close(found)
	for b := range found {
		b.Content = models.Content{} // it may be large
		t.batches[b.ID] = b
	}
	return err
}

// batch returns a batch. If it does not exist soon, it is abandoned, and batch returns nil: the request that began it
// was cut off.
func (t *try) batch(ctx context.Context, id models.ID, chunks int) (*models.Batch, error) {
	until := models.EarlierOf(id.Time(), time.Now()).Add(t.Wait)
	for {
		b, err := t.Store.Batch(ctx, id)
		if err == nil {
			return &b, nil
		}
		if !errors.Is(err, models.ErrNotFound) {
			return nil, err
		}
		if time.Now().Before(until) {
			models.Pause(ctx, poll)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			continue
		}
		if t.DryRun {
			return nil, nil //nolint:nilnil // as if it was abandoned
		}
		gone, err := t.Store.AbandonBatch(ctx, id, chunks)
		if gone || err != nil {
			return nil, err
		}
	}
}

// judge decides about the messages that exist.
func (t *try) judge(ctx context.Context) error {
	chunks := map[models.ID][]*task{}
	for _, k := range open(t.tasks) {
		switch {
		case !k.now.Log.IsZero():
			chunks[k.now.Log.ChunkID()] = append(chunks[k.now.Log.ChunkID()], k)
		case k.Action == Cancel:
			k.reject(problem.FieldError{Pointer: "/id", Code: "not_found", Detail: "There is no message with this id."})
		default:
			k.send = true
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for chunk, ks := range chunks {
		g.Go(func() error { return t.judgeChunk(ctx, chunk, ks) })
	}
	return problem.FromStore("read logs", g.Wait())
}

// judgeChunk decides about messages of one chunk. Whether a message was cancelled is seen in the ledger alone.
func (t *try) judgeChunk(ctx context.Context, chunk models.ID, ks []*task) error {
	same := true
	for _, k := range ks {
		same = same && (k.Action == New || k.Action == Update && k.Hash == k.now.Hash)
	}
	if !same {
		v, err := t.view(ctx, chunk)
		if err != nil {
			return err
		}
		for _, k := range ks {
			k.judge(v.Status(k.now.Log.Recipient()), handedOver(v, k.now.Log.Recipient()))
		}
		return nil
	}
	entries, err := t.Store.Ledger(ctx, chunk)
	if err != nil {
		return err
	}
	v := models.Resolve(t.sizeOf(chunk), entries, nil)
	for _, k := range ks {
		k.judge(v.Status(k.now.Log.Recipient()), false)
	}
	return nil
}

func (t *try) sizeOf(chunk models.ID) int {
	return t.batches[chunk.Batch()].ChunkSize(chunk.ChunkNumber())
}

// view returns the state of all logs of a chunk.
func (t *try) view(ctx context.Context, chunk models.ID) (*models.View, error) {
	entries, facts, err := t.Store.Record(ctx, chunk)
	if err != nil {
		return nil, err
	}
	return models.Resolve(t.sizeOf(chunk), entries, facts), nil
}

// handedOver reports whether a provider has, had or may have the mail of a recipient.
func handedOver(v *models.View, r int) (over bool) {
	v.EachTry(r, func(t *models.Try) { over = over || t.Verdict != models.VerdictRefused })
	return over
}

// replaced reports whether a log was cancelled for a version that was never stored.
func replaced(s *models.Status) bool {
	return s.State == models.Cancelled && s.Detail == models.Replaced
}

// judge decides about the task by the state of the present log.
func (t *task) judge(s *models.Status, over bool) {
	switch same := t.Hash == t.now.Hash; {
	case t.Action != Cancel && same && replaced(s):
		t.send = true // another update was cut off
	case t.Action != Cancel && same:
		t.settle(Unchanged, t.now.Log)
	case t.Action == New:
		t.reject(problem.FieldError{Pointer: "/id", Code: "already_exists", Detail: "There is another message with this id."})
	case t.Action == Update && s.State == models.Cancelled:
		t.send = true
	case t.Action == Cancel && s.State == models.Cancelled && !replaced(s):
		t.settle(Unchanged, t.now.Log)
	case mayEnd(s, over):
		t.cancel, t.send = true, t.Action == Update
	default:
		t.reject(tooLate(s))
	}
}

// mayEnd reports whether a log may be cancelled.
func mayEnd(s *models.Status, over bool) bool {
	return s.State == models.Queued && !over || replaced(s)
}

// tooLate says why a log cannot be cancelled.
func tooLate(s *models.Status) problem.FieldError {
	switch {
	case s.State == models.Success:
		return problem.FieldError{Pointer: "/id", Code: "already_delivered", Detail: "The message was delivered."}
	case s.State.Open():
		return problem.FieldError{Pointer: "/id", Code: "in_flight", Detail: "A provider has the message, or may have it."}
	case s.Reason == models.Expired:
		return problem.FieldError{Pointer: "/id", Code: "expired", Detail: "The message has expired."}
	}
	words := s.Reason.Words()
	return problem.FieldError{Pointer: "/id", Code: "already_failed", Detail: "The message has failed: " + words + "."}
}
