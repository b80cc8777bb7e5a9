package api

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// spyStore is a real store that records calls and can fail them.
type spyStore struct {
	models.Store

	mu     sync.Mutex
	calls  []string
	fail   map[string]func(n int) error // called before the n-th call, from 1; an error replaces the call
	counts map[string]int
	down   bool        // all calls fail
	tried  []models.ID // batches of agenda entries

	damaged bool // all batches are
}

// enter records a call and returns the error that it fails with.
func (s *spyStore) enter(name string) error {
	s.mu.Lock()
	s.calls = append(s.calls, name)
	s.counts[name]++
	n, f, down := s.counts[name], s.fail[name], s.down
	s.mu.Unlock()
	if f != nil {
		if err := f(n); err != nil {
			return err
		}
	}
	if down {
		return models.ErrUnavailable
	}
	return nil
}

func (s *spyStore) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// setDamaged damages all batches, or repairs them.
func (s *spyStore) setDamaged(damaged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damaged = damaged
}

func (s *spyStore) isDamaged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damaged
}

// failing makes f decide whether calls of a name fail.
func (s *spyStore) failing(name string, f func(n int) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[name] = f
}

// before makes f run before each call of a name.
func (s *spyStore) before(name string, f func()) {
	s.failing(name, func(int) error { f(); return nil })
}

// writes returns the names of the calls that store batches.
func (s *spyStore) writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.calls), func(c string) bool {
		return c != "Schedule" && c != "PutChunk" && c != "PutPiece" && c != "PutBatch"
	})
}

func (s *spyStore) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	if err := s.enter("Schedule"); err != nil {
		return err
	}
	s.mu.Lock()
	for _, e := range es {
		s.tried = append(s.tried, e.ID)
	}
	s.mu.Unlock()
	return s.Store.Schedule(ctx, es...)
}

func (s *spyStore) PutChunk(ctx context.Context, c models.Chunk) error {
	if err := s.enter("PutChunk"); err != nil {
		return err
	}
	return s.Store.PutChunk(ctx, c)
}

func (s *spyStore) PutPiece(ctx context.Context, batch models.ID, sha256 string, number int, piece []byte) error {
	if err := s.enter("PutPiece"); err != nil {
		return err
	}
	return s.Store.PutPiece(ctx, batch, sha256, number, piece)
}

// count returns how many calls of a name there were.
func (s *spyStore) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[name]
}

func (s *spyStore) PutBatch(ctx context.Context, b models.Batch, first models.Chunk, es ...models.AgendaEntry) error {
	if err := s.enter("PutBatch"); err != nil {
		return err
	}
	return s.Store.PutBatch(ctx, b, first, es...)
}

func (s *spyStore) Transients(ctx context.Context, kind string) (map[string][]byte, error) {
	if err := s.enter("Transients"); err != nil {
		return nil, err
	}
	return s.Store.Transients(ctx, kind)
}

func (s *spyStore) PutAnswer(ctx context.Context, key string, id models.ID, answer []byte, ttl time.Duration) error {
	if err := s.enter("PutAnswer"); err != nil {
		return err
	}
	return s.Store.PutAnswer(ctx, key, id, answer, ttl)
}

func (s *spyStore) KeyByHash(ctx context.Context, hash string) (models.Key, error) {
	if err := s.enter("KeyByHash"); err != nil {
		return models.Key{}, err
	}
	return s.Store.KeyByHash(ctx, hash)
}

func (s *spyStore) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	if err := s.enter("Batch"); err != nil {
		return models.Batch{}, err
	}
	b, err := s.Store.Batch(ctx, id)
	if err == nil && s.isDamaged() {
		return models.Batch{}, models.ErrDamaged
	}
	return b, err
}

func (s *spyStore) Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error) {
	bs, err := s.Store.Batches(ctx, user, before, limit)
	for i := range bs {
		if s.isDamaged() {
			bs[i] = models.Batch{ID: bs[i].ID, User: user, Damaged: true}
		}
	}
	return bs, err
}

func (s *spyStore) BatchIDs(ctx context.Context, user string, before models.ID, limit int) ([]models.ID, error) {
	if err := s.enter("BatchIDs"); err != nil {
		return nil, err
	}
	return s.Store.BatchIDs(ctx, user, before, limit)
}

func (s *spyStore) Recipients(ctx context.Context, id models.ID) ([]models.Recipient, error) {
	if err := s.enter("Recipients"); err != nil {
		return nil, err
	}
	return s.Store.Recipients(ctx, id)
}

func (s *spyStore) Summaries(
	ctx context.Context,
	user string,
	batch models.ID,
	from int,
) iter.Seq2[models.ChunkSummary, error] {
	if err := s.enter("Summaries"); err != nil {
		return func(yield func(models.ChunkSummary, error) bool) { yield(models.ChunkSummary{}, err) }
	}
	return s.Store.Summaries(ctx, user, batch, from)
}

func (s *spyStore) Nodes(ctx context.Context, user string, l models.Level, from, to time.Time) ([]models.Node, error) {
	if err := s.enter("Nodes"); err != nil {
		return nil, err
	}
	return s.Store.Nodes(ctx, user, l, from, to)
}

func (s *spyStore) Ping(ctx context.Context) error {
	if err := s.enter("Ping"); err != nil {
		return err
	}
	return s.Store.Ping(ctx)
}
