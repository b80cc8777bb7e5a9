package service

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Config holds limits and times. Zero fields take the defaults.
type Config struct {
	MaxRecipients int           // of one batch; default 1,000,000
	MaxContent    int64         // bytes of subject, text and HTML together; default 5 MiB
	SpoolDir      string        // for large requests; default: the system's temporary folder
	Deadline      time.Duration // of a batch; default 7 days
	Recheck       time.Duration // when the agenda first looks at a batch; default 1 minute
	IntakeTime    time.Duration // how long storing a batch may take; default 10 minutes
	SettleTime    time.Duration // how long an unknown outcome of the deciding write is repeated; default 30 seconds
	UrgentUpTo    int           // batches of at most so many recipients are urgent by default; default 100
	// IdempotencyTime is how long idempotency keys are kept; default 24 hours.
	IdempotencyTime time.Duration
	Sole            bool                // no other process works on the store, so that workers know an order at once
	Priority        *priority.Scheduler // of the process; nil: one of its own
	Logger          *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxRecipients <= 0 {
		c.MaxRecipients = 1_000_000
	}
	if c.MaxContent <= 0 {
		c.MaxContent = 5 << 20
	}
	if c.SpoolDir == "" {
		c.SpoolDir = os.TempDir()
	}
	if c.Deadline <= 0 {
		c.Deadline = 7 * 24 * time.Hour
	}
	if c.Recheck <= 0 {
		c.Recheck = time.Minute
	}
	if c.IntakeTime <= 0 {
		c.IntakeTime = 10 * time.Minute
	}
	if c.SettleTime <= 0 {
		c.SettleTime = 30 * time.Second
	}
	if c.UrgentUpTo <= 0 {
		c.UrgentUpTo = 100
	}
	if c.IdempotencyTime <= 0 {
		c.IdempotencyTime = 24 * time.Hour
	}
	if c.Priority == nil {
		c.Priority = priority.New()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Deps is what a service stands on.
type Deps struct {
	Store     models.Store
	Broker    models.Broker
	Providers []models.Provider // that are configured
	Journal   *control.Follower // the process's follower of orders; nil: one of its own
	Config    Config

	// Accepted is told of every batch that was stored, with its first chunk, before
	// it is announced; nil: nobody is.
	Accepted func(*models.Batch, models.Chunk)
}

// Service is the use cases. All methods may be called by many goroutines at
// once; every error that they return is an *Error.
type Service struct {
	cfg       Config
	told      func(*models.Batch, models.Chunk)
	log       *slog.Logger
	store     models.Store
	broker    models.Broker
	providers []models.Provider
	known     map[string]bool // their names
	keys      keyCache
	uses      uses
	journal   *control.Follower
	users     kept[[]models.User]
	unknown   kept[Unknown]
	hours     historyHours
	announce  map[models.Lane]*announcer // bulk never holds up urgent
	tallies   map[models.Lane]*tally

	closing sync.Once
}

// New builds the service; Close ends it.
func New(d Deps) *Service {
	cfg := d.Config.withDefaults()
	s := &Service{
		cfg:       cfg,
		log:       cfg.Logger,
		store:     d.Store,
		broker:    d.Broker,
		providers: d.Providers,
		known:     map[string]bool{},
		announce:  map[models.Lane]*announcer{},
		tallies:   map[models.Lane]*tally{},
		journal:   d.Journal,
		told:      d.Accepted,
	}
	if s.told == nil {
		s.told = func(*models.Batch, models.Chunk) {}
	}
	if s.journal == nil {
		s.journal = control.NewFollower(d.Store)
	}
	for i := range d.Providers {
		s.known[d.Providers[i].Name] = true
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		s.announce[lane] = newAnnouncer(d.Broker, cfg.Logger)
		s.tallies[lane] = &tally{}
	}
	return s
}

// Close publishes what is still to be announced, for a few seconds at most.
// Calling it again does nothing.
func (s *Service) Close() {
	s.closing.Do(func() {
		var g errgroup.Group
		for _, a := range s.announce {
			g.Go(func() error { a.close(); return nil })
		}
		_ = g.Wait() // never an error
		s.uses.wg.Wait()
	})
}

// tally counts what was accepted.
type tally struct{ batches, recipients atomic.Int64 }

// Tally is what was accepted since the start.
type Tally struct{ Batches, Recipients int64 }

// Tallies says what this process accepted since it started, by lane.
func (s *Service) Tallies() map[models.Lane]Tally {
	out := map[models.Lane]Tally{}
	for lane, t := range s.tallies {
		out[lane] = Tally{t.batches.Load(), t.recipients.Load()}
	}
	return out
}

// Readiness says whether batches can be accepted.
type Readiness struct {
	Ready   bool
	Missing []string          // by name
	Checks  map[string]string // name -> ok, or what is wrong
}

// Ready looks for what is missing. A missing broker does not make the service
// unready: batches are stored and announced later.
func (s *Service) Ready(ctx context.Context) Readiness {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var store, broker error
	var g errgroup.Group
	g.Go(func() error { store = s.store.Ping(ctx); return nil })
	g.Go(func() error { broker = s.broker.Ping(ctx); return nil })
	_ = g.Wait() // never an error
	r := Readiness{Missing: []string{}, Checks: map[string]string{"store": "ok", "broker": "ok", "providers": "ok"}}
	miss := func(what, why string) { r.Checks[what], r.Missing = why, append(r.Missing, what) }
	if store != nil {
		miss("store", "unavailable")
	}
	if len(s.known) == 0 {
		miss("providers", "no provider is configured")
	}
	r.Ready = len(r.Missing) == 0
	if broker != nil {
		miss("broker", "unavailable; batches are accepted and announced later")
	}
	return r
}
