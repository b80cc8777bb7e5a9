// Package evidence queries providers for the events of attempts whose outcome is unknown,
// and for the events of times in which webhooks could not be received.
//
// Events that it finds go through the inbox like any other post, so that they are
// attributed, counted and deduplicated in one place. If a query finds nothing, that proves
// nothing.
package evidence

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
)

// Config configures Lookups.
type Config = dispatch.Config

// Store is the part of models.Store that Lookups need.
type Store interface {
	PutInbox(ctx context.Context, in models.Inbox) error
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Deps holds the dependencies of Lookups. All are required.
type Deps struct {
	Store     Store
	Policy    *policy.Policy
	Providers *provider.Set
	Chunks    *dispatch.Chunks
	Outbox    *dispatch.Outbox
}

// New returns Lookups. They query providers while Run runs.
func New(cfg Config, deps Deps) *Lookups {
	return &Lookups{
		Deps:    deps,
		cfg:     cfg,
		log:     cfg.Logger,
		filed:   dispatch.NewMemo[eventKey, bool](100_000),
		open:    map[lookupKey]*lookup{},
		refused: map[string]time.Time{},
	}
}
