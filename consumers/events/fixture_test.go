package events

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

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

// newProcessor returns a Processor for the provider sg that has no dispatcher.
func newProcessor(t *testing.T, store Store, broker Depths) *Processor {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	providers, err := provider.NewSet(
		[]provider.Spec{{Adapter: jsonAdapter{}, Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1}}},
		&provider.Config{Pace: settings.Pace{Heartbeat: time.Second}, Logger: log},
		nil,
	)
	require.NoError(t, err)
	return New(
		Config{Pace: settings.Pace{InboxAge: 200 * time.Millisecond}, Priority: priority.New(), Logger: log},
		Deps{Store: store, Broker: broker, Providers: providers},
	)
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
