// Package mail reads batches, the logs of their recipients, and what mail waits for.
package mail

import (
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/cached"
	"github.com/safedelivr/safedelivr/service/flow"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/walk"
)

// Deps holds what a Reader uses.
type Deps struct {
	Store     models.Store
	Audit     *audit.Trail
	People    *people.People
	Providers []models.Provider
	Policy    *policy.Policy             // the decision table of the workers
	Composers map[string]models.Composer // by provider: what shows the requests to it
	CountTime time.Duration              // how long counting a list may take
	Logger    *slog.Logger
}

// Reader reads mail. Its methods may be called by many goroutines at once.
type Reader struct {
	Deps
	counts   *walk.Counts
	reported cached.Value[map[string]providerNow]
	failed   cached.Value[map[string][]flow.Health]
	backlogs backlogs
}

// New returns a Reader of the mail of a store.
func New(d Deps) *Reader { return &Reader{Deps: d, counts: walk.NewCounts(d.CountTime)} }
