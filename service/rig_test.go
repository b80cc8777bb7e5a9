package service

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/store/memory"
)

// operator is a caller who may do everything.
var operator = Caller{By: "boss", Operator: true}

// recordingStore records the writes of commands and lets some calls fail.
type recordingStore struct {
	models.Store

	mu        sync.Mutex
	calls     []string
	scheduled [][]models.AgendaEntry // by write
	schedule  func(n int) error      // called before the n-th write of the agenda, from 1; may be nil
	ledgerErr error                  // of each read of a ledger
}

func (s *recordingStore) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	s.mu.Lock()
	s.calls, s.scheduled = append(s.calls, "schedule"), append(s.scheduled, slices.Clone(es))
	n, f := len(s.scheduled), s.schedule
	s.mu.Unlock()
	if f != nil {
		if err := f(n); err != nil {
			return err
		}
	}
	return s.Store.Schedule(ctx, es...)
}

func (s *recordingStore) AppendCommand(ctx context.Context, c models.Command) error {
	err := s.Store.AppendCommand(ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "command")
	return err
}

func (s *recordingStore) Ledger(ctx context.Context, chunk models.ID) ([]models.Entry, error) {
	s.mu.Lock()
	err := s.ledgerErr
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.Store.Ledger(ctx, chunk)
}

// written returns the writes since the last call.
func (s *recordingStore) written() (calls []string, scheduled [][]models.AgendaEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, scheduled = s.calls, s.scheduled
	s.calls, s.scheduled = nil, nil
	return calls, scheduled
}

// recordingBroker calls published with each batch that is announced.
type recordingBroker struct {
	models.Broker
	published func(models.ID)
}

func (b recordingBroker) Publish(ctx context.Context, ms ...models.Message) error {
	for _, m := range ms {
		b.published(m.ID.Batch())
	}
	return b.Broker.Publish(ctx, ms...)
}

// commandRig is a service in one process and a worker in another process.
type commandRig struct {
	testing.TB
	*Service
	store     *recordingStore
	worker    *control.Follower
	who       Caller
	early     chan models.ID // announced or scheduled before the worker knew all commands
	announced chan models.ID
}

func newCommandRig(t testing.TB) *commandRig {
	t.Helper()
	real, broker := memory.Open(t), inproctest.New(t, "sg")
	f := &commandRig{
		TB:        t,
		store:     &recordingStore{Store: real},
		who:       Caller{User: "aaaa", By: "aaaa"},
		worker:    control.NewFollower(real),
		early:     make(chan models.ID, 100),
		announced: make(chan models.ID, 100),
	}
	f.Service = New(Deps{
		Store:     f.store,
		Providers: []models.Provider{{Name: "sg"}},
		Config:    Config{SpoolDir: t.TempDir()},
		Broker: recordingBroker{broker, func(id models.ID) {
			if f.known() < f.Audit.Follower.Rules().UpTo() {
				f.early <- id
			}
			f.announced <- id
		}},
	})
	t.Cleanup(f.Close)
	require.NoError(t, real.CreateUser(t.Context(), models.User{ID: "aaaa", Name: "ada", Created: time.Now().UTC()}))
	return f
}

// known returns the number of commands that the worker knows before a call.
func (f *commandRig) known() int {
	if err := f.worker.EnsureFresh(context.Background(), control.MaxRuleAge); err != nil {
		return 0
	}
	return f.worker.Rules().UpTo()
}

// batch accepts a batch and waits until it is announced.
func (f *commandRig) batch() models.ID {
	f.Helper()
	id := acceptBatch(f.TB, f.Service, f.who)
	require.Equal(f, id, <-f.announced)
	f.store.written()
	require.NoError(f, f.worker.Sync(f.Context()))
	return id
}

// end ends the only log of a batch.
func (f *commandRig) end(batch models.ID, reason models.Reason) {
	f.Helper()
	require.NoError(f, f.store.Append(f.Context(), batch, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         time.Now(),
		Recipients: models.SetOf(1),
		Reason:     reason,
	}))
}

// refused has a provider refuse the only log of a batch for a temporary reason.
func (f *commandRig) refused(batch models.ID) {
	f.Helper()
	who := models.SetOf(1)
	require.NoError(f, f.store.Append(f.Context(), batch, models.Entry{Number: 1, Token: models.NewToken(),
		Kind: models.Attempt, At: time.Now(), Recipients: who, Provider: "sg", CallEnds: time.Now()}))
	o := &models.Outcome{Attempt: 1, At: time.Now(), Parts: []models.Part{{Class: models.Unavailable, Recipients: who}}}
	fact := models.Fact{Key: models.OutcomeKey(1), Outcome: o}
	require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: batch, Fact: fact}))
}

// putHeld ends the only log of a batch for an unknown outcome, and stores the summary.
func (f *commandRig) putHeld(batch models.ID) {
	f.Helper()
	f.end(batch, models.OutcomeUnknown)
	sum := models.Summary{
		Version:  1,
		Accepted: 1,
		Failed:   1,
		Reasons:  map[models.Reason]int64{models.OutcomeUnknown: 1},
	}
	require.NoError(f, f.store.PutSummaries(f.Context(), models.ChunkSummary{User: "aaaa", Chunk: batch, Summary: sum}))
}

// acceptBatch accepts a batch with one recipient. fields are names of further fields, each followed by its value.
func acceptBatch(t testing.TB, s *Service, who Caller, fields ...string) models.ID {
	t.Helper()
	in := s.NewIntake(t.Context(), who)
	defer in.Close()
	in.Batch = intake.Batch{From: "a@one.example", Subject: "s", Text: "t"}
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := in.Batch.Field(fields[i])
		*field.(*string) = fields[i+1]
	}
	require.NoError(t, in.Read(intake.Of(Recipient{Email: "x@y.example"})))
	a, _, err := s.Accept(t.Context(), who, in, Repeat{})
	require.NoError(t, err)
	return a.ID
}
