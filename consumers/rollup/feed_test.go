package rollup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/store/memory"
)

// feedModel is two workers that publish the feeds of two users.
type feedModel struct {
	store   models.Store
	workers [2]*feedWorker
	users   []string
	batches []*models.Batch
	posts   int
}

// feedWorker is a worker. Its marks are known to the model, which marks the chunks again after
// a kill, as the agenda and the sweep of the inbox do.
type feedWorker struct {
	*Rollup
	store  *faulty
	marked map[models.ID]string
}

func (m *feedModel) start(n int) {
	log := slog.New(slog.DiscardHandler)
	s := &faulty{Store: m.store}
	reads := dispatch.Config{Times: settings.Times{KeepContent: time.Hour}, Priority: priority.New(), Logger: log}
	rollup := New(Config{Logger: log}, s, dispatch.NewChunks(reads, s, nil), func(*Round) {})
	w := &feedWorker{Rollup: rollup, store: s, marked: map[models.ID]string{}}
	if old := m.workers[n]; old != nil {
		for id, user := range old.marked {
			w.mark(user, id)
		}
	}
	m.workers[n] = w
}

func (w *feedWorker) mark(user string, id models.ID) {
	w.marked[id] = user
	w.Mark(user, id)
}

// flush renews the marked chunks, and starts the worker anew if that kills it.
func (m *feedModel) flush(n int) error {
	w := m.workers[n]
	err := w.Flush(context.Background())
	switch {
	case err == nil:
		clear(w.marked)
	case errors.Is(err, errKilled):
		m.start(n)
		err = nil
	}
	return err
}

// happening is an entry or a fact that will be added to a chunk.
type happening struct {
	batch *models.Batch
	entry models.Entry
	fact  models.Fact
}

// happening draws what happens next.
func (m *feedModel) happening(t *rapid.T) happening {
	h := happening{batch: rapid.SampledFrom(m.batches).Draw(t, "batch")}
	r := rapid.IntRange(1, h.batch.Recipients).Draw(t, "recipient")
	some := models.SetOf(r, rapid.IntRange(1, h.batch.Recipients).Draw(t, "other recipient"))
	attempt := rapid.IntRange(1, 3).Draw(t, "attempt")
	provider := rapid.SampledFrom([]string{"sg", "mg"}).Draw(t, "provider")
	h.entry = models.Entry{At: time.Now().UTC(), Recipients: some}
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0, 1, 2:
		h.entry.Kind, h.entry.Provider = models.Attempt, provider
	case 3:
		h.entry.Kind, h.entry.Reason = models.Ending, models.Expired
	case 4:
		h.entry.Kind, h.entry.MayDouble = models.Release, true
	case 5, 6:
		class := rapid.SampledFrom([]models.Class{models.Accepted, models.Unknown, models.RejectedRecipient,
			models.Throttled}).Draw(t, "class")
		h.fact.Key = models.OutcomeKey(attempt)
		h.fact.Outcome = &models.Outcome{Attempt: attempt, At: time.Now().UTC(),
			Parts: []models.Part{{Class: class, Recipients: some, Final: rapid.Bool().Draw(t, "final")}}}
	default:
		m.posts++
		ev := models.Event{ID: fmt.Sprint(m.posts), Recipient: r, Attempt: attempt, Provider: provider, At: time.Now().UTC()}
		ev.Kind = rapid.SampledFrom([]models.EventKind{models.Delivered, models.Bounced, models.Blocked, models.Opened,
			models.Clicked, models.Deferred, models.Complained, models.Unsubscribed, models.Processed}).Draw(t, "event")
		if ev.Kind == models.Bounced {
			ev.Reason = rapid.SampledFrom([]models.Reason{models.MailboxInvalid, models.PolicyReputation}).Draw(t, "reason")
		}
		h.fact.Key, h.fact.Events = models.EventsKey(models.NewInboxID(time.Now())), []models.Event{ev}
	}
	return h
}

// add stores what happened, and marks the chunk at a worker.
func (m *feedModel) add(h happening, n int) error {
	ctx := context.Background()
	var err error
	if h.entry.Kind == "" {
		err = m.store.PutFacts(ctx, models.ChunkFact{Chunk: h.batch.ID, Fact: h.fact})
	} else {
		var entries []models.Entry
		if entries, err = m.store.Ledger(ctx, h.batch.ID); err == nil {
			h.entry.Number, h.entry.Token = len(entries)+1, models.NewToken()
			err = m.store.Append(ctx, h.batch.ID, h.entry)
		}
	}
	m.workers[n].mark(h.batch.User, h.batch.ID)
	return err
}

// disturb lets a worker renew its chunks while something goes wrong.
func (m *feedModel) disturb(t *rapid.T) {
	n := rapid.IntRange(0, 1).Draw(t, "worker")
	f := &fault{at: rapid.IntRange(0, 9).Draw(t, "call")}
	var frozen error
	switch rapid.IntRange(0, 2).Draw(t, "fault") {
	case 0:
		f.kill = true
	case 1:
		f.late = true
	case 2: // the other worker goes on while this one is frozen
		var pending []happening
		for range rapid.IntRange(0, 3).Draw(t, "news") {
			pending = append(pending, m.happening(t))
		}
		f.freeze = func() {
			for _, h := range pending {
				frozen = errors.Join(frozen, m.add(h, 1-n))
			}
			frozen = errors.Join(frozen, m.flush(1-n))
		}
	}
	s := m.workers[n].store
	s.mu.Lock()
	s.calls, s.fault = 0, f
	s.mu.Unlock()
	require.NoError(t, m.flush(n))
	require.NoError(t, frozen)
	s.mu.Lock()
	s.fault = nil
	s.mu.Unlock()
}

// event is an event of a log, as a feed publishes it.
type event struct {
	log      models.ID
	kind     models.EventKind
	provider string
}

// updates reads a feed to its end, and checks that it has no gap and no repeat. It returns the
// newest change of each log, and the events.
func updates(t require.TestingT, store models.FeedStore, user string) (map[models.ID]feed.Update, map[event]bool) {
	newest, events, numbers := map[models.ID]feed.Update{}, map[event]bool{}, map[models.ID]int{}
	var at time.Time
	for p := feed.Begin; ; {
		page, err := feed.Read(context.Background(), store, user, feed.Query{After: p, Limit: 3})
		require.NoError(t, err)
		for _, u := range page.Updates {
			require.False(t, u.At.Before(at), "times ascend")
			at = u.At
			if u.Event != "" {
				numbers[u.Log]++
				require.Equal(t, numbers[u.Log], u.Number, "numbers of events without a hole")
				if u.Event == models.BatchEnded {
					continue
				}
				ev := event{u.Log, u.Event, u.Provider}
				require.False(t, events[ev], "%v is published twice", ev)
				events[ev] = true
				continue
			}
			before, ok := newest[u.Log]
			require.Equal(t, before.Number+1, u.Number, "numbers without a hole")
			if !ok {
				before.State = models.Queued
			}
			require.False(t, before.State == u.State && before.Reason == u.Reason && before.Provider == u.Provider,
				"an update of %s changes nothing", u.Log)
			newest[u.Log] = u
		}
		p = page.Next
		if !page.More {
			return newest, events
		}
	}
}

// eventsOf returns the events of a chunk that the feed has to publish. It counts them one by one.
func eventsOf(chunk models.ID, entries []models.Entry, facts []models.Fact) map[event]bool {
	out := map[event]bool{}
	for _, e := range models.Events(facts) {
		made := slices.ContainsFunc(entries, func(a models.Entry) bool {
			return a.Kind == models.Attempt && a.Number == e.Attempt && a.Provider == e.Provider && a.Recipients.Has(e.Recipient)
		})
		kind := e.Kind
		if kind == models.Blocked {
			kind = models.Bounced
		}
		if made && slices.Contains(models.FeedEvents, kind) {
			out[event{chunk.Log(e.Recipient), kind, e.Provider}] = true
		}
	}
	return out
}

// recount compares the feeds with the logs.
func (m *feedModel) recount(t require.TestingT) {
	published := map[string]map[models.ID]feed.Update{}
	events, counted := map[event]bool{}, map[event]bool{}
	for _, user := range m.users {
		var some map[event]bool
		published[user], some = updates(t, m.store, user)
		maps.Copy(events, some)
	}
	for _, b := range m.batches {
		entries, facts, err := m.store.Record(context.Background(), b.ID)
		require.NoError(t, err)
		maps.Copy(counted, eventsOf(b.ID, entries, facts))
		v := models.Resolve(b.Recipients, entries, facts)
		for r := 1; r <= b.Recipients; r++ {
			u, ok := published[b.User][b.ID.Log(r)]
			if !ok {
				u.State = models.Queued
			}
			s := v.Status(r)
			want := [3]string{string(s.State), string(s.Reason), s.Provider}
			if s.State.Open() { // an update of sent mail says nothing
				want = [3]string{string(models.Queued), "", ""}
			}
			require.Equal(t, want,
				[3]string{string(u.State), string(u.Reason), u.Provider}, "recipient %d of %s", r, b.ID)
		}
	}
	require.Equal(t, counted, events)
	m.ended(t)
}

// ended checks that the feeds publish each end of a batch once, when no log of it is queued.
func (m *feedModel) ended(t require.TestingT) {
	for _, b := range m.batches {
		page, err := feed.Read(context.Background(), m.store, b.User, feed.Query{After: feed.Begin, Limit: 10_000})
		require.NoError(t, err)
		states := map[models.ID]models.State{} // of those that are not queued
		done := false
		for _, u := range page.Updates {
			switch {
			case u.Log.Batch() != b.ID:
			case u.Event == models.BatchEnded:
				require.False(t, done, "it has ended")
				require.Len(t, states, b.Recipients, "nothing of it is queued")
				done = true
			case u.State == models.Queued:
				delete(states, u.Log)
				done = false
			case u.State != "":
				states[u.Log] = u.State
			}
		}
		require.Equal(t, len(states) == b.Recipients, done, "it has ended")
	}
}

// TestFeedIsRecount: random things happen to mail, and one of two workers is killed or frozen anywhere. The feed has
// each update once. Its newest updates equal a recount of the logs, and its events are those of the logs.
func TestFeedIsRecount(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &feedModel{store: store, users: []string{models.NewUserID(), models.NewUserID()}}
		for i, size := range []int{3, 1, 2} {
			b := &models.Batch{
				ID:         models.NewBatchID(time.Now()),
				User:       m.users[i/2],
				Lane:       models.Bulk,
				OnUnknown:  models.Hold,
				Recipients: size,
				Chunks:     1,
				ExpiresAt:  time.Now().Add(time.Hour),
			}
			first := models.Chunk{ID: b.ID, Recipients: make([]models.Recipient, size)}
			require.NoError(t, store.PutBatch(context.Background(), *b, first))
			m.batches = append(m.batches, b)
		}
		m.start(0)
		m.start(1)
		t.Repeat(map[string]func(*rapid.T){
			"happens": func(t *rapid.T) {
				require.NoError(t, m.add(m.happening(t), rapid.IntRange(0, 1).Draw(t, "worker")))
			},
			"disturb": m.disturb,
			"": func(t *rapid.T) {
				for _, user := range m.users {
					updates(t, store, user)
				}
			},
		})
		require.NoError(t, m.flush(0))
		require.NoError(t, m.flush(1))
		m.recount(t)
	})
}

// unreadableFeed is a store in which the feed of one user cannot be read.
type unreadableFeed struct {
	models.Store
	user string
	err  error
}

func (s *unreadableFeed) FeedHead(ctx context.Context, user string) (models.FeedEntry, error) {
	if user == s.user && s.err != nil {
		return models.FeedEntry{}, s.err
	}
	return s.Store.FeedHead(ctx, user)
}

// TestUnreadableFeedHoldsUpNoOther: if the feed of a user cannot be read, the feeds and sums of
// others are written. The sums of the user wait for a feed of a newer version, and not for a
// damaged one.
func TestUnreadableFeedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{models.ErrNewer, models.ErrDamaged} {
		var store *unreadableFeed
		f := newFixture(t, func(s models.Store) models.Store {
			store = &unreadableFeed{Store: s}
			return store
		})
		good, user := f.delivered(3), f.user
		store.user, store.err = models.NewUserID(), failure
		f.user = store.user
		bad := f.delivered(2)
		shown := func() (n int64) {
			for s, err := range f.store.Summaries(t.Context(), store.user, bad.ID, 0) {
				require.NoError(t, err)
				n = s.Summary.Success
			}
			return n
		}
		published, _ := updates(t, f.store, user)
		require.Len(t, published, good.Recipients)
		if errors.Is(failure, models.ErrDamaged) {
			require.EqualValues(t, 2, shown())
			require.Zero(t, f.Pending())
			continue
		}
		require.Zero(t, shown())
		require.Equal(t, 1, f.Pending())
		require.Positive(t, f.Lag(time.Now()))
		store.err = nil
		require.NoError(t, f.Flush(t.Context()))
		require.EqualValues(t, 2, shown())
		published, _ = updates(t, f.store, store.user)
		require.Len(t, published, 2)
		require.Zero(t, f.Lag(time.Now()))
	}
}
