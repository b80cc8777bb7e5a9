// Package condition says what is wrong with an installation, and what to do about it.
//
// Processes report what they see: the health of providers, webhooks that they refuse, disks that are full. Read makes
// conditions of these reports. Pages, commands, notices, metrics and the check of readiness all show the same ones.
package condition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Kind is what is wrong. Kinds are stable.
type Kind string

// The kinds.
const (
	NoWorker        Kind = "no_worker"        // no process sends mail
	NoProvider      Kind = "no_provider"      // no provider accepts mail
	WebhooksRefused Kind = "webhooks_refused" // the posts of a provider cannot be verified
	DiskReserve     Kind = "disk_reserve"     // a disk is full, so nothing is accepted
	NoBroker        Kind = "no_broker"        // the broker takes and delivers no messages
	NoNotices       Kind = "no_notices"       // no endpoint posts notices to operators
)

// Kinds lists the kinds, the gravest first.
var Kinds = []Kind{NoWorker, NoProvider, DiskReserve, NoBroker, WebhooksRefused, NoNotices}

// Place is where a condition is shown.
type Place string

// The places.
const (
	Overview     Place = "Overview"
	Providers    Place = "Providers"
	Settings     Place = "Settings"
	Operations   Place = "Operations"
	ProviderList Place = "`provider list`"
	Health       Place = "`health`, `/readyz`"
	Notice       Place = "notice"
	Log          Place = "log"
	Metric       Place = "metric"
	Alert        Place = "alert"
)

// Places lists the places in the order of documents.
var Places = []Place{Overview, Providers, Settings, Operations, ProviderList, Health, Notice, Log, Metric, Alert}

// Shown says where conditions of each kind are shown. A notice and a line of the log need a worker that writes them.
var Shown = map[Kind][]Place{
	NoWorker:        {Overview, Providers, Operations, ProviderList, Health, Metric, Alert},
	NoProvider:      {Overview, Providers, Operations, ProviderList, Health, Notice, Log, Metric, Alert},
	DiskReserve:     {Overview, Operations, Health, Notice, Log, Metric, Alert},
	NoBroker:        {Overview, Operations, Health, Notice, Log, Metric, Alert},
	WebhooksRefused: {Overview, Providers, Settings, Operations, ProviderList, Health, Notice, Log, Metric, Alert},
	NoNotices:       {Overview, Operations, Health, Log, Metric},
}

// Condition is something that is wrong.
type Condition struct {
	Kind     Kind            `json:"kind"`
	Provider string          `json:"provider,omitempty"`
	Process  string          `json:"process,omitempty"`
	Since    time.Time       `json:"since,omitzero"`
	Until    time.Time       `json:"until,omitzero"` // of NoProvider: the next attempt; zero: with the next mail
	Code     string          `json:"code,omitempty"` // of WebhooksRefused: see telemetry.Refused
	Posts    int64           `json:"posts,omitempty"`
	Disk     *telemetry.Disk `json:"disk,omitempty"`
	Offline  bool            `json:"offline,omitempty"` // of NoProvider: an operator took all of them offline
	Why      string          `json:"why,omitempty"`     // of NoBroker: the error
}

// Key names a condition among those of an installation.
func (c *Condition) Key() string {
	return strings.Trim(string(c.Kind)+" "+cmp.Or(c.Provider, c.Process), " ")
}

// Title says what is wrong, for people.
func (c *Condition) Title() string {
	switch c.Kind {
	case NoWorker:
		return "No worker is running"
	case NoProvider:
		return "No provider accepts mail"
	case WebhooksRefused:
		return "Webhooks of " + c.Provider + " are refused: " + c.cause()
	case DiskReserve:
		return "Batches are refused: the disk is nearly full"
	case NoBroker:
		return "The broker takes no messages"
	case NoNotices:
		return "Outages are not reported to operators"
	}
	return string(c.Kind)
}

// cause says why webhooks are refused, in words.
func (c *Condition) cause() string {
	switch c.Code {
	case "bad_signature":
		return "wrong key"
	case "stale":
		return "their time is wrong"
	}
	return "they cannot be verified"
}

// Text gives the numbers of a condition, for people.
func (c *Condition) Text() string {
	switch c.Kind {
	case NoWorker:
		return "Mail is accepted and waits."
	case NoProvider:
		if c.Offline {
			return "An operator took all providers offline. Mail is accepted and waits."
		}
		return "Mail is accepted and waits."
	case WebhooksRefused:
		return fmt.Sprintf("%d posts since %s. Messages stay sent until their reports are accepted.", c.Posts, clock(c.Since))
	case DiskReserve:
		return fmt.Sprintf("%s has %s free, and the reserve is %s.", c.Disk.Folder, size(c.Disk.Free), size(c.Disk.Reserve))
	case NoBroker:
		return "Workers send mail without it, up to a minute late."
	case NoNotices:
		return "The installation has no endpoint that notices are posted to."
	}
	return ""
}

// Do says what to do about a condition, for people.
func (c *Condition) Do() string {
	switch c.Kind {
	case NoWorker:
		return "Start a process with the role worker."
	case NoProvider:
		if c.Offline {
			return "Bring one online."
		}
		return "Look at the page Providers for the reason of each."
	case WebhooksRefused:
		if c.Code == "stale" {
			return "Compare the clock of this machine with the true time."
		}
		return "Copy the webhook key from the provider into SAFEDELIVR_PROVIDERS_" + strings.ToUpper(c.Provider) +
			"_WEBHOOK_KEY, and restart."
	case DiskReserve:
		return "Free space on that disk, or lower SAFEDELIVR_LIMITS_DISK_RESERVE."
	case NoBroker:
		return "Check that a majority of the nodes of RabbitMQ run, and that workers reach them. The error is: " + c.Why
	case NoNotices:
		return "Add Slack, mail or an address of yours for notices."
	}
	return ""
}

func clock(t time.Time) string { return t.UTC().Format("15:04 UTC on 2 January") }

// size writes a number of bytes for people.
func size(n int64) string {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.bytes {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(unit.bytes), unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Word says in a few words what is wrong, for strangers who ask whether the service is ready. It names no folder.
func (c *Condition) Word() string {
	switch c.Kind {
	case NoWorker:
		return "no worker is running; mail waits"
	case NoProvider:
		return "no provider accepts mail; mail waits"
	case WebhooksRefused:
		return fmt.Sprintf("webhooks of %s are refused: %s (%d posts since %s)",
			c.Provider, c.cause(), c.Posts, clock(c.Since))
	case DiskReserve:
		return fmt.Sprintf("%s free, the reserve is %s; batches are refused", size(c.Disk.Free), size(c.Disk.Reserve))
	case NoBroker:
		return "the broker takes no messages; mail is sent up to a minute late"
	case NoNotices:
		return "no endpoint reports outages to operators"
	}
	return ""
}

// Store is the part of models.Store that has the reports.
type Store interface {
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	models.DocumentStore
}

// Read returns the conditions of an installation with some providers, the gravest first. rules have what operators
// command.
func Read(
	ctx context.Context, store Store, providers []string, rules *control.Rules, now time.Time,
) ([]Condition, error) {
	workers, err := telemetry.Reports[telemetry.WorkerState](ctx, store, telemetry.WorkerReport)
	if err != nil {
		return nil, err
	}
	refused, err := telemetry.Reports[telemetry.Refused](ctx, store, telemetry.RefusedReport)
	if err != nil {
		return nil, err
	}
	received, err := telemetry.Reports[time.Time](ctx, store, telemetry.LastReceived)
	if err != nil {
		return nil, err
	}
	disks, err := telemetry.Reports[telemetry.Disk](ctx, store, telemetry.DiskReport)
	if err != nil {
		return nil, err
	}
	brokers, err := telemetry.Reports[telemetry.BrokerState](ctx, store, telemetry.BrokerReport)
	if err != nil {
		return nil, err
	}
	out := ofWorkers(workers, providers, rules)
	for process, d := range disks {
		if !d.Since.IsZero() {
			out = append(out, Condition{Kind: DiskReserve, Process: process, Since: d.Since, Disk: &d})
		}
	}
	out = append(out, ofBrokers(brokers)...)
	out = append(out, ofReceivers(refused, received, now)...)
	reported, err := reportsNotices(ctx, store)
	if err != nil {
		return nil, err
	}
	if !reported {
		out = append(out, Condition{Kind: NoNotices})
	}
	slices.SortFunc(out, func(a, b Condition) int {
		return cmp.Or(slices.Index(Kinds, a.Kind)-slices.Index(Kinds, b.Kind), strings.Compare(a.Key(), b.Key()))
	})
	return out, nil
}

// maxEndpoints is how many endpoints of the installation are looked at.
const maxEndpoints = 500

// reportsNotices reports whether the installation has an endpoint that notices are posted to, or one that this process
// cannot read.
func reportsNotices(ctx context.Context, store models.DocumentStore) (bool, error) {
	list, err := endpoint.In(store).Page(ctx, feed.Installation, "", maxEndpoints)
	if errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) {
		return true, nil
	}
	return slices.ContainsFunc(list, func(e endpoint.Endpoint) bool { return e.Enabled() && !e.Everyone }), err
}

// ofBrokers returns NoBroker if the broker is away for any worker: since the first of them reported it.
func ofBrokers(brokers map[string]telemetry.BrokerState) []Condition {
	c := Condition{Kind: NoBroker}
	for _, b := range brokers {
		if !b.Since.IsZero() && (c.Since.IsZero() || b.Since.Before(c.Since)) {
			c.Since, c.Why = b.Since, b.Why
		}
	}
	if c.Since.IsZero() {
		return nil
	}
	return []Condition{c}
}

// ofWorkers returns what is wrong by the reports of workers, which leave out what operators command. A provider accepts
// mail if it does so for any worker.
func ofWorkers(workers map[string]telemetry.WorkerState, providers []string, rules *control.Rules) []Condition {
	if len(workers) == 0 {
		return []Condition{{Kind: NoWorker}}
	}
	best := map[string]telemetry.Health{}
	for _, w := range workers {
		for i := range w.Providers {
			h, name := w.Providers[i].Health, w.Providers[i].Name
			if old, ok := best[name]; !ok || severity(&h) < severity(&old) {
				best[name] = h
			}
		}
	}
	c := Condition{Kind: NoProvider, Offline: true}
	draining := false
	for _, name := range providers {
		h, ok := best[name]
		mode := rules.Provider(name)
		h = h.Commanded(mode.Mode, mode.Since, mode.Why)
		switch {
		case !ok:
			return nil
		case h.State == telemetry.Draining: // it gets mail only if all others are offline
			draining = true
			continue
		case !refuses(h.State):
			return nil
		}
		c.Since = models.LaterOf(c.Since, h.Since)
		if h.State == telemetry.Offline {
			continue
		}
		if c.Offline || h.Until.Before(c.Until) {
			c.Until = h.Until
		}
		c.Offline = false
	}
	if len(providers) == 0 || c.Offline && draining {
		return nil
	}
	return []Condition{c}
}

// refuses reports whether the newest calls to a provider in a state failed, or none are made.
func refuses(state string) bool {
	switch state {
	case telemetry.Failing, telemetry.Probing, telemetry.Suspended, telemetry.Offline:
		return true
	}
	return false
}

func severity(h *telemetry.Health) int { return slices.Index(telemetry.HealthStates, h.State) }

// recently is how long a receiver's refusals count although another receiver accepts posts of the same provider: one of
// them may have an old key.
const recently = 10 * time.Minute

// ofReceivers returns the providers whose webhooks are refused, each once for all receivers. received has the time of
// the last post of each provider that was verified.
func ofReceivers(
	refused map[string]telemetry.Refused, received map[string]time.Time, now time.Time,
) (out []Condition) {
	for _, r := range refused {
		if r.Posts == 0 || received[r.Provider].After(r.Last) && now.Sub(r.Last) > recently {
			continue
		}
		i := slices.IndexFunc(out, func(c Condition) bool { return c.Provider == r.Provider })
		if i < 0 {
			i = len(out)
			out = append(out, Condition{Kind: WebhooksRefused, Provider: r.Provider, Since: r.Since, Code: r.Code})
		}
		out[i].Posts += r.Posts
		if r.Since.Before(out[i].Since) {
			out[i].Since, out[i].Code = r.Since, r.Code
		}
	}
	return out
}
