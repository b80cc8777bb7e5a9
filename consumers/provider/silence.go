package provider

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// receiverFresh is for how long after its last heartbeat the webhook receiver counts as alive.
const receiverFresh = 25 * time.Second

// SilenceStore is the part of models.Store that the detector reads.
type SilenceStore interface {
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	Shards() int
	Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error]
}

// SilenceDetector suspends providers that accept mail and report nothing about it, as long
// as another provider does better.
type SilenceDetector struct {
	cfg       *Config
	store     SilenceStore
	providers *Set
	flows     *Flows

	eventsWaiting func(context.Context) bool // whether announced posts wait for a worker
}

// NewSilenceDetector returns a detector; Run starts it. eventsWaiting reports whether
// announced posts wait for a worker.
func NewSilenceDetector(
	cfg *Config, store SilenceStore, ps *Set, flows *Flows, eventsWaiting func(context.Context) bool,
) *SilenceDetector {
	return &SilenceDetector{cfg: cfg, store: store, providers: ps, flows: flows, eventsWaiting: eventsWaiting}
}

// learnHours is how many hours of history a worker reads to learn how long providers take
// to report.
const learnHours = 7 * 24

// learn reads from the history how long nine of ten deliveries took. So a provider that is silent when a worker starts
// does not look like one that never reported.
func (d *SilenceDetector) learn(ctx context.Context, now time.Time) error {
	all := map[string]*telemetry.ProviderTally{}
	unknown := 0
	for _, p := range d.providers.list {
		if p.Events == models.EventsWebhook {
			all[p.Name] = &telemetry.ProviderTally{}
			unknown++
		}
	}
	for back := 0; back < learnHours && unknown > 0; back++ {
		reports, err := d.store.Transients(ctx, telemetry.HistoryKind(now.Add(-time.Duration(back)*time.Hour)))
		if err != nil {
			return err
		}
		for _, raw := range reports {
			hour, err := telemetry.DecodeHistory(raw)
			if err != nil {
				continue // the other hours are enough
			}
			for name, minutes := range hour {
				sum := all[name]
				if sum == nil || sum.Delivered >= learnLeast {
					continue
				}
				for _, m := range minutes {
					sum.Add(m)
				}
				if sum.Delivered >= learnLeast {
					unknown--
				}
			}
		}
	}
	d.flows.mu.Lock()
	defer d.flows.mu.Unlock()
	for name, sum := range all {
		if sum.Delivered >= learnLeast {
			d.flows.before[name] = max(time.Millisecond, sum.Delivery.Within(0.9))
		}
	}
	return nil
}

// receiverLiveness records since when a webhook receiver has been live without a break, as
// far as this worker saw.
type receiverLiveness struct {
	seen  map[string]string
	fresh map[string]time.Time
	since time.Time
}

// observe takes in the newest heartbeats, by receiver.
func (w *receiverLiveness) observe(reports map[string][]byte, now time.Time) {
	if w.seen == nil {
		w.seen, w.fresh = map[string]string{}, map[string]time.Time{}
	}
	open := false
	for name, raw := range reports {
		if was, ok := w.seen[name]; ok && was != string(raw) {
			w.fresh[name] = now
		}
		w.seen[name] = string(raw)
		open = open || now.Sub(w.fresh[name]) < receiverFresh
	}
	switch {
	case !open:
		w.since = time.Time{}
	case w.since.IsZero():
		w.since = now
	}
}

// Run judges the providers every few seconds until ctx ends.
func (d *SilenceDetector) Run(ctx context.Context) {
	var receiver receiverLiveness
	learned := false
	for range models.Every(ctx, d.cfg.SilencePoll) {
		if !learned {
			learned = d.learn(ctx, time.Now()) == nil // or the next time
		}
		reports, err := d.store.Transients(ctx, telemetry.ReceiverLiveness)
		if err != nil {
			receiver.since = time.Time{}
			continue
		}
		now := time.Now()
		receiver.observe(reports, now)
		if receiver.since.IsZero() || d.eventsWaiting(ctx) {
			continue // our own receiver or queue may be the cause
		}
		for _, p := range d.providers.list {
			d.judgeSilence(ctx, p, now, receiver.since)
		}
	}
}

// silence reports whether a provider has been silent about the mail it accepted, in the
// time in which it should have reported.
func (d *SilenceDetector) silence(
	p *Provider,
	now, receiverSince time.Time,
) (silent, reports bool, about Flow, wait time.Duration) {
	usual := d.flows.ReportTime(p.Name)
	if usual == 0 || p.Events != models.EventsWebhook {
		return false, false, about, 0
	}
	wait = min(max(d.cfg.Silence, 6*usual), time.Hour)
	last := bucket(now.Add(-wait)) - 1
	// No mail counts twice.
	first := max(bucket(now.Add(-wait-silenceOver)), bucket(receiverSince)+1, bucket(p.Health.SilentUntil())+1)
	about = d.flows.newest(p.Name, first, last)
	// Reports on later mail show that it is not silent any more.
	later := d.flows.between(p.Name, last+1, bucket(now)+1)
	silent = about.silent() && !later.talks()
	return silent, about.talks() || later.talks(), about, wait
}

// judgeSilence suspends a provider that has become silent, if another one does better. If
// all are silent, it changes nothing.
func (d *SilenceDetector) judgeSilence(ctx context.Context, p *Provider, now, receiverSince time.Time) {
	silent, reports, about, wait := d.silence(p, now, receiverSince)
	if reports {
		d.flows.forgive(p.Name)
		p.Health.EndProbation()
	}
	if ok, _ := p.Health.usable(now); !silent || !ok {
		return
	}
	elsewhere := false
	for _, other := range d.providers.list {
		if other == p {
			continue
		}
		alsoSilent, _, _, _ := d.silence(other, now, receiverSince)
		ok, _ := other.Health.usable(now)
		elsewhere = elsewhere || ok && !alsoSilent
	}
	why := fmt.Sprintf(
		"it accepted %d recipients and reported nothing about them in %s",
		about.Accepted,
		wait.Round(time.Second),
	)
	if !elsewhere {
		d.cfg.Logger.Warn(
			"provider reports nothing about its mail, but no other provider does better",
			"provider",
			p.Name,
			"why",
			why,
		)
		return
	}
	if behind, err := d.postsBehind(ctx, now); err != nil || behind {
		return // this worker may be the cause
	}
	hold := min(d.cfg.Hold<<min(d.flows.hold(p.Name), 4), time.Hour)
	p.Health.suspend(telemetry.Silence, now.Add(hold), why)
}

// postsBehind reports whether a post in any part of the inbox should have been processed
// by now.
func (d *SilenceDetector) postsBehind(ctx context.Context, now time.Time) (bool, error) {
	for shard := range d.store.Shards() {
		for in, err := range d.store.Pending(ctx, shard, now.Add(-silenceOver-time.Hour), now.Add(-d.cfg.InboxAge)) {
			if err != nil || d.providers.byName[in.Provider] != nil { // posts of other providers are not processed here
				return err == nil, err
			}
		}
	}
	return false, nil
}
