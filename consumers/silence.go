package consumers

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A provider that takes mail and never says what became of it is down, too.
// Every worker counts, by the time of the attempt, what a provider took and what
// it reported; the counts of all workers together are judged against the time
// that the provider usually takes to report.

const (
	flowBucket   = 10 * time.Second
	flowKept     = 400             // buckets: more than the longest wait, and what is judged after it
	silenceOver  = 5 * time.Minute // of mail is judged, or less if that is clear
	silenceLeast = 20              // Recipients that must have been taken before silence means anything
	silenceSteps = 3               // in so many buckets, unless they are silenceMany or nothing was heard before
	silenceMany  = 1000
	learnLeast   = 50 // reports before a provider's usual time is known
	doorFresh    = 25 * time.Second
)

// Flow is what a provider took in a bucket of time and how much of it was
// reported on.
type Flow struct {
	Taken int64 `json:"t"`
	Heard int64 `json:"h"`
}

// flows counts what this worker saw, by provider and bucket, and knows what the
// others say.
type flows struct {
	mu     sync.Mutex
	mine   map[string]map[int64]Flow
	others map[string]map[string]map[int64]Flow // by worker
	delays map[string]*delays
	before map[string]time.Duration // how long providers took to report before this worker began
	held   map[string]int           // how often in a row a provider was shut for silence
}

func newFlows() *flows {
	return &flows{mine: map[string]map[int64]Flow{}, others: map[string]map[string]map[int64]Flow{}, delays: map[string]*delays{}, before: map[string]time.Duration{}, held: map[string]int{}}
}

func bucketOf(t time.Time) int64 { return t.Unix() / int64(flowBucket/time.Second) }

func (f *flows) add(provider string, at time.Time, taken, heard int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.mine[provider]
	if m == nil {
		m = map[int64]Flow{}
		f.mine[provider] = m
	}
	b := bucketOf(at)
	now := bucketOf(time.Now())
	if b < now-flowKept {
		return
	}
	v := m[b]
	v.Taken += taken
	v.Heard += heard
	m[b] = v
	if len(m) > flowKept+1 {
		maps.DeleteFunc(m, func(k int64, _ Flow) bool { return k < now-flowKept })
	}
}

// report says that a report about an attempt came, of what happened then.
func (f *flows) report(provider string, attempt, happened, came time.Time) {
	f.add(provider, attempt, 0, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.delays[provider]
	if d == nil {
		d = &delays{}
		f.delays[provider] = d
	}
	d.add(reportTime(attempt, happened, came))
}

// lateReport is how long after it happened a report comes that was not posted in its
// time: our door was shut, or it was looked up. That says nothing of how long the
// provider usually takes.
const lateReport = 10 * time.Minute

// reportTime is how long after an attempt its provider reported.
func reportTime(attempt, happened, came time.Time) time.Duration {
	if came.Sub(happened) > lateReport {
		came = happened
	}
	return max(0, came.Sub(attempt))
}

// told is what the other workers are told.
func (f *flows) told() map[string]map[int64]Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]map[int64]Flow, len(f.mine))
	for provider, m := range f.mine {
		out[provider] = maps.Clone(m)
	}
	return out
}

func (f *flows) hear(worker string, said map[string]map[int64]Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if said != nil {
		f.others[worker] = said
		return
	}
	// What a worker that is gone heard counts as long as what the others gave.
	from := bucketOf(time.Now()) - flowKept
	maps.DeleteFunc(f.others, func(_ string, said map[string]map[int64]Flow) bool {
		for _, m := range said {
			for b := range m {
				if b >= from {
					return false
				}
			}
		}
		return true
	})
}

// between sums the buckets from first to last of all workers.
func (f *flows) between(provider string, first, last int64) (sum Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := func(m map[int64]Flow) {
		for b, v := range m {
			if b >= first && b <= last {
				sum.Taken += v.Taken
				sum.Heard += v.Heard
			}
		}
	}
	count(f.mine[provider])
	for _, said := range f.others {
		count(said[provider])
	}
	return sum
}

// silent reports whether there was enough mail, and next to nothing was heard of it.
func (f Flow) silent() bool { return f.Taken >= silenceLeast && !f.talks() }

// talks reports whether more than next to nothing was heard of it.
func (f Flow) talks() bool { return f.Heard > 0 && f.Heard*50 >= f.Taken }

// newest is what a provider took between two buckets, or the newest part of it if that
// is silent: mail that was reported on before does not speak for a provider that has
// gone silent since. One batch alone may be slow mail, as to a domain that is away, so
// that a part must be much mail, or of several buckets.
func (f *flows) newest(provider string, first, last int64) Flow {
	var sum Flow
	steps := 0
	for b := last; b >= first; b-- {
		v := f.between(provider, b, b)
		if v.Taken > 0 {
			steps++
		}
		sum.Taken += v.Taken
		sum.Heard += v.Heard
		if sum.silent() && (steps >= silenceSteps || sum.Taken >= silenceMany) {
			return sum
		}
	}
	return sum
}

// usual is how long a provider takes for nine of ten reports; 0: not known.
func (f *flows) usual(provider string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.delays[provider]; d != nil && d.most() > 0 {
		return d.most()
	}
	return f.before[provider]
}

// learnHours is how far back a worker reads how long providers took to report.
const learnHours = 7 * 24

// learn reads from the history how long nine of ten deliveries took, so that an
// provider that is silent when a worker starts is not taken for one that has
// never reported.
func (e *Engine) learn(ctx context.Context, now time.Time) error {
	all := map[string]*telemetry.ProviderTally{}
	unknown := 0
	for _, a := range e.providers {
		if a.Events == models.EventsWebhook {
			all[a.Name] = &telemetry.ProviderTally{}
			unknown++
		}
	}
	for back := 0; back < learnHours && unknown > 0; back++ {
		reports, err := e.store.Transients(ctx, telemetry.HistoryKind(now.Add(-time.Duration(back)*time.Hour)))
		if err != nil {
			return err
		}
		for _, raw := range reports {
			hour, err := telemetry.DecodeHistory(raw)
			if err != nil {
				continue // the others say enough
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
	e.flows.mu.Lock()
	defer e.flows.mu.Unlock()
	for name, sum := range all {
		if sum.Delivered >= learnLeast {
			e.flows.before[name] = max(time.Millisecond, sum.Delivery.Within(0.9))
		}
	}
	return nil
}

// delays is a histogram of times, by powers of two of a millisecond, that slowly
// forgets.
type delays struct {
	n     [40]float64
	total float64
	seen  int
}

func (d *delays) add(t time.Duration) {
	d.n[min(bits.Len64(uint64(max(0, t.Milliseconds()))), len(d.n)-1)]++
	d.total++
	d.seen++
	if d.total > 20_000 {
		for i := range d.n {
			d.n[i] /= 2
		}
		d.total /= 2
	}
}

// most is the upper bound of the time that nine of ten take; 0: not known.
func (d *delays) most() time.Duration {
	if d.seen < learnLeast {
		return 0
	}
	sum := 0.0
	for i, n := range d.n {
		if sum += n; sum >= 0.9*d.total {
			return time.Duration(1<<i) * time.Millisecond
		}
	}
	return 0
}

// doorWatch knows since when some door for webhooks is open without a break, as
// far as this worker saw it.
type doorWatch struct {
	seen  map[string]string
	fresh map[string]time.Time
	since time.Time
}

func (d *doorWatch) look(reports map[string][]byte, now time.Time) {
	if d.seen == nil {
		d.seen, d.fresh = map[string]string{}, map[string]time.Time{}
	}
	open := false
	for name, raw := range reports {
		if was, ok := d.seen[name]; ok && was != string(raw) {
			d.fresh[name] = now
		}
		d.seen[name] = string(raw)
		open = open || now.Sub(d.fresh[name]) < doorFresh
	}
	switch {
	case !open:
		d.since = time.Time{}
	case d.since.IsZero():
		d.since = now
	}
}

// listen judges the providers every few seconds until ctx ends.
func (e *Engine) listen(ctx context.Context) {
	t := time.NewTicker(e.cfg.SilencePoll)
	defer t.Stop()
	var door doorWatch
	learned := false
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if !learned {
			learned = e.learn(ctx, time.Now()) == nil // or at the next look
		}
		reports, err := e.store.Transients(ctx, telemetry.ReceiverLiveness)
		if err != nil {
			door.since = time.Time{}
			continue
		}
		now := time.Now()
		door.look(reports, now)
		if door.since.IsZero() || e.eventsWaiting(ctx) {
			continue // what is silent may be our own door, or our own queue
		}
		for _, a := range e.providers {
			e.judgeSilence(ctx, a, now, door.since)
		}
	}
}

// silence says whether a provider has been silent about what it took, in the
// time in which it should have reported.
func (e *Engine) silence(a *provider, now, doorSince time.Time) (silent, heard bool, about Flow, wait time.Duration) {
	usual := e.flows.usual(a.Name)
	if usual == 0 || a.Events != models.EventsWebhook {
		return false, false, about, 0
	}
	wait = min(max(e.cfg.SilenceLeast, 6*usual), time.Hour)
	last := bucketOf(now.Add(-wait)) - 1
	// Nobody is judged twice by the same mail.
	first := max(bucketOf(now.Add(-wait-silenceOver)), bucketOf(doorSince)+1, bucketOf(a.health.silentUntil())+1)
	about = e.flows.newest(a.Name, first, last)
	// What is reported on later mail shows that it talks again.
	later := e.flows.between(a.Name, last+1, bucketOf(now)+1)
	silent = about.silent() && !later.talks()
	return silent, about.talks() || later.talks(), about, wait
}

// judgeSilence shuts a provider that has gone silent, if mail is better off
// elsewhere. When all are silent, nothing is changed.
func (e *Engine) judgeSilence(ctx context.Context, a *provider, now, doorSince time.Time) {
	silent, heard, about, wait := e.silence(a, now, doorSince)
	if heard {
		e.flows.forgive(a.Name)
		a.health.trusted()
	}
	if ok, _ := a.health.usable(now); !silent || !ok {
		return
	}
	elsewhere := false
	for _, b := range e.providers {
		if b == a {
			continue
		}
		alsoSilent, _, _, _ := e.silence(b, now, doorSince)
		ok, _ := b.health.usable(now)
		elsewhere = elsewhere || ok && !alsoSilent
	}
	why := fmt.Sprintf("it took %d recipients and reported nothing about them in %s", about.Taken, wait.Round(time.Second))
	if !elsewhere {
		e.log.Warn("a provider is silent, and no other is better", "provider", a.Name, "why", why)
		return
	}
	if behind, err := e.postsBehind(ctx, now); err != nil || behind {
		return // what is silent may be ourselves
	}
	hold := min(e.cfg.Hold<<min(e.flows.hold(a.Name), 4), time.Hour)
	a.health.fallenSilent(now.Add(hold), why)
}

// postsBehind reports whether a post waits in the inbox that should have been worked
// off, in whosever part of it.
func (e *Engine) postsBehind(ctx context.Context, now time.Time) (bool, error) {
	for shard := range e.store.Shards() {
		for in, err := range e.store.Pending(ctx, shard, now.Add(-silenceOver-time.Hour), now.Add(-e.cfg.InboxAge)) {
			if err != nil || e.byName[in.Provider] != nil { // nobody works off those of other providers
				return err == nil, err
			}
		}
	}
	return false, nil
}

func (f *flows) hold(provider string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[provider]++
	return f.held[provider] - 1
}

func (f *flows) forgive(provider string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, provider)
}
