package evidence

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/store/memory"
)

const evidenceWindow = time.Hour

// eventsAPI is a provider with an events API. It is never called.
type eventsAPI struct {
	models.Adapter
	mu     sync.Mutex
	events []models.ParsedEvent
}

func (*eventsAPI) MaxRecipients() int { return 1000 }

func (*eventsAPI) LookupLag() time.Duration { return 0 }

func (*eventsAPI) Repeats() time.Duration { return 0 }

func (*eventsAPI) Parse(body []byte) (out models.Parsed) {
	if err := json.Unmarshal(body, &out.Events); err != nil {
		out.Skipped = append(out.Skipped, "not JSON")
	}
	return out
}

func (p *eventsAPI) LookUp(_ context.Context, q models.LookupQuery, post func([]byte) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ev := range p.events {
		if ev.Event.At.Before(q.From) || !ev.Event.At.Before(q.To) {
			continue
		}
		body, err := json.Marshal([]models.ParsedEvent{ev})
		if err != nil {
			return err
		}
		if err := post(body); err != nil {
			return err
		}
	}
	return nil
}

// report adds an event of attempt 1.
func (p *eventsAPI) report(log models.ID, kind models.EventKind, at time.Time) models.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	ev := models.Event{ID: log.String() + string(kind), Attempt: 1, Kind: kind, At: at}
	p.events = append(p.events, models.ParsedEvent{Log: log, Event: ev})
	return ev
}

// newLookups returns Lookups for the provider mg. If store is nil, only look-ups that
// find no events work.
func newLookups(t *testing.T, store *memory.Store, adapter models.Adapter) *Lookups {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	providers, err := provider.NewSet(
		[]provider.Spec{{
			Adapter:  adapter,
			Provider: models.Provider{Name: "mg", Weight: 1, Concurrency: 1, Events: models.EventsWebhook},
		}},
		&provider.Config{Pace: settings.Pace{Heartbeat: time.Second}, Logger: log},
		nil,
	)
	require.NoError(t, err)
	decisions := policy.New(policy.Config{EvidenceWindow: evidenceWindow}, []models.Provider{{Name: "mg"}})
	deps := Deps{Policy: decisions, Providers: providers}
	if store != nil {
		deps.Store = store
		reads := dispatch.Config{Times: settings.Times{KeepContent: time.Hour}, Priority: priority.New(), Logger: log}
		deps.Chunks = dispatch.NewChunks(reads, store, nil)
		deps.Outbox = dispatch.NewOutbox(inproctest.New(t, "mg"), nil, log)
	}
	return New(Config{Pace: settings.Pace{LookUpPause: 100 * time.Millisecond}, Logger: log}, deps)
}

// unknownBatch stores a batch of n recipients with one attempt at mg that was not
// answered.
func unknownBatch(t *testing.T, store *memory.Store, n int) models.ID {
	t.Helper()
	now := time.Now()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       models.NewUserID(),
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Recipients: n,
		Chunks:     1,
		ExpiresAt:  now.Add(time.Hour),
	}
	to := make([]models.Recipient, n)
	for i := range to {
		to[i].Email = fmt.Sprintf("u%d@x.test", i+1)
	}
	require.NoError(t, store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: to}))
	require.NoError(t, store.Append(t.Context(), b.ID, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		Provider:   "mg",
		Recipients: models.SetTo(n),
		At:         now,
		CallEnds:   now,
	}))
	return b.ID
}
