// Package service holds the rooms of the use cases that the API, the dashboard and the command line share, and accepts
// batches. It knows nothing of HTTP. Each error that a use case returns is an *Error.
package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/announce"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/cached"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/drafts"
	"github.com/safedelivr/safedelivr/service/endpoints"
	"github.com/safedelivr/safedelivr/service/erase"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/operate"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/stats"
	"github.com/safedelivr/safedelivr/service/suppressions"
	"github.com/safedelivr/safedelivr/service/templates"
	"github.com/safedelivr/safedelivr/service/updates"
)

// Config holds limits and times. Zero fields take the defaults.
type Config struct {
	settings.Limits
	settings.Times

	UnsubscribeURL string           // page at which recipients unsubscribe, without their token; empty: there is none
	SpoolDir       string           // directory for large requests; default: the system's temporary directory
	EndpointClient *outbound.Client // makes test posts to endpoints; default: one that reaches no private network

	// how long a write with an unknown outcome is retried
	RetryTime time.Duration `range:">0" default:"30s"`
	// how long a cut-off request for messages is waited for
	MessageWait time.Duration `range:">0" default:"2s"`
	// how long counting a list may take
	CountTime time.Duration `range:">0" default:"500ms"`

	// Operator reports whether a user is an operator. Keys with the scope operate work only
	// while their owner is one; nil: every owner is.
	Operator func(models.User) bool

	Quotas models.Limits // of users for whom no operator sets others; default: no limits

	Currency string             // of the prices
	Prices   map[string]float64 // of 1,000 messages at each provider; empty: no cost is shown

	DiskFree func() (int64, error) // free space in bytes, for DiskReserve; nil: unknown

	Sole     bool                // no other process uses the store, so workers know commands at once
	Priority *priority.Scheduler // of the process; nil: a new one
	Logger   *slog.Logger        // nil: logs are discarded
}

func (c Config) withDefaults() Config {
	settings.Fill(&c)
	c.SpoolDir = cmp.Or(c.SpoolDir, os.TempDir())
	if c.EndpointClient == nil {
		c.EndpointClient = outbound.New(nil)
	}
	if c.Operator == nil {
		c.Operator = func(models.User) bool { return true }
	}
	if c.Priority == nil {
		c.Priority = priority.New()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Deps holds what a Service uses.
type Deps struct {
	Store        models.Store
	Broker       models.Broker
	Providers    []models.Provider               // the configured providers
	CommandLog   *control.Follower               // of the process; nil: a new one
	Suppressions *suppression.Lists              // of the process; nil: new ones
	Policy       *policy.Policy                  // the decision table of the workers; nil: one with default settings
	Composers    map[string]models.Composer      // by provider: what shows the requests to it
	Lists        map[string]models.ProviderLists // by provider: its suppression lists, if it has any
	Adapters     map[string]models.Adapter       // by provider: what parses its posts
	Config       Config

	// Accepted is called with each batch that was stored, and its first chunk, before
	// the batch is announced. It may be nil.
	Accepted func(*models.Batch, models.Chunk)

	// AcceptTime is called with the time from a complete request to the last write of its batch. It may be nil.
	AcceptTime func(models.Lane, time.Duration)
}

// withDefaults returns d with all that it may leave out.
func (d Deps) withDefaults() Deps {
	d.Config = d.Config.withDefaults()
	if d.CommandLog == nil {
		d.CommandLog = control.NewFollower(d.Store)
	}
	if d.Suppressions == nil {
		d.Suppressions = suppression.New(d.Store, suppression.DefaultMemory)
	}
	if d.Policy == nil {
		d.Policy = mail.DefaultPolicy(d.Providers, d.Config.Recheck)
	}
	if d.Accepted == nil {
		d.Accepted = func(*models.Batch, models.Chunk) {}
	}
	if d.AcceptTime == nil {
		d.AcceptTime = func(models.Lane, time.Duration) {}
	}
	return d
}

// Service holds the rooms of the use cases, and accepts mail. It may be used by many goroutines at once.
type Service struct {
	Audit  *audit.Trail
	People *people.People
	Limits *people.Limits
	Stats  *stats.Reader
	Mail   *mail.Reader

	Suppressions *suppressions.Lists
	Operate      *operate.Installation
	Commands     *commands.Commands
	Erasures     *erase.Eraser
	Templates    *templates.Library
	Drafts       *drafts.Library
	Updates      *updates.Reader // the feeds of updates

	cfg        Config
	log        *slog.Logger
	store      models.Store
	broker     models.Broker
	providers  []models.Provider
	known      map[string]bool // names of the providers
	intake     intake.Config
	endpoints  *endpoints.Endpoints
	guard      *idempotency.Guard
	accepting  idempotency.Guard // of batches, which need no answers if they are kept for long
	marks      *suppression.Lists
	onAccept   func(*models.Batch, models.Chunk)
	acceptTime func(models.Lane, time.Duration)
	announce   announcers
	tallies    map[models.Lane]*tally

	ready cached.Value[Readiness]

	closing sync.Once
}

// New returns a Service. Close stops it.
func New(d Deps) *Service {
	d = d.withDefaults()
	cfg := d.Config
	s := &Service{
		cfg:        cfg,
		log:        cfg.Logger,
		store:      d.Store,
		broker:     d.Broker,
		providers:  d.Providers,
		known:      map[string]bool{},
		marks:      d.Suppressions,
		onAccept:   d.Accepted,
		acceptTime: d.AcceptTime,
		announce:   announcers{log: cfg.Logger, of: map[models.Lane]*announce.Announcer{}},
		tallies:    map[models.Lane]*tally{},
		guard: &idempotency.Guard{
			Store:     d.Store,
			TTL:       cfg.Idempotency,
			RetryTime: cfg.RetryTime,
			Log:       cfg.Logger,
		},
	}
	s.accepting = *s.guard
	if cfg.KeepLogs > 2*cfg.Idempotency {
		s.accepting.Stored = func(ctx context.Context, batch models.ID) (bool, error) {
			_, err := d.Store.Batch(ctx, batch)
			if errors.Is(err, models.ErrNotFound) {
				return false, nil
			}
			return err == nil, err
		}
	}
	for i := range d.Providers {
		s.known[d.Providers[i].Name] = true
	}
	s.intake = intake.Config{
		MaxRecipients: cfg.Recipients,
		MaxContent:    cfg.Content,
		UrgentUpTo:    cfg.UrgentUpTo,
		ExpireAfter:   cfg.ExpireAfter,
		Kept:          cfg.KeepLogs - cfg.FinalEvent,
		SpoolDir:      cfg.SpoolDir,
		Providers:     s.known,

		UnsubscribeURL: cfg.UnsubscribeURL,
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		s.announce.of[lane] = announce.New(d.Broker, func(ms []models.Message, err error) {
			cfg.Logger.Warn("batches not announced; the agenda announces them later",
				"batch_id", ms[0].ID.Batch().String(), "messages", len(ms), "err", err)
		})
		s.tallies[lane] = &tally{}
	}
	s.addRooms(&d)
	return s
}

// addRooms makes the rooms, each after those that it uses.
func (s *Service) addRooms(d *Deps) {
	cfg := &d.Config
	s.Audit = audit.New(audit.Deps{
		Store: d.Store, Follower: d.CommandLog, Sole: cfg.Sole, RetryTime: cfg.RetryTime, Log: cfg.Logger,
	})
	s.Limits = people.NewLimits(people.LimitDeps{
		Store: d.Store, Audit: s.Audit, Quotas: cfg.Quotas, Sole: cfg.Sole,
		DiskReserve: cfg.DiskReserve, DiskFree: cfg.DiskFree, Log: cfg.Logger,
	})
	s.People = people.New(people.Deps{
		Store: d.Store, Audit: s.Audit, Guard: s.guard, Limits: s.Limits, Operator: cfg.Operator,
		Resumed: s.announceNewest, Log: cfg.Logger,
	})
	s.Stats = stats.New(stats.Deps{Store: d.Store, People: s.People})
	s.Mail = mail.New(mail.Deps{
		Store: d.Store, Audit: s.Audit, People: s.People, Providers: d.Providers, Policy: d.Policy,
		Composers: d.Composers, CountTime: cfg.CountTime, Logger: cfg.Logger,
	})
	s.Suppressions = suppressions.New(suppressions.Deps{
		Store: d.Store, Audit: s.Audit, Guard: s.guard, Limits: s.Limits, Mail: s.Mail, Marks: d.Suppressions,
		Known: s.known, ByProvider: d.Lists, Priority: cfg.Priority,
	})
	s.Operate = operate.New(operate.Deps{
		Store: d.Store, Broker: d.Broker, Audit: s.Audit, Guard: s.guard, People: s.People, Configured: d.Providers,
		Known: s.known, Adapters: d.Adapters, ByProvider: d.Lists, Log: cfg.Logger,
	})
	s.Commands = commands.New(commands.Deps{
		Store: d.Store, Audit: s.Audit, Guard: s.guard, Limits: s.Limits, Mail: s.Mail, Providers: d.Providers,
		Known: s.known, RetryTime: cfg.RetryTime, Log: cfg.Logger, Intake: s.intakeOf,
		Announce: s.announce.batch,
	})
	s.Templates, s.Drafts = templates.New(d.Store, s.Limits.CheckDisk), drafts.New(d.Store, s.Limits.CheckDisk)
	s.Updates = updates.New(d.Store)
	s.Erasures = erase.New(erase.Deps{
		Store: d.Store, Broker: d.Broker, Audit: s.Audit, Guard: s.guard, InboxKeep: cfg.InboxKeep, Log: cfg.Logger,
		Rooms: []erase.Room{
			{Name: "suppressions", All: s.Suppressions.Erase},
			{Name: "softbounce", OfUser: func(ctx context.Context, user, address string) error {
				return softbounce.Erase(ctx, d.Store, user, address)
			}},
			{Name: "drift", All: func(ctx context.Context, address string) error {
				return drift.Forget(ctx, d.Store, address, func(*drift.Entry) bool { return true })
			}},
			{Name: "drafts", OfUser: s.Drafts.Erase},
		},
	})
	s.endpoints = endpoints.New(d.Store, s.Limits.CheckDisk, cfg.EndpointClient, s.MailNotice)
}

// Close publishes the queued announcements and writes the access log, for a few seconds at
// most, and stops the service. Further calls do nothing.
func (s *Service) Close() {
	s.closing.Do(func() {
		var g errgroup.Group
		for _, a := range s.announce.of {
			g.Go(func() error { a.Close(); return nil })
		}
		_ = g.Wait() // never an error
		s.Updates.Close()
		s.People.Close()
	})
}

// tally counts accepted batches.
type tally struct{ batches, recipients atomic.Int64 }

// add counts a batch that was stored. A repeat that finds one does not accept it again.
func (t *tally) add(b *models.Batch) {
	t.batches.Add(1)
	t.recipients.Add(int64(b.Recipients))
}

// Tally counts what was accepted since the start of the process.
type Tally struct{ Batches, Recipients int64 }

// Tallies returns what this process has accepted since its start, by lane.
func (s *Service) Tallies() map[models.Lane]Tally {
	out := map[models.Lane]Tally{}
	for lane, t := range s.tallies {
		out[lane] = Tally{t.batches.Load(), t.recipients.Load()}
	}
	return out
}

// Readiness reports whether batches can be accepted.
type Readiness struct {
	Ready   bool
	Missing []string          // names of failed checks
	Checks  map[string]string // by name: ok, or what is wrong
}

// readyTTL is how long a check is shared: anyone may ask, and each check costs the store and the broker a round trip.
const readyTTL = time.Second

// Ready checks the store, the broker and the providers, at most once a second. Without the
// broker the service is still ready: batches are stored and announced later.
func (s *Service) Ready(ctx context.Context) Readiness {
	r, _ := s.ready.Get(readyTTL, func() (Readiness, error) { return s.checkReady(ctx), nil }) // never an error
	return r
}

func (s *Service) checkReady(ctx context.Context) Readiness {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second) // others wait for the answer, too
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
	if store == nil {
		cs, _ := s.Operate.Conditions(ctx) // without them the service is ready all the same
		for i := range cs {
			r.Checks[string(cs[i].Kind)] = cs[i].Word()
		}
	}
	if broker != nil {
		miss("broker", "unavailable; mail is accepted, and sent up to a minute late")
	}
	return r
}

// The entrances use these names.
type (
	// Caller is caller.Caller.
	Caller = caller.Caller
	// Page is operation.Page.
	Page = operation.Page
)

// Repeat identifies a request that its client may send again. The zero value identifies
// none: each such request is a new one.
type Repeat = idempotency.Repeat

// Endpoints returns the endpoints of all users. What the caller changes is in the audit trail.
func (s *Service) Endpoints(who Caller) *endpoints.Endpoints {
	return s.endpoints.RecordedBy(func(ctx context.Context, c *models.Command) { s.Audit.Record(ctx, who, c) })
}

// Operations returns the calls of the API that are declared in the rooms of this package. The rooms may be nil: an
// Operations function must not read from its room.
func Operations(s *Service) []operation.Operation {
	return slices.Concat(
		endpoints.Operations(s.Endpoints, s.guard),
		templates.Operations(s.Templates, s.guard),
		mail.Operations(s.Mail),
		updates.Operations(),
		commands.Operations(s.Commands),
		operate.Operations(s.Operate),
		suppressions.Operations(s.Suppressions),
		people.Operations(s.People, s.Limits),
		audit.Operations(s.Audit),
		stats.Operations(s.Stats),
		erase.Operations(s.Erasures),
	)
}

// MailNotice accepts the mail of a post to an endpoint of the format mail: an urgent batch of the endpoint's
// user, once for an ID of a post. The provider that it is about is not used, unless there is no other.
func (s *Service) MailNotice(
	ctx context.Context, e *endpoint.Endpoint, post string, body []byte,
) (answer string, err error) {
	var l endpoint.Letter
	if err := json.Unmarshal(body, &l); err != nil {
		return "", err
	}
	u, err := s.People.Find(ctx, e.User)
	if err != nil {
		return "", err
	}
	c := s.intake // without the user's window for mail that waits
	in := intake.New(ctx, &c)
	defer in.Close()
	in.Batch = intake.Batch{From: e.Sender, Subject: "{{subject}}", Text: "{{text}}", Lane: string(models.Urgent)}
	others := slices.DeleteFunc(providerNames(s.providers), func(name string) bool { return name == l.Provider })
	if l.Provider != "" && len(others) > 0 {
		in.Batch.Providers = others
	}
	vars := map[string]string{"subject": models.OneLine(l.Subject), "text": l.Text}
	var to []Recipient
	for _, address := range endpoint.Addresses(e.URL) {
		to = append(to, Recipient{Email: address, Vars: vars})
	}
	if err := in.Read(intake.Of(to...)); err != nil {
		return "", err
	}
	a, _, err := s.Accept(ctx, Caller{User: u.ID}, in, Repeat{Key: post, Route: "notice", Hash: post})
	return "accepted as " + a.ID.String(), err
}

// The errors of the use cases are those of package problem. The entrances use these names.
type (
	// Error is problem.Error.
	Error = problem.Error
	// FieldError is problem.FieldError.
	FieldError = problem.FieldError
)

// The kinds of errors.
const (
	Internal     = problem.Internal
	Malformed    = problem.Malformed
	Unauthorized = problem.Unauthorized
	Forbidden    = problem.Forbidden
	NotFound     = problem.NotFound
	Conflict     = problem.Conflict
	TooLarge     = problem.TooLarge
	Unsupported  = problem.Unsupported
	Invalid      = problem.Invalid
	Unavailable  = problem.Unavailable
)

// Fail returns an Error. If there are args, detail is a format for them.
func Fail(kind problem.Kind, code, detail string, args ...any) *Error {
	return problem.New(kind, code, detail, args...)
}

// storeError returns the Error for an error of the store. doing says what failed.
func storeError(doing string, err error) error { return problem.FromStore(doing, err) }
