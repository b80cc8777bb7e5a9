// Package operate is for operators: providers, block rules, holds, queues, workers and conditions.
package operate

import (
	"log/slog"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/cached"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/people"
)

// Deps holds what an Installation uses.
type Deps struct {
	Store      models.Store
	Broker     models.Broker
	Audit      *audit.Trail
	Guard      *idempotency.Guard
	People     *people.People
	Configured []models.Provider               // providers
	Known      map[string]bool                 // names of the providers
	Adapters   map[string]models.Adapter       // by provider: what parses its posts
	ByProvider map[string]models.ProviderLists // the suppression lists of a provider, if it has any
	Log        *slog.Logger
}

// Installation is what operators control. Its methods may be called by many goroutines at once.
type Installation struct {
	Deps
	conditions cached.Value[[]condition.Condition]
	hours      historyHours
}

// New returns what operators control.
func New(d Deps) *Installation { return &Installation{Deps: d} }
