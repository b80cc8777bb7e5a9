package consumers

import (
	"context"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// evidenceConfig has the times of look-ups.
type evidenceConfig struct {
	Worker         string
	Poll           time.Duration // how often what is due is looked through
	FinalEventWait time.Duration // how long accepted mail waits for a final event
	LookUpPause    time.Duration // how soon a provider is asked again that could not be, or had news
	Logger         *slog.Logger
}

// evidenceStore is the part of models.Store that look-ups need.
type evidenceStore interface {
	PutInbox(ctx context.Context, in models.Inbox) error
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// evidenceDeps are what look-ups need. All are required.
type evidenceDeps struct {
	Store     evidenceStore
	Policy    *policy.Policy
	Providers *provider.Set
	Dispatch  *dispatcher
}

// newLookups returns look-ups that are not running.
func newLookups(cfg evidenceConfig, deps evidenceDeps) *lookups {
	return &lookups{
		cfg:       cfg,
		log:       cfg.Logger,
		store:     deps.Store,
		policy:    deps.Policy,
		providers: deps.Providers,
		dispatch:  deps.Dispatch,
		filed:     newMemo[filedEvent, bool](100_000),
		open:      map[query]*lookup{},
	}
}
