// Package lists reads the suppression lists of the providers, adds what is new to everyone's list,
// and stores what they suppress and we do not.
package lists

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/models/suppression"
)

const (
	poll       = 15 * time.Second // how often it is looked for lists that are due
	lease      = "provider_lists"
	leaseTTL   = time.Minute
	maxPages   = 20             // of a list in a round
	overlap    = time.Hour      // how much of the time before the last pass is read again
	wholeEvery = 24 * time.Hour // how often a list is read from its beginning
	pageTime   = 10 * time.Minute
)

// Config configures a Reader.
type Config struct {
	Worker string
	Every  time.Duration // how often the lists are read; 0: never
	Logger *slog.Logger
}

// Store is the part of models.Store that a Reader needs.
type Store interface {
	models.DocumentStore
	SuppressionsOf(ctx context.Context, list string, hashes ...models.AddressHash) ([]models.Suppression, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Observer observes a Reader.
type Observer interface {
	ListsJoined(provider string, n int)         // entries became suppressions
	ListsFailed(provider string)                // a list could not be read
	ListsRead(provider string, begun time.Time) // the last round without an error began then
}

// Deps holds the dependencies of a Reader. All are required.
type Deps struct {
	Store        Store
	Suppressions *suppression.Lists
	Providers    *provider.Set
	Observer     Observer
}

// Reader reads the lists of the providers.
type Reader struct {
	Deps
	cfg Config
	log *slog.Logger
}

// New returns a Reader. It reads while Run runs.
func New(cfg Config, deps Deps) *Reader { return &Reader{deps, cfg, cfg.Logger} }

// Run reads the lists until ctx ends. One worker at a time does so.
func (r *Reader) Run(ctx context.Context) {
	if r.cfg.Every <= 0 {
		return
	}
	runner, job := r.job()
	runner.Run(ctx, job)
}

// job returns the job that reads the lists.
func (r *Reader) job() (*jobs.Runner, *jobs.Job) {
	var due []*provider.Provider
	return &jobs.Runner{Store: r.Store, Worker: r.cfg.Worker, Log: r.log}, &jobs.Job{
		Lease: lease, TTL: leaseTTL, Every: min(poll, r.cfg.Every),
		Doing: "store the suppression lists of the providers",
		Due: func(ctx context.Context, now time.Time) (_ bool, err error) {
			due, err = r.due(ctx, now)
			return len(due) > 0, err
		},
		Round: func(ctx context.Context, now time.Time) error { return r.round(ctx, now, due) },
	}
}

// due returns the providers whose lists are due.
func (r *Reader) due(ctx context.Context, now time.Time) (due []*provider.Provider, err error) {
	for _, p := range r.Providers.All() {
		if _, ok := p.Adapter.(models.ProviderLists); !ok {
			continue
		}
		st, _, err := drift.ReadState(ctx, r.Store, p.Name)
		if err != nil {
			return nil, err
		}
		r.Observer.ListsRead(p.Name, st.Read)
		if now.Sub(st.Began) >= r.cfg.Every {
			due = append(due, p)
		}
	}
	return due, nil
}

// round reads the lists that are due.
func (r *Reader) round(ctx context.Context, now time.Time, due []*provider.Provider) error {
	for _, p := range due {
		if err := r.read(ctx, p, now); errors.Is(err, models.ErrConflict) {
			return nil // another worker goes on
		} else if err != nil {
			return err
		}
	}
	return nil
}

// reading is one round at a provider.
type reading struct {
	*Reader
	provider string
	api      models.ProviderLists
	state    drift.State
	version  int
}

// read reads the lists of a provider. Its errors are those of the store.
func (r *Reader) read(ctx context.Context, p *provider.Provider, now time.Time) (err error) {
	api, _ := p.Adapter.(models.ProviderLists)
	g := &reading{Reader: r, provider: p.Name, api: api}
	if g.state, g.version, err = drift.ReadState(ctx, r.Store, p.Name); err != nil {
		return err
	}
	if now.Sub(g.state.Began) < r.cfg.Every {
		return nil // another worker was first
	}
	g.state.Error = ""
	if g.state.Lists == nil {
		g.state.Lists = map[string]*drift.Cover{}
	}
	for _, l := range api.Lists() {
		if g.state.Lists[l.Name] == nil {
			g.state.Lists[l.Name] = &drift.Cover{}
		}
		if err := g.list(ctx, l.Name, g.state.Lists[l.Name]); err != nil {
			return err
		}
	}
	g.state.Began = now.UTC() // only now: a round that was cut short is due
	if g.state.Error == "" {
		g.state.Read = g.state.Began
		r.Observer.ListsRead(p.Name, g.state.Read)
	}
	return g.save(ctx)
}

// save stores the state. It returns ErrConflict if another worker did meanwhile.
func (g *reading) save(ctx context.Context) error {
	g.version++
	return drift.PutState(ctx, g.Store, g.provider, &g.state, g.version)
}

// list reads the pages of a list.
func (g *reading) list(ctx context.Context, name string, c *drift.Cover) error {
	if c.Pass == nil {
		now := time.Now().UTC()
		c.Pass = &drift.Pass{From: c.Since, To: now}
		if now.Sub(c.Whole) >= wholeEvery {
			c.Pass.From = time.Time{}
		}
	}
	for n := range maxPages {
		if held, err := g.Store.Lease(ctx, lease, g.cfg.Worker, leaseTTL); err != nil {
			return err
		} else if !held {
			return models.ErrConflict
		}
		page, err := g.page(ctx, name, c.Pass)
		if err != nil {
			return g.failed(ctx, name, c, err)
		}
		if c.Refused {
			c.Refused = false
			g.log.Info("the provider's key may read its suppression list now", "provider", g.provider, "list", name)
		}
		if page.Skipped > 0 {
			g.log.Warn("entries of a provider's suppression list cannot be read; they were left out",
				"provider", g.provider, "list", name, "entries", page.Skipped)
		}
		// What a worker that was killed has stored of the first page may not be complete.
		if err := g.take(ctx, name, c.Pass, page.Entries, n == 0); err != nil {
			return err
		}
		if c.Pass.Cursor = page.Next; page.Next == "" {
			return g.finish(ctx, name, c)
		}
		if err := g.save(ctx); err != nil {
			return err
		}
	}
	return nil
}

// page reads a page of a list.
func (g *reading) page(ctx context.Context, name string, pass *drift.Pass) (models.ListPage, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	q := models.ListQuery{List: name, From: pass.From, To: pass.To, Cursor: pass.Cursor}
	return g.api.ReadList(ctx, q)
}

// failed notes that a list cannot be read. The next round goes on at the same page, unless the
// provider refuses its cursor.
func (g *reading) failed(ctx context.Context, name string, c *drift.Cover, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, models.ErrNoLists):
		if !c.Refused {
			g.log.Warn("the provider's key may not read its suppression list; see safedelivr provider check",
				"provider", g.provider, "list", name, "err", err)
		}
		c.Refused, c.Pass = true, nil
		return g.save(ctx)
	case errors.Is(err, models.ErrInvalid):
		c.Pass = nil
	}
	g.state.Error = models.Clip(err.Error())
	g.Observer.ListsFailed(g.provider)
	g.log.Warn("cannot read a suppression list of a provider; will retry",
		"provider", g.provider, "list", name, "err", err)
	return g.save(ctx)
}

// finish ends a pass. Entries that a pass over the whole list did not find are not on it any more.
func (g *reading) finish(ctx context.Context, name string, c *drift.Cover) error {
	if c.Pass.From.IsZero() {
		if err := g.dropUnseen(ctx, name, c.Pass.To); err != nil {
			return err
		}
		c.Whole = c.Pass.To
	}
	c.Since, c.Pass = c.Pass.To.Add(-overlap), nil
	return g.save(ctx)
}

// dropUnseen removes the stored entries of a list that were last found before a time.
func (g *reading) dropUnseen(ctx context.Context, name string, begun time.Time) error {
	const limit = 500
	left := 0
	for after := ""; ; {
		found, err := drift.Entries(ctx, g.Store, after, limit)
		if err != nil {
			return err
		}
		var gone []drift.Stored
		for i := range found {
			switch e := &found[i]; {
			case e.Provider != g.provider:
			case e.List == name && e.Seen.Before(begun):
				gone = append(gone, *e)
			default:
				left++
			}
		}
		if err := drift.Remove(ctx, g.Store, gone); err != nil {
			return fmt.Errorf("remove old entries of %s: %w", g.provider, err)
		}
		if len(found) < limit {
			g.state.Shown = left
			return nil
		}
		after = found[len(found)-1].Key()
	}
}
