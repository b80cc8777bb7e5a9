package events

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// jsonAdapter parses a list of events as JSON.
type jsonAdapter struct{ models.Adapter }

func (jsonAdapter) MaxRecipients() int { return 1000 }

func (jsonAdapter) Parse(body []byte) (out models.Parsed) {
	if err := json.Unmarshal(body, &out.Events); err != nil {
		out.Skipped = append(out.Skipped, "not JSON")
	}
	return out
}

// testConfig returns the configuration of a Processor, a Sweeper or a SoftDecider.
func testConfig() Config {
	return Config{
		Pace:     settings.Pace{InboxAge: 200 * time.Millisecond},
		Priority: priority.New(),
		Logger:   slog.New(slog.DiscardHandler),
	}
}

// newProviders returns the provider sg, with an adapter.
func newProviders(t *testing.T, adapter models.Adapter) *provider.Set {
	t.Helper()
	providers, err := provider.NewSet(
		[]provider.Spec{{Adapter: adapter, Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1}}},
		&provider.Config{Pace: settings.Pace{Heartbeat: time.Second}, Logger: slog.New(slog.DiscardHandler)},
		nil,
	)
	require.NoError(t, err)
	return providers
}

// newProcessor returns a Processor for the provider sg that has no dispatcher.
func newProcessor(t *testing.T, store interface {
	Store
	dispatch.Store
}, adapter models.Adapter, summaries Summaries) *Processor {
	t.Helper()
	reads := dispatch.Config{Times: settings.Times{KeepContent: time.Hour}, Priority: priority.New()}
	work := dispatch.NewWork()
	t.Cleanup(work.Stop)
	return New(testConfig(), Deps{
		Store:     store,
		Providers: newProviders(t, adapter),
		Flows:     provider.NewFlows(),
		Chunks:    dispatch.NewChunks(reads, store, nil),
		Work:      work,
		Summaries: summaries,
		Observer:  noObserver{},
	})
}

// memoryInbox is an inbox in memory.
type memoryInbox struct {
	Store
	entries map[models.ID]models.Inbox
}

func (s *memoryInbox) Inbox(_ context.Context, ids ...models.ID) (out []models.Inbox, err error) {
	for _, id := range ids {
		if in, ok := s.entries[id]; ok {
			out = append(out, in)
		}
	}
	return out, nil
}

func (s *memoryInbox) InboxDone(context.Context, ...models.ID) error { return nil }

// put adds an entry of one post and returns its id.
func (s *memoryInbox) put(body []byte) models.ID {
	id := models.NewInboxID(time.Now())
	if s.entries == nil {
		s.entries = map[models.ID]models.Inbox{}
	}
	s.entries[id] = models.Inbox{ID: id, Provider: "sg", Posts: []models.Post{{Body: body}}}
	return id
}
