package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/models"
)

// spoilt is a store that cannot read some records.
type spoilt struct {
	models.Store
	mu    sync.Mutex
	these map[models.ID]bool
	away  bool               // they are unavailable, and not damaged
	newer bool               // a newer version stored them
	heads map[models.ID]bool // batches that cannot be read
}

func (s *spoilt) spoil(id models.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.these[id] = true
}

func (s *spoilt) check(ids ...models.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		switch {
		case s.these[id] && s.away:
			return fmt.Errorf("read %s: %w", id, models.ErrUnavailable)
		case s.these[id] && s.newer:
			return fmt.Errorf("read %s: %w", id, models.ErrNewer)
		case s.these[id]:
			return fmt.Errorf("read %s: %w", id, models.ErrDamaged)
		}
	}
	return nil
}

func (s *spoilt) Record(ctx context.Context, id models.ID) ([]models.Entry, []models.Fact, error) {
	if err := s.check(id); err != nil {
		return nil, nil, err
	}
	return s.Store.Record(ctx, id)
}

func (s *spoilt) Ledger(ctx context.Context, id models.ID) ([]models.Entry, error) {
	if err := s.check(id); err != nil {
		return nil, err
	}
	return s.Store.Ledger(ctx, id)
}

func (s *spoilt) Inbox(ctx context.Context, ids ...models.ID) ([]models.Inbox, error) {
	if err := s.check(ids...); err != nil {
		return nil, err
	}
	return s.Store.Inbox(ctx, ids...)
}

func (s *spoilt) Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error) {
	bs, err := s.Store.Batches(ctx, user, before, limit)
	for i := range bs {
		if s.heads[bs[i].ID] {
			bs[i] = models.Batch{ID: bs[i].ID, User: user, Damaged: true}
		}
	}
	return bs, err
}

// TestUnavailablePartDelaysNoOther: while a part of the store is unavailable, the agenda
// reconciles the other batches, and unannounced posts are processed. The rest follows when the
// part is back.
func TestUnavailablePartDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &spoilt{these: map[models.ID]bool{}, away: true}
		p := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, func(store models.Store) models.Store {
			s.Store = store
			return s
		}, "sg")
		inShard := func(b *models.Batch, _ []models.Recipient) {
			for b.ID.Shard(r.store.Shards()) != 0 {
				b.ID = models.NewBatchID(time.Now())
			}
		}
		var away []*models.Batch
		for range 5 {
			away = append(away, r.batch(1, false, inShard))
			s.spoil(away[len(away)-1].ID)
		}
		good := r.batch(1, false, inShard)
		r.withEvents(fast(), p)
		r.taken(good)
		body, err := json.Marshal(
			[]models.ParsedEvent{
				{Log: good.ID.Log(1), Event: models.Event{ID: "e", Attempt: 1, Kind: models.Delivered, At: time.Now()}},
			},
		)
		require.NoError(t, err)
		in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{{Body: body}}}
		for in.ID.Shard(r.store.Shards()) != 0 {
			in.ID = models.NewInboxID(time.Now())
		}
		require.NoError(t, r.store.PutInbox(t.Context(), in))
		require.EqualValues(t, 1, r.done(good).Summary().Success)

		s.mu.Lock()
		clear(s.these)
		s.mu.Unlock()
		for _, b := range away {
			r.taken(b)
		}
	})
}

// TestDamagedRecordDelaysNoOther: a chunk or a post that cannot be read is skipped and reported.
// The agenda, the events and the sums of the others are not affected.
func TestDamagedRecordDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &spoilt{these: map[models.ID]bool{}}
		p := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, func(store models.Store) models.Store {
			s.Store = store
			return s
		}, "sg")
		r.known()
		// Many more than are reconciled at once, all in one shard and due first.
		const many = 32
		var bad *models.Batch
		inShard := func(b *models.Batch, _ []models.Recipient) {
			for b.ID.Shard(r.store.Shards()) != 0 {
				b.ID = models.NewBatchID(time.Now())
			}
		}
		for range many {
			bad = r.batch(1, false, func(b *models.Batch, rs []models.Recipient) {
				inShard(b, rs)
				s.spoil(b.ID)
			})
		}
		good := r.batch(2, false, inShard)
		r.engine = r.start(
			fast(),
			[]provider.Spec{{Adapter: p, Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 4, ChunkLimit: 1000,
				Timeout: time.Second, Events: models.EventsWebhook}}},
		)
		r.taken(good)

		// Its message is parked with the reason. If the agenda is far behind, it announces the
		// others, too, without a reconcile.
		r.announce(bad)
		require.Eventually(t, func() bool {
			parked, err := r.broker.Parked(t.Context(), 10*many)
			require.NoError(t, err)
			for _, m := range parked {
				require.True(t, s.these[m.Message.ID])
				require.Contains(t, m.Why, models.ErrDamaged.Error())
			}
			return slices.ContainsFunc(parked, func(m models.Parked) bool { return m.Message.ID == bad.ID })
		}, patience, 5*time.Millisecond)

		// Events of it, and a post that cannot be read, beside good ones.
		post := func(events ...models.ParsedEvent) models.ID {
			body, err := json.Marshal(events)
			require.NoError(t, err)
			return received(t, r.store, body)
		}
		delivered := func(log models.ID) models.ParsedEvent {
			return models.ParsedEvent{
				Log:   log,
				Event: models.Event{ID: "e" + log.String(), Attempt: 1, Kind: models.Delivered, At: time.Now()},
			}
		}
		unread := post(delivered(good.ID.Log(2)))
		s.spoil(unread)
		ids := []models.ID{post(delivered(bad.ID.Log(1)), delivered(good.ID.Log(1))), unread, post(delivered(good.ID.Log(2)))}
		for _, id := range ids {
			require.NoError(t, r.broker.Publish(t.Context(), models.Message{Kind: models.EventMessage, Provider: "sg", ID: id}))
		}
		require.EqualValues(t, 2, r.done(good).Summary().Success)
		require.Eventually(t, func() bool {
			for shard := range r.store.Shards() {
				for range r.store.Pending(t.Context(), shard, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)) {
					return false
				}
			}
			return r.engine.Pending() == 0
		}, patience, 5*time.Millisecond, "posts are unprocessed, or summaries are marked")
		for sum, err := range r.store.Summaries(t.Context(), r.user, good.ID, 0) {
			require.NoError(t, err)
			require.EqualValues(t, 2, sum.Summary.Success)
		}

		// A check reports it, and counts the others.
		var found []rollup.Difference
		out, err := r.engine.Check(
			t.Context(),
			rollup.CheckOptions{Settle: time.Second, Found: func(d rollup.Difference) { found = append(found, d) }},
		)
		require.NoError(t, err)
		require.Equal(t, many+1, out.Batches)
		require.Len(t, found, many+1)
		for _, d := range found[:many] {
			require.Equal(t, "chunk", d.What)
			require.Contains(t, d.String(), models.ErrDamaged.Error())
		}
		require.Equal(t, "day", found[many].What, "its batches were never counted")
	})
}

// panicking is a provider whose parser panics on some posts.
type panicking struct{ *scripted }

func (p *panicking) Parse(body []byte) models.Parsed {
	if string(body) == "panic" {
		panic("index out of range")
	}
	return p.scripted.Parse(body)
}

// TestPostThatPanics: a post on which the parser panics stops neither the process nor the posts
// beside it, and stays in the inbox.
func TestPostThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &panicking{newScripted("sg", always(models.Accepted))}
		r := emptyRig(t, nil, "sg")
		r.engine = r.start(
			fast(),
			[]provider.Spec{{Adapter: p, Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1, ChunkLimit: 1000,
				Timeout: time.Second, Events: models.EventsWebhook}}},
		)
		b := r.batch(1, true, nil)
		r.taken(b)
		id := r.inbox(
			models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{{Body: []byte("panic")},
				postOf(t, "", b.ID.Log(1), models.Event{ID: "1", Attempt: 1, Kind: models.Delivered, At: time.Now()})}},
		)
		require.EqualValues(t, 1, r.done(b).Summary().Success)
		all, err := r.store.Inbox(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, "panic", string(all[0].Posts[0].Body))
	})
}

// TestNewerRecordIsLeft: a worker leaves a chunk that a newer version stored, and its events, to
// newer workers. It parks no message, and the other mail goes on.
func TestNewerRecordIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &spoilt{these: map[models.ID]bool{}, newer: true}
		p := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, func(store models.Store) models.Store {
			s.Store = store
			return s
		}, "sg")
		left := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { s.spoil(b.ID) })
		good := r.batch(1, true, nil)
		r.withEvents(fast(), p)
		r.taken(good)
		event := func(b *models.Batch) models.ParsedEvent {
			return models.ParsedEvent{Log: b.ID.Log(1), Event: models.Event{ID: "e" + b.ID.String(), Attempt: 1,
				Kind: models.Delivered, At: time.Now()}}
		}
		body, err := json.Marshal([]models.ParsedEvent{event(left), event(good)})
		require.NoError(t, err)
		post := received(t, r.store, body)
		require.NoError(t, r.broker.Publish(t.Context(), models.Message{Kind: models.EventMessage, Provider: "sg", ID: post}))
		require.EqualValues(t, 1, r.done(good).Summary().Success)
		parked, err := r.broker.Parked(t.Context(), 10)
		require.NoError(t, err)
		require.Empty(t, parked)
		open := 0
		for shard := range r.store.Shards() {
			for in, err := range r.store.Pending(t.Context(), shard, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)) {
				require.NoError(t, err)
				require.Equal(t, post, in.ID)
				open++
			}
		}
		require.Equal(t, 1, open, "the post is processed")
		require.Zero(t, p.copiesOf(left.ID.Log(1)))

		s.mu.Lock() // the worker is replaced by a newer one
		clear(s.these)
		s.mu.Unlock()
		r.taken(left)
	})
}
