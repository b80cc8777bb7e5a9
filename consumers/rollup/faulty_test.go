package rollup

import (
	"context"
	"errors"
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// errKilled is the error of all calls of a worker that was killed.
var errKilled = errors.New("the worker was killed")

// fault happens at one call of a worker to its store.
type fault struct {
	at     int    // number of the call, from 0
	kill   bool   // the worker is killed before the call
	late   bool   // the worker is killed after the call
	freeze func() // runs before the call
}

// faulty is the store of a worker.
type faulty struct {
	models.Store

	mu    sync.Mutex
	calls int
	fault *fault
	dead  bool
}

// call makes a call, with the fault that is due.
func (s *faulty) call(do func() error) error {
	s.mu.Lock()
	f := s.fault
	if f != nil && s.calls != f.at {
		f = nil
	}
	if s.calls++; f != nil {
		s.fault = nil
		s.dead = s.dead || f.kill
	}
	dead := s.dead
	s.mu.Unlock()
	if dead {
		return errKilled
	}
	if f != nil && f.freeze != nil {
		f.freeze()
	}
	err := do()
	if f != nil && f.late {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dead = true
		return errKilled
	}
	return err
}

func (s *faulty) Record(ctx context.Context, id models.ID) (es []models.Entry, fs []models.Fact, err error) {
	err = s.call(func() (err error) {
		es, fs, err = s.Store.Record(ctx, id)
		return err
	})
	return es, fs, err
}

func (s *faulty) AppendFeed(ctx context.Context, user string, e models.FeedEntry) error {
	return s.call(func() error { return s.Store.AppendFeed(ctx, user, e) })
}

func (s *faulty) Feed(ctx context.Context, user string, after, limit int) (out []models.FeedEntry, err error) {
	err = s.call(func() (err error) {
		out, err = s.Store.Feed(ctx, user, after, limit)
		return err
	})
	return out, err
}

func (s *faulty) FeedHead(ctx context.Context, user string) (e models.FeedEntry, err error) {
	err = s.call(func() (err error) {
		e, err = s.Store.FeedHead(ctx, user)
		return err
	})
	return e, err
}

func (s *faulty) PutPublished(ctx context.Context, ts ...models.Published) error {
	return s.call(func() error { return s.Store.PutPublished(ctx, ts...) })
}

func (s *faulty) Published(ctx context.Context, chunks ...models.ID) (ts []models.Published, err error) {
	err = s.call(func() (err error) {
		ts, err = s.Store.Published(ctx, chunks...)
		return err
	})
	return ts, err
}

func (s *faulty) PutSummaries(ctx context.Context, ss ...models.ChunkSummary) error {
	return s.call(func() error { return s.Store.PutSummaries(ctx, ss...) })
}
