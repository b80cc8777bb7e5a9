package events

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

const (
	seenPoll = 10 * time.Second // how often new kinds are stored
	seenSave = time.Hour        // how old the stored time of a kind may be
)

// SeenKinds holds when an event of each kind came in from each provider. The dashboard shows
// which kinds a provider does not report.
type SeenKinds struct {
	log   *slog.Logger
	store Store

	mu    sync.Mutex
	at    map[telemetry.SeenKind]time.Time
	saved map[telemetry.SeenKind]time.Time // the times that the store holds
}

// note records an event that was taken and when its post arrived.
func (s *SeenKinds) note(ev *models.Event, received time.Time) {
	key := telemetry.SeenKind{Provider: ev.Provider, Kind: ev.Kind}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at, s.saved = map[telemetry.SeenKind]time.Time{}, map[telemetry.SeenKind]time.Time{}
	}
	s.at[key] = models.LaterOf(s.at[key], received)
}

// due returns the times to store: those of new kinds, and those that are much later than
// the stored ones.
func (s *SeenKinds) due() map[telemetry.SeenKind]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := maps.Clone(s.at)
	maps.DeleteFunc(out, func(k telemetry.SeenKind, at time.Time) bool { return at.Sub(s.saved[k]) < seenSave })
	return out
}

// Run stores which kinds of event came in, until ctx ends.
func (s *SeenKinds) Run(ctx context.Context) {
	for range models.Every(ctx, seenPoll) {
		if err := s.Save(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("cannot store which kinds of event came in; will retry", "err", err)
		}
	}
}

// Save stores which kinds of event came in.
func (s *SeenKinds) Save(ctx context.Context) error {
	for key, at := range s.due() {
		value, err := json.Marshal(at.UTC())
		if err != nil {
			return err
		}
		if err := s.store.PutTransient(ctx, telemetry.EventSeen, key.String(), value, telemetry.EventSeenTTL); err != nil {
			return err
		}
		s.mu.Lock()
		s.saved[key] = at
		s.mu.Unlock()
	}
	return nil
}
