// Package operate is for operators: providers, block rules, holds, queues, workers and conditions.
package operate

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/cached"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/problem"
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

// Conditions returns what is wrong with the installation, the gravest first. Everyone may know, because it is about
// everyone's mail; what is for operators only is in Text and Do of a condition.
func (s *Installation) Conditions(ctx context.Context) ([]condition.Condition, error) {
	names := make([]string, len(s.Configured))
	for i := range names {
		names[i] = s.Configured[i].Name
	}
	cs, err := s.conditions.Get(time.Second, func() ([]condition.Condition, error) {
		ctx := context.WithoutCancel(ctx) // others wait for it, too
		rules, err := s.Audit.Rules(ctx)
		if err != nil {
			return nil, err
		}
		return condition.Read(ctx, s.Store, names, rules, time.Now())
	})
	if err != nil {
		return nil, problem.FromStore("read what processes report", err)
	}
	return cs, nil
}

// LatestNotices returns the newest notices of the installation, newest first, for operators.
func (s *Installation) LatestNotices(ctx context.Context, who caller.Caller, n int) ([]feed.Update, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	head, err := s.Store.FeedHead(ctx, feed.Installation)
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return nil, problem.FromStore("read notices", err)
	}
	var out []feed.Update
	const entries = 200 // of the feed, newest first, that are looked at
	for before := head.Number; before > 0 && before > head.Number-entries && len(out) < n; before -= 50 {
		list, err := s.Store.Feed(ctx, feed.Installation, max(before-50, 0), 50)
		if err != nil {
			return nil, problem.FromStore("read notices", err)
		}
		for i := len(list) - 1; i >= 0; i-- {
			for k := len(list[i].Notices) - 1; k >= 0; k-- {
				out = append(out, feed.Update{At: list[i].At, Notice: &list[i].Notices[k]})
			}
		}
	}
	return out[:min(n, len(out))], nil
}
