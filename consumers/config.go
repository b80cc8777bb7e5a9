package consumers

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// Config configures an Engine. Zero fields take their defaults, unless 0 is in their range.
type Config struct {
	Worker string // name of this process in ledger entries; unique among workers
	settings.Times
	settings.Limits
	settings.Pace

	Sole bool // no other process uses the store: the limits are not shared

	EndpointClient *outbound.Client // posts to endpoints; nil: one that reaches no private network
	EndpointPoll   time.Duration    // how often feeds are read for endpoints that no wake is about; 0: the default
	EndpointMailer endpoint.Mailer  // accepts mail to endpoints; nil: there is none

	Standby  models.Broker         // of this process, for what the broker does not take; nil: there is none
	Delays   []time.Duration       // before retry 1, 2, ... through the same provider; the last one repeats
	Metrics  prometheus.Registerer // nil: no metrics are published
	Priority *priority.Scheduler   // of the process; nil: a new one
	Logger   *slog.Logger          // nil: nothing is logged
	Follower *control.Follower     // of the process; nil: a new one

	Suppressions *suppression.Lists // of the process; nil: new ones

	life    string // unique for each start
	started time.Time
}

// withDefaults returns c with defaults for its zero fields, and a life of its own.
func (c Config) withDefaults() Config {
	settings.Fill(&c)
	if c.EndpointClient == nil {
		c.EndpointClient = outbound.New(nil)
	}
	c.life, c.started = models.NewUserID(), time.Now().UTC()
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

// delays returns Delays, or the default.
func (c *Config) delays() []time.Duration {
	if len(c.Delays) > 0 {
		return c.Delays
	}
	return []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute,
		time.Hour, 4 * time.Hour}
}

// policy returns the configuration of the decision table.
func (c *Config) policy() policy.Config {
	return policy.Config{
		MaxRetries:     c.Retries,
		Recheck:        c.Recheck,
		EvidenceWindow: c.EvidenceWindow,
		FinalEventWait: c.FinalEvent,
		Delays:         c.delays(),
	}
}

// provider returns the configuration of the providers' health.
func (c *Config) provider() *provider.Config {
	return &provider.Config{Times: c.Times, Limits: c.Limits, Pace: c.Pace, FirstDelay: c.delays()[0], Logger: c.Logger}
}

// PolicyFor returns the policy for providers.
func PolicyFor(specs []provider.Spec, cfg *Config) *policy.Policy {
	providers := make([]models.Provider, 0, len(specs))
	for i := range specs {
		providers = append(providers, specs[i].Provider)
	}
	return policy.New(cfg.policy(), providers)
}
