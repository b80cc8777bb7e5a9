package service

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// TestStopStandsEverywhere: when a stop was answered, a worker in another process,
// which reads the orders now and then, knows of it before its next call.
func TestStopStandsEverywhere(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, broker := sqlitetest.Open(t), inproctest.New(t, "sg")
	s := New(
		Deps{Store: store, Broker: broker, Providers: []models.Provider{{Name: "sg"}}, Config: Config{SpoolDir: t.TempDir()}},
	)
	t.Cleanup(s.Close)
	require.NoError(t, store.CreateUser(ctx, models.User{ID: "aaaa", Name: "ada", Created: time.Now().UTC()}))
	in := s.NewIntake()
	defer in.Close()
	in.SetText("from", "a@one.example")
	in.SetText("subject", "s")
	in.SetText("text", "t")
	require.NoError(t, in.Add(&Recipient{Email: "x@y.example"}))
	who := Caller{User: "aaaa", By: "aaaa", Operator: true}
	a, _, err := s.Accept(ctx, who, in, Repeat{})
	require.NoError(t, err)

	worker := control.NewFollower(store)
	know := func() *control.Rules {
		require.NoError(t, worker.EnsureFresh(ctx, control.MaxRuleAge))
		return worker.Rules()
	}
	know()
	for range 2 { // a repeat changes nothing, and says no less
		require.NoError(t, worker.Sync(ctx))
		out, _, err := s.Steer(ctx, who, models.StopBatch, a.ID.String(), "", Repeat{})
		require.NoError(t, err)
		require.Equal(t, new(0), out.InFlight)
		stopped, _ := know().Stopped(a.ID)
		require.True(t, stopped)
	}
	require.NoError(t, worker.Sync(ctx))
	_, _, err = s.SwitchProvider(ctx, who, models.ProviderOffline, "sg", "", Repeat{})
	require.NoError(t, err)
	require.Equal(t, models.ProviderOffline, know().Provider("sg").Mode)
}

// orderStore is a real store that notes what orders write and lets some of it fail.
type orderStore struct {
	models.Store

	mu       sync.Mutex
	calls    []string
	planned  [][]models.AgendaEntry // each write of the agenda
	schedule func(n int) error      // asked before the n-th write of the agenda, from 1
	counting error                  // of reads that count the calls in flight
}

func (s *orderStore) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	s.mu.Lock()
	s.calls, s.planned = append(s.calls, "schedule"), append(s.planned, slices.Clone(es))
	n, f := len(s.planned), s.schedule
	s.mu.Unlock()
	if f != nil {
		if err := f(n); err != nil {
			return err
		}
	}
	return s.Store.Schedule(ctx, es...)
}

func (s *orderStore) AppendCommand(ctx context.Context, c models.Command) error {
	err := s.Store.AppendCommand(ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "order")
	return err
}

func (s *orderStore) Ledger(ctx context.Context, chunk models.ID) ([]models.Entry, error) {
	s.mu.Lock()
	err := s.counting
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.Store.Ledger(ctx, chunk)
}

// written returns the writes since the last call.
func (s *orderStore) written() (calls []string, planned [][]models.AgendaEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, planned = s.calls, s.planned
	s.calls, s.planned = nil, nil
	return calls, planned
}

// listenedBroker tells which batches were announced.
type listenedBroker struct {
	models.Broker
	heard func(models.ID)
}

func (b listenedBroker) Publish(ctx context.Context, ms ...models.Message) error {
	for _, m := range ms {
		b.heard(m.ID.Batch())
	}
	return b.Broker.Publish(ctx, ms...)
}

// orderRig is a service in one process and a worker in another.
type orderRig struct {
	testing.TB
	*Service
	store  *orderStore
	worker *control.Follower
	who    Caller
	early  chan models.ID // announced before the worker knew all orders
	heard  chan models.ID // announced
}

func newOrderRig(t testing.TB) *orderRig {
	t.Helper()
	real, broker := sqlitetest.Open(t), inproctest.New(t, "sg")
	f := &orderRig{TB: t, store: &orderStore{Store: real}, who: Caller{User: "aaaa", By: "aaaa"},
		worker: control.NewFollower(real), early: make(chan models.ID, 100), heard: make(chan models.ID, 100)}
	f.Service = New(Deps{Store: f.store, Providers: []models.Provider{{Name: "sg"}}, Config: Config{SpoolDir: t.TempDir()},
		Broker: listenedBroker{broker, func(id models.ID) {
			if f.known() < f.journal.Rules().UpTo() {
				f.early <- id
			}
			f.heard <- id
		}}})
	t.Cleanup(f.Close)
	require.NoError(t, real.CreateUser(t.Context(), models.User{ID: "aaaa", Name: "ada", Created: time.Now().UTC()}))
	return f
}

// known is how many orders the worker acts by.
func (f *orderRig) known() int {
	if err := f.worker.EnsureFresh(context.Background(), control.MaxRuleAge); err != nil {
		return 0
	}
	return f.worker.Rules().UpTo()
}

// batch accepts a batch that was announced.
func (f *orderRig) batch() models.ID {
	f.Helper()
	in := f.NewIntake()
	defer in.Close()
	in.SetText("from", "a@one.example")
	in.SetText("subject", "s")
	in.SetText("text", "t")
	require.NoError(f, in.Add(&Recipient{Email: "x@y.example"}))
	a, _, err := f.Accept(f.Context(), f.who, in, Repeat{})
	require.NoError(f, err)
	require.Equal(f, a.ID, <-f.heard)
	f.store.written()
	require.NoError(f, f.worker.Sync(f.Context()))
	return a.ID
}

// TestGoesOnEverywhere: what an order lets go is announced, and on the agenda, when
// workers in other processes know the order.
func TestGoesOnEverywhere(t *testing.T) {
	t.Parallel()
	for _, do := range []models.CommandKind{models.RetryBatch, models.ReleaseBatch, models.ResumeBatch, models.CancelBatch} {
		t.Run(string(do), func(t *testing.T) {
			t.Parallel()
			f := newOrderRig(t)
			id := f.batch()
			if do == models.ResumeBatch {
				_, _, err := f.Steer(t.Context(), f.who, models.StopBatch, id.String(), "", Repeat{})
				require.NoError(t, err)
				f.store.written()
				require.NoError(t, f.worker.Sync(t.Context()))
			}
			f.store.schedule = func(n int) error {
				if n == 2 && f.known() < f.journal.Rules().UpTo() {
					f.early <- id
				}
				return nil
			}
			out, _, err := f.Steer(t.Context(), f.who, do, id.String(), "", Repeat{})
			require.NoError(t, err)
			require.True(t, out.Changed)
			require.Equal(t, id, <-f.heard)
			require.Empty(t, f.early)
			calls, planned := f.store.written()
			require.Equal(t, []string{"schedule", "order", "schedule"}, calls)
			lines, err := f.store.Commands(t.Context(), f.journal.Rules().UpTo()-1, 1)
			require.NoError(t, err)
			require.Len(t, planned[0], 2, "soon, and when the order stands or never will")
			require.Equal(t, f.cfg.SettleTime, planned[0][1].Due.Sub(planned[0][0].Due).Round(time.Second))
			require.Equal(t, id, planned[1][0].ID)
			require.False(t, planned[1][0].Due.Before(lines[0].At.Add(goOnAfter)))
		})
	}
}

// TestReleaseRangeEverywhere: a release of many waits once for the workers.
func TestReleaseRangeEverywhere(t *testing.T) {
	t.Parallel()
	f := newOrderRig(t)
	want := []models.ID{f.batch(), f.batch()}
	for _, id := range want {
		require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: "aaaa", Chunk: id,
			Summary: models.Summary{
				Version:  1,
				Accepted: 1,
				Failed:   1,
				Reasons:  map[models.Reason]int64{models.OutcomeUnknown: 1},
			}}))
	}
	out, _, err := f.ReleaseRange(
		t.Context(),
		f.who,
		Release{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)},
		Repeat{},
	)
	require.NoError(t, err)
	require.Equal(t, Released{Batches: 2, Warning: mayDoubleWarning}, out)
	require.ElementsMatch(t, want, []models.ID{<-f.heard, <-f.heard})
	require.Empty(t, f.early)
	calls, planned := f.store.written()
	require.Equal(t, []string{"schedule", "order", "schedule", "order", "schedule"}, calls)
	require.Len(t, planned[2], 2)
}

// TestResumedUserGoesOn: the newest batches of a resumed user are announced when the
// workers know that it goes on.
func TestResumedUserGoesOn(t *testing.T) {
	t.Parallel()
	f := newOrderRig(t)
	id := f.batch()
	boss := Caller{By: "boss", Operator: true}
	for _, do := range []models.CommandKind{models.PauseUser, models.ResumeUser} {
		require.NoError(t, f.worker.Sync(t.Context()))
		_, _, err := f.SwitchUser(t.Context(), boss, do, "ada", "", Repeat{})
		require.NoError(t, err)
	}
	require.Equal(t, id, <-f.heard)
	require.Empty(t, f.early)
}

// TestOrderStands: when the order stands, what fails after it is told in the answer.
func TestOrderStands(t *testing.T) {
	t.Parallel()
	f := newOrderRig(t)
	id := f.batch()
	f.store.counting = models.ErrUnavailable
	out, _, err := f.Steer(t.Context(), f.who, models.StopBatch, id.String(), "", Repeat{})
	require.NoError(t, err)
	require.True(t, out.Changed)
	require.True(t, out.Stopped)
	require.Nil(t, out.InFlight)
	require.Equal(t, uncountedWarning+" "+inFlightWarning, out.Warning)
	raw, err := json.Marshal(out)
	require.NoError(t, err)
	require.Contains(t, string(raw), `"in_flight":null`)

	f.store.counting = nil
	f.store.schedule = func(n int) error {
		if n == 2 {
			return models.ErrUnavailable
		}
		return nil
	}
	f.store.written()
	out, _, err = f.Steer(t.Context(), f.who, models.ReleaseBatch, id.String(), "", Repeat{})
	require.NoError(t, err)
	require.Equal(t, new(0), out.InFlight)
	require.Equal(
		t,
		lateWarning+" "+mayDoubleWarning+" Nothing goes out yet: it does when the batch is resumed.",
		out.Warning,
	)
	require.Equal(t, id, <-f.heard, "it is announced all the same")
}
