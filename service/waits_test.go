package service

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/store/memory"
)

// waitRig is a service with two providers, and a batch of one recipient that was accepted a
// minute ago.
type waitRig struct {
	testing.TB
	*Service
	store models.Store
	who   Caller
	batch models.Batch
	now   time.Time
}

func newWaitRig(t testing.TB) *waitRig {
	t.Helper()
	store := memory.Open(t)
	f := &waitRig{
		TB:    t,
		store: store,
		who:   Caller{User: "aaaa", By: "aaaa"},
		now:   time.Now().UTC().Truncate(time.Millisecond),
	}
	f.Service = New(Deps{
		Store:     store,
		Broker:    inproctest.New(t, "sg", "mg"),
		Providers: []models.Provider{{Name: "sg"}, {Name: "mg"}},
		Config:    Config{SpoolDir: t.TempDir(), Sole: true},
	})
	t.Cleanup(f.Close)
	require.NoError(t, store.CreateUser(t.Context(), models.User{ID: "aaaa", Name: "ada", Created: f.now}))
	f.batch = models.Batch{
		ID:         models.NewBatchID(f.now.Add(-time.Minute)),
		User:       "aaaa",
		Content:    models.Content{From: models.Address{Email: "a@one.example"}, Subject: "s", Text: "t"},
		Recipients: 1,
		Chunks:     1,
		Lane:       models.Urgent,
		ExpiresAt:  f.now.Add(time.Hour),
	}
	return f
}

// put stores the batch.
func (f *waitRig) put() {
	f.Helper()
	rs := []models.Recipient{{Email: "x@y.example"}}
	require.NoError(f, f.store.PutBatch(f.Context(), f.batch, models.Chunk{ID: f.batch.ID, Recipients: rs}))
}

// report stores what a worker sees of sg and mg.
func (f *waitRig) report(sg, mg telemetry.ProviderState) {
	f.Helper()
	f.reportOf("w", sg, mg)
}

func (f *waitRig) reportOf(worker string, sg, mg telemetry.ProviderState) {
	f.Helper()
	sg.Name, mg.Name = "sg", "mg"
	for _, p := range []*telemetry.ProviderState{&sg, &mg} {
		if p.Health.State == "" {
			p.Health.State = telemetry.Healthy
		}
	}
	raw, err := json.Marshal(telemetry.WorkerState{Started: f.now, Providers: []telemetry.ProviderState{sg, mg}})
	require.NoError(f, err)
	require.NoError(f, f.store.PutTransient(f.Context(), telemetry.WorkerReport, worker, raw, time.Hour))
}

// attempt appends an attempt through sg that was made at a time, with its answer, if it is
// not empty.
func (f *waitRig) attempt(at time.Time, answer models.Class) {
	f.Helper()
	require.NoError(f, f.store.Append(f.Context(), f.batch.ID, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         at,
		Recipients: models.SetOf(1),
		Provider:   "sg",
		CallEnds:   at.Add(10 * time.Second),
	}))
	if answer == "" {
		return
	}
	o := &models.Outcome{
		Attempt: 1,
		At:      at.Add(time.Second),
		Parts:   []models.Part{{Class: answer, Recipients: models.SetOf(1)}},
	}
	fact := models.Fact{Key: "outcome", Outcome: o}
	require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: f.batch.ID, Fact: fact}))
}

// suspended is a provider that fails until a time.
func suspended(until time.Time) telemetry.ProviderState {
	return telemetry.ProviderState{Health: telemetry.Health{
		State: telemetry.Suspended,
		Why:   "calls fail",
		Until: until,
	}}
}

// TestWaits: a batch and a log say what they wait for, in every case.
func TestWaits(t *testing.T) {
	t.Parallel()
	healthy := telemetry.ProviderState{}
	rate := telemetry.ProviderState{Limit: telemetry.RateLimit}
	concurrency := telemetry.ProviderState{Limit: telemetry.ConcurrencyLimit}
	refuses := telemetry.ProviderState{Health: telemetry.Health{
		State:   telemetry.Healthy,
		Senders: []string{"one.example"},
	}}
	control := func(f *waitRig, do models.CommandKind) {
		f.put()
		_, _, err := f.Commands.Batch(f.Context(), f.who, do, f.batch.ID.String(), "typo", Repeat{})
		require.NoError(f, err)
	}
	offline := func(f *waitRig, names ...string) {
		for _, name := range names {
			_, _, err := f.Operate.ControlProvider(f.Context(), operator, models.ProviderOffline, name, "moving", Repeat{})
			require.NoError(f, err)
		}
	}
	block := func(f *waitRig, b models.Block) string {
		v, _, err := f.Operate.AddBlock(f.Context(), operator, b, "spam", Repeat{})
		require.NoError(f, err)
		return v.ID
	}
	for name, c := range map[string]struct {
		// prepare makes the case and returns what the batch and its log must wait for. Text
		// is a part of the text.
		prepare func(f *waitRig) models.Wait
		// list is set if lists of batches say so, too.
		list bool
	}{
		"stopped": {list: true, prepare: func(f *waitRig) models.Wait {
			control(f, models.StopBatch)
			return models.Wait{Code: models.WaitBatchStopped, Text: "stopped by aaaa", By: "aaaa", Why: "typo"}
		}},
		"user paused": {list: true, prepare: func(f *waitRig) models.Wait {
			f.put()
			_, _, err := f.People.Control(f.Context(), operator, models.PauseUser, "ada", "unpaid", Repeat{})
			require.NoError(f, err)
			return models.Wait{Code: models.WaitUserPaused, Text: "paused", By: operator.Name(), Why: "unpaid"}
		}},
		"held after a restore": {list: true, prepare: func(f *waitRig) models.Wait {
			f.put()
			require.NoError(f, f.Operate.HoldOld(f.Context(), operator, "restored"))
			return models.Wait{Code: models.WaitRestore, Text: "after a restore", By: operator.Name(), Why: "restored"}
		}},
		"cancelled": {prepare: func(f *waitRig) models.Wait {
			control(f, models.CancelBatch)
			return models.Wait{Code: models.WaitBatchCancelled, Text: "is cancelled"}
		}},
		"expires_at": {prepare: func(f *waitRig) models.Wait {
			f.batch.ExpiresAt = f.now.Add(-time.Second)
			f.put()
			return models.Wait{Code: models.WaitExpiry, Text: "it has expired"}
		}},
		"block rule": {prepare: func(f *waitRig) models.Wait {
			f.put()
			id := block(f, models.Block{Sender: "@one.example"})
			return models.Wait{Code: models.WaitBlockRule, Block: id, Text: "(sender @one.example)",
				By: operator.Name(), Why: "spam"}
		}},
		"block rule for the recipient's domain": {prepare: func(f *waitRig) models.Wait {
			f.put()
			id := block(f, models.Block{Domain: "y.example"})
			return models.Wait{Code: models.WaitBlockRule, Block: id, Text: "(recipients at y.example)",
				By: operator.Name(), Why: "spam"}
		}},
		"block rule for the only provider that is online": {prepare: func(f *waitRig) models.Wait {
			f.put()
			offline(f, "sg")
			id := block(f, models.Block{Provider: "mg"})
			return models.Wait{Code: models.WaitBlockRule, Block: id,
				Text: "sg is offline (moving); withheld by a block rule (provider mg)",
				By:   operator.Name(), Why: "spam"}
		}},
		"all providers offline": {prepare: func(f *waitRig) models.Wait {
			f.put()
			offline(f, "sg", "mg")
			return models.Wait{Code: models.WaitProviderOffline, Text: "sg is offline (moving); mg is offline (moving)"}
		}},
		"its only provider offline": {prepare: func(f *waitRig) models.Wait {
			f.batch.Providers = []string{"mg"}
			f.put()
			offline(f, "mg")
			return models.Wait{Code: models.WaitProviderOffline, Provider: "mg", Text: "mg is offline (moving)",
				By: operator.Name()}
		}},
		"all providers suspended": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.report(suspended(f.now.Add(time.Hour)), suspended(f.now.Add(time.Minute)))
			return models.Wait{Code: models.WaitProviderSuspend, Until: f.now.Add(time.Minute),
				Text: "sg is suspended: calls fail; mg is suspended: calls fail"}
		}},
		"one provider offline and one suspended": {prepare: func(f *waitRig) models.Wait {
			f.put()
			offline(f, "sg")
			f.report(healthy, suspended(f.now.Add(time.Minute)))
			return models.Wait{Code: models.WaitProviderSuspend, Until: f.now.Add(time.Minute), Provider: "mg",
				Text: "mg is suspended: calls fail"}
		}},
		"a provider drains and the other is suspended": {prepare: func(f *waitRig) models.Wait {
			f.put()
			_, _, err := f.Operate.ControlProvider(f.Context(), operator, models.ProviderDrain, "sg", "", Repeat{})
			require.NoError(f, err)
			f.report(healthy, suspended(f.now.Add(time.Minute)))
			return models.Wait{Code: models.WaitProviderSuspend, Until: f.now.Add(time.Minute), Provider: "mg",
				Text: "mg is suspended: calls fail"}
		}},
		"sender refused": {prepare: func(f *waitRig) models.Wait {
			f.batch.Providers = []string{"sg"}
			f.put()
			f.report(refuses, healthy)
			return models.Wait{Code: models.WaitProviderSuspend, Provider: "sg", Text: "refuses the sender domain one.example"}
		}},
		"no worker": {prepare: func(f *waitRig) models.Wait {
			f.put()
			return models.Wait{Code: models.WaitNoWorker, Text: "no worker is running"}
		}},
		"rate limit": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.report(rate, suspended(f.now.Add(time.Minute)))
			return models.Wait{Code: models.WaitRateLimit, Provider: "sg", Text: "rate limit of sg"}
		}},
		"concurrency limit": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.report(concurrency, suspended(f.now.Add(time.Minute)))
			return models.Wait{Code: models.WaitConcurrencyLimit, Provider: "sg", Text: "calls to sg are running"}
		}},
		"its turn": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.report(rate, healthy)
			return models.Wait{Code: models.WaitTurn, Text: "waiting to be handed to a provider"}
		}},
		"its turn in another worker": {prepare: func(f *waitRig) models.Wait {
			f.batch.Providers = []string{"sg"}
			f.put()
			f.report(suspended(f.now.Add(time.Hour)), healthy)
			f.reportOf("v", healthy, healthy)
			return models.Wait{Code: models.WaitTurn, Text: "waiting to be handed to a provider"}
		}},
		"a provider that is probed": {prepare: func(f *waitRig) models.Wait {
			f.put()
			probed := telemetry.ProviderState{Health: telemetry.Health{State: telemetry.Probing}}
			f.report(suspended(f.now.Add(time.Hour)), probed)
			return models.Wait{Code: models.WaitConcurrencyLimit, Provider: "mg", Text: "mg gets one message at a time"}
		}},
		"retry": {prepare: func(f *waitRig) models.Wait {
			f.batch.Providers = []string{"sg"}
			f.put()
			f.report(healthy, healthy)
			f.attempt(f.now, models.Unavailable)
			return models.Wait{Code: models.WaitRetry, Provider: "sg", Until: f.now.Add(time.Second + time.Minute),
				Text: "waiting for another attempt: sg: the provider was not available", Retry: 1, Retries: 10}
		}},
		"retry through a suspended provider": {prepare: func(f *waitRig) models.Wait {
			f.batch.Providers = []string{"sg"}
			f.put()
			f.report(suspended(f.now.Add(time.Hour)), healthy)
			f.attempt(f.now, models.Unavailable)
			return models.Wait{Code: models.WaitProviderSuspend, Provider: "sg", Until: f.now.Add(time.Hour),
				Retry: 1, Retries: 10, Text: "sg is suspended"}
		}},
		"evidence": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.attempt(f.now, models.Unknown)
			return models.Wait{Code: models.WaitEvidence, Provider: "sg", Until: f.now.Add(time.Second + 15*time.Minute),
				Text: "the outcome at sg is not known yet"}
		}},
		"evidence of a call without an answer": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.attempt(f.now, "")
			return models.Wait{Code: models.WaitEvidence, Provider: "sg", Until: f.now.Add(10*time.Second + 15*time.Minute),
				Text: "the outcome at sg is not known yet"}
		}},
		"a last look-up": {prepare: func(f *waitRig) models.Wait {
			f.batch.OnUnknown = models.Resend
			f.put()
			f.attempt(f.now.Add(-time.Hour), models.Unknown)
			return models.Wait{Code: models.WaitEvidence, Text: "the next attempt follows a last look-up"}
		}},
		"the end of an unknown outcome": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.attempt(f.now.Add(-time.Hour), models.Unknown)
			return models.Wait{Code: models.WaitEnding, Text: "a worker records the end soon: it is unknown"}
		}},
		"final event": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.attempt(f.now, models.Accepted)
			return models.Wait{Code: models.WaitFinalEvent, Provider: "sg", Until: f.now.Add(time.Second + 100*time.Hour),
				Text: "accepted by sg; no final event yet"}
		}},
		"final event of deferred mail": {prepare: func(f *waitRig) models.Wait {
			f.put()
			f.attempt(f.now, models.Accepted)
			deferred := models.Event{ID: "e", Attempt: 1, Provider: "sg", Recipient: 1, Kind: models.Deferred, At: f.now}
			fact := models.Fact{Key: "deferred", Events: []models.Event{deferred}}
			require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: f.batch.ID, Fact: fact}))
			return models.Wait{Code: models.WaitFinalEvent, Provider: "sg", Until: f.now.Add(time.Second + 100*time.Hour),
				Text: "accepted by sg, which is still trying to deliver"}
		}},
		"final event of a cancelled batch": {prepare: func(f *waitRig) models.Wait {
			control(f, models.CancelBatch)
			f.attempt(f.now, models.Accepted)
			return models.Wait{Code: models.WaitFinalEvent, Provider: "sg", Until: f.now.Add(time.Second + 100*time.Hour),
				Text: "accepted by sg; no final event yet"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newWaitRig(t)
			want := c.prepare(f)
			require.NoError(t, f.Audit.Follower.Sync(t.Context()))
			log, err := f.Mail.Log(t.Context(), f.who, f.batch.ID.Log(1).String())
			require.NoError(t, err)
			batch, err := f.Mail.Batch(t.Context(), f.who, f.batch.ID.String())
			require.NoError(t, err)
			logs, err := f.Mail.Logs(t.Context(), f.who, f.batch.ID.String(), mail.LogFilter{State: log.State}, Page{})
			require.NoError(t, err)
			for where, wait := range map[string]*models.Wait{
				"log":          log.Waits,
				"batch":        batch.Waits,
				"list of logs": logs.Logs[0].Waits,
			} {
				require.NotNil(t, wait, where)
				require.Contains(t, wait.Text, want.Text, where)
				got := *wait
				require.Equal(t, want.By != "", !got.Since.IsZero(), where)
				got.Text, got.Until, got.Since = want.Text, got.Until.UTC(), time.Time{}
				require.Equal(t, want, got, where)
			}
			require.Equal(t, log.Waits.Text, log.ReasonText)
			list, err := f.Mail.FindBatches(t.Context(), f.who, mail.BatchFilter{}, Page{})
			require.NoError(t, err)
			require.Equal(t, c.list, list.Batches[0].Waits != nil)
		})
	}
}

// TestBatchWaitsForWhatIsNotSent: mail that no provider has decides what a batch waits for,
// whichever chunk it is in. A batch that has ended waits for nothing.
func TestBatchWaitsForWhatIsNotSent(t *testing.T) {
	t.Parallel()
	f := newWaitRig(t)
	f.batch.Recipients, f.batch.Chunks, f.batch.Sizes = 3, 3, []int{1, 1, 1}
	f.put()
	f.report(telemetry.ProviderState{}, telemetry.ProviderState{})
	f.attempt(f.now, models.Accepted)
	summary := func(chunk int, s models.Summary) {
		s.Accepted, s.Version = 1, s.Version+1
		put := models.ChunkSummary{User: "aaaa", Chunk: f.batch.ID.Chunk(chunk), Summary: s}
		require.NoError(t, f.store.PutSummaries(t.Context(), put))
	}
	waits := func() *models.Wait {
		t.Helper()
		b, err := f.Mail.Batch(t.Context(), f.who, f.batch.ID.String())
		require.NoError(t, err)
		return b.Waits
	}
	summary(0, models.Summary{Queued: 1})
	summary(2, models.Summary{Success: 1})
	require.Equal(t, models.WaitTurn, waits().Code, "the second chunk has no summary yet")
	summary(1, models.Summary{Queued: 1, Untried: 1})
	require.Equal(t, models.WaitTurn, waits().Code)
	summary(1, models.Summary{Version: 1, Failed: 1})
	require.Equal(t, models.WaitFinalEvent, waits().Code)
	summary(0, models.Summary{Version: 1, Success: 1})
	require.Nil(t, waits())
}
