package consumers

import (
	"log/slog"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/safedelivr/safedelivr/consumers/agenda"
	"github.com/safedelivr/safedelivr/consumers/cluster"
	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/events"
	"github.com/safedelivr/safedelivr/consumers/evidence"
	"github.com/safedelivr/safedelivr/consumers/guard"
	"github.com/safedelivr/safedelivr/consumers/lists"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/retention"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// Config configures an Engine. Zero fields take the values of DefaultConfig.
type Config struct {
	Worker string // name of this process in ledger entries; unique among workers

	MaxRetries     int           // retries of one recipient; the first attempt does not count
	StartBy        time.Duration // a call begins within this of the moment before its append, or never
	EvidenceWindow time.Duration // how long an unknown outcome waits for evidence after its call must have ended
	FinalEventWait time.Duration // how long accepted mail waits for a final event
	Recheck        time.Duration // how soon something unfinished is reconciled again
	IntakeGrace    time.Duration // age at which an incomplete batch is removed
	Renewal        time.Duration // how often summaries are renewed
	AgendaPoll     time.Duration // how often the agenda is read
	Lease          time.Duration // how long a silent worker keeps its shards of the agenda
	InboxAge       time.Duration // age at which an unprocessed post is announced again
	Hold           time.Duration // how long a provider is suspended after it rejected its key or quota
	BreakerOpen    time.Duration // how long a breaker stays open before it probes
	Heartbeat      time.Duration // how often workers write heartbeats
	Sole           bool          // no other process uses the store: the limits are not shared
	SlowCall       time.Duration // a longer call counts as failed if other providers answer much faster
	SilenceLeast   time.Duration // least time that a provider may report nothing of accepted mail
	SilencePoll    time.Duration // how often silent providers are detected
	KeepContent    time.Duration // how long content and recipients are kept after acceptance
	KeepLogs       time.Duration // how long everything else about a batch is kept, and commands
	KeepUpdates    time.Duration // how long the entries of the feeds of updates are kept
	Bounces        float64       // percent of a batch's tried recipients that may bounce before it is stopped; 0: any
	Complaints     float64       // percent of a user's delivered mail of a day that may be reported as spam; 0: any
	ComplaintsFrom int64         // number of mails that must be delivered before that is judged
	LookUpPause    time.Duration // pause before a look-up that follows a failed one, or one that found events
	SumsPoll       time.Duration // how often the newest sums are recounted
	HistoryPoll    time.Duration // how often the history of the providers is stored
	QueuePoll      time.Duration // how often the age of the queues is read
	ListsEvery     time.Duration // how often the providers' suppression lists are read; 0: never

	SoftBounces      int           // soft bounces in a row that suppress an address; 0: none do
	SoftBounceExpiry time.Duration // for how long they suppress it
	SoftBouncePoll   time.Duration // how often it is decided about addresses with so many

	AttachmentMemory int64 // bytes for the attachments of all calls; each provider has a part

	EndpointClient *outbound.Client // posts to endpoints; nil: one that reaches no private network
	EndpointPoll   time.Duration    // how often feeds are read for endpoints that no wake is about; 0: the default
	EndpointMailer endpoint.Mailer  // accepts mail to endpoints; nil: there is none

	Delays   []time.Duration       // before retry 1, 2, ... through the same provider; the last one repeats
	Metrics  prometheus.Registerer // nil: no metrics are published
	Priority *priority.Scheduler   // of the process; nil: a new one
	Logger   *slog.Logger          // nil: nothing is logged
	Follower *control.Follower     // of the process; nil: a new one

	Suppressions *suppression.Lists // of the process; nil: new ones

	life    string // unique for each start
	started time.Time
}

// DefaultConfig returns the configuration of a production worker.
func DefaultConfig() Config {
	return Config{
		MaxRetries:     10,
		StartBy:        10 * time.Second,
		EvidenceWindow: 15 * time.Minute,
		FinalEventWait: 100 * time.Hour,
		Recheck:        time.Minute,
		IntakeGrace:    time.Hour,
		Renewal:        500 * time.Millisecond,
		AgendaPoll:     time.Second,
		Lease:          15 * time.Second,
		InboxAge:       30 * time.Second,
		Hold:           5 * time.Minute,
		BreakerOpen:    5 * time.Second,
		Heartbeat:      time.Second,
		SlowCall:       10 * time.Second,
		SilenceLeast:   time.Minute,
		SilencePoll:    5 * time.Second,
		KeepContent:    90 * 24 * time.Hour,
		KeepLogs:       400 * 24 * time.Hour,
		KeepUpdates:    30 * 24 * time.Hour,
		LookUpPause:    30 * time.Second,
		SumsPoll:       time.Minute,
		HistoryPoll:    5 * time.Second,
		QueuePoll:      5 * time.Second,

		SoftBounceExpiry: 7 * 24 * time.Hour,
		SoftBouncePoll:   10 * time.Second,

		AttachmentMemory: 256 << 20,

		Delays: []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute,
			15 * time.Minute, time.Hour, 4 * time.Hour},
	}
}

// withDefaults returns c with defaults for its zero fields, and a life of its own.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.MaxRetries < 0 {
		c.MaxRetries = d.MaxRetries
	}
	fields, defaults := reflect.ValueOf(&c).Elem(), reflect.ValueOf(&d).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.Int64 && f.Int() <= 0 { // durations and numbers of bytes
			f.Set(defaults.Field(i))
		}
	}
	if c.EndpointClient == nil {
		c.EndpointClient = outbound.New(nil)
	}
	c.life, c.started = models.NewUserID(), time.Now().UTC()
	if len(c.Delays) == 0 {
		c.Delays = d.Delays
	}
	if c.Worker == "" {
		c.Worker = models.NewUserID()
	}
	if c.Priority == nil {
		c.Priority = priority.New()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// policy returns the configuration of the decision table.
func (c *Config) policy() policy.Config {
	return policy.Config{
		MaxRetries:     c.MaxRetries,
		Recheck:        c.Recheck,
		EvidenceWindow: c.EvidenceWindow,
		FinalEventWait: c.FinalEventWait,
		Delays:         c.Delays,
	}
}

// provider returns the configuration of the providers' health.
func (c *Config) provider() *provider.Config {
	return &provider.Config{
		Hold:         c.Hold,
		BreakerOpen:  c.BreakerOpen,
		FirstDelay:   c.Delays[0],
		Heartbeat:    c.Heartbeat,
		SlowCall:     c.SlowCall,
		SilenceLeast: c.SilenceLeast,
		SilencePoll:  c.SilencePoll,
		InboxAge:     c.InboxAge,

		AttachmentMemory: c.AttachmentMemory,

		Logger: c.Logger,
	}
}

// cluster returns the configuration of the cluster.
func (c *Config) cluster() cluster.Config {
	return cluster.Config{
		Worker:    c.Worker,
		Life:      c.life,
		Started:   c.started,
		Heartbeat: c.Heartbeat,
		Sole:      c.Sole,
		Logger:    c.Logger,
	}
}

// PolicyFor returns the policy for providers.
func PolicyFor(specs []provider.Spec, cfg *Config) *policy.Policy {
	providers := make([]models.Provider, 0, len(specs))
	for i := range specs {
		providers = append(providers, specs[i].Provider)
	}
	return policy.New(cfg.policy(), providers)
}

// dispatch returns the configuration of the dispatcher.
func (c *Config) dispatch() dispatch.Config {
	return dispatch.Config{
		Worker:      c.Worker,
		StartBy:     c.StartBy,
		Recheck:     c.Recheck,
		LookUpPause: c.LookUpPause,
		KeepContent: c.KeepContent,
		Priority:    c.Priority,
		Logger:      c.Logger,
	}
}

// agenda returns the configuration of the agenda.
func (c *Config) agenda() agenda.Config {
	return agenda.Config{
		Worker:      c.Worker,
		Recheck:     c.Recheck,
		IntakeGrace: c.IntakeGrace,
		Poll:        c.AgendaPoll,
		Lease:       c.Lease,
		InboxAge:    c.InboxAge,
		Logger:      c.Logger,
	}
}

// events returns the configuration of the processing of events.
func (c *Config) events() events.Config {
	return events.Config{
		Worker:           c.Worker,
		InboxAge:         c.InboxAge,
		Sole:             c.Sole,
		SoftBounces:      c.SoftBounces,
		SoftBounceExpiry: c.SoftBounceExpiry,
		SoftBouncePoll:   c.SoftBouncePoll,
		KeepContent:      c.KeepContent,
		Priority:         c.Priority,
		Logger:           c.Logger,
	}
}

// evidence returns the configuration of look-ups.
func (c *Config) evidence() evidence.Config {
	return evidence.Config{
		Worker:         c.Worker,
		Poll:           c.AgendaPoll,
		FinalEventWait: c.FinalEventWait,
		LookUpPause:    c.LookUpPause,
		Logger:         c.Logger,
	}
}

// rollup returns the configuration of the rollup.
func (c *Config) rollup() rollup.Config {
	return rollup.Config{
		Worker:         c.Worker,
		Renewal:        c.Renewal,
		SumsPoll:       c.SumsPoll,
		KeepContent:    c.KeepContent,
		Sole:           c.Sole,
		Complaints:     c.Complaints,
		ComplaintsFrom: c.ComplaintsFrom,
		Logger:         c.Logger,
	}
}

// guard returns the configuration of the guard.
func (c *Config) guard() guard.Config {
	return guard.Config{Bounces: c.Bounces, Keep: c.KeepLogs, Logger: c.Logger}
}

// lists returns the configuration of the reader of the providers' suppression lists.
func (c *Config) lists() lists.Config {
	return lists.Config{Worker: c.Worker, Every: c.ListsEvery, Logger: c.Logger}
}

// retention returns the configuration of the retention.
func (c *Config) retention() retention.Config {
	return retention.Config{
		Worker:         c.Worker,
		KeepContent:    c.KeepContent,
		KeepLogs:       c.KeepLogs,
		KeepUpdates:    c.KeepUpdates,
		FinalEventWait: c.FinalEventWait,
		Logger:         c.Logger,
	}
}
