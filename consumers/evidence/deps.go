// Package evidence asks providers about attempts whose outcome is not known, and for what
// they reported while webhooks could not be received.
package evidence

import (
	"context"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// Config has the times of look-ups.
type Config struct {
	Worker         string
	Poll           time.Duration // how often what is due is looked through
	FinalEventWait time.Duration // how long accepted mail waits for a final event
	LookUpPause    time.Duration // how soon a provider is asked again that could not be, or had news
	Logger         *slog.Logger
}

// Store is the part of models.Store that look-ups need.
type Store interface {
	PutInbox(ctx context.Context, in models.Inbox) error
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Deps are what look-ups need. All are required.
type Deps struct {
	Store     Store
	Policy    *policy.Policy
	Providers *provider.Set
	Dispatch  *dispatch.Dispatcher
}

// New returns look-ups that are not running.
func New(cfg Config, deps Deps) *Lookups {
	return &Lookups{
		cfg:       cfg,
		log:       cfg.Logger,
		store:     deps.Store,
		policy:    deps.Policy,
		providers: deps.Providers,
		dispatch:  deps.Dispatch,
		Filed:     dispatch.NewMemo[FiledEvent, bool](100_000),
		Open:      map[Query]*Lookup{},
	}
}
