package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Outages are times in which webhooks could not be received: see webhooks/receiver.go.
// Events that were reported then may be lost, so they are looked up.

// lookUpOutages looks up what was reported during outages of the webhook receiver.
func (l *Lookups) lookUpOutages(ctx context.Context) error {
	raw, err := l.store.Transients(ctx, telemetry.OutageRecord)
	if err != nil || len(raw) == 0 {
		return err
	}
	held, err := l.store.Lease(ctx, "gaps", l.cfg.Worker, lookUpTime)
	if err != nil || !held {
		return err
	}
	// Given up at once: a worker that is killed later must not keep others from
	// asking.
	defer func() { _, _ = l.store.Lease(ctx, "gaps", l.cfg.Worker, 0) }()
	due, err := l.dueOutages(ctx, raw)
	if err != nil {
		return err
	}
	// Gaps that overlap, as those of a process that dies again and again, are
	// asked about as one.
	for len(due) > 0 {
		n, to := 1, due[0].To
		for n < len(due) && due[n].Provider == due[0].Provider && !due[n].From.After(to) {
			to = models.LaterOf(to, due[n].To)
			n++
		}
		asked, away := l.lookUpSpan(ctx, due[0].Provider, due[0].From, to)
		for _, g := range due[:n] {
			if err := l.recordQueried(ctx, g, asked, away); err != nil {
				return err
			}
		}
		due = due[n:]
	}
	return nil
}

// recordQueried writes down that all providers that a gap is about were asked. Those
// that could not be asked, beside others that could, get the gap for themselves.
func (l *Lookups) recordQueried(ctx context.Context, g namedOutage, asked int, away []string) error {
	if asked == 0 && len(away) > 0 {
		return nil // they are asked again soon
	}
	put := func(name string, g telemetry.Outage) error {
		b, err := json.Marshal(g)
		if err != nil {
			return err
		}
		return l.store.PutTransient(ctx, telemetry.OutageRecord, name, b, telemetry.OutageTTL)
	}
	for _, provider := range away {
		own := g.Outage
		own.Provider = provider
		if err := put(g.name+"@"+provider, own); err != nil {
			return err
		}
	}
	g.Asked++
	return put(g.name, g.Outage)
}

type namedOutage struct {
	telemetry.Outage
	name string
}

// dueOutages lists the gaps that are to be looked up now, by their beginning, and
// forgets those that were looked up often enough.
func (l *Lookups) dueOutages(ctx context.Context, raw map[string][]byte) ([]namedOutage, error) {
	var due []namedOutage
	now := time.Now()
	for name, b := range raw {
		g := namedOutage{name: name}
		if err := json.Unmarshal(b, &g.Outage); err != nil {
			l.log.Error("report of a gap cannot be read", "err", err)
			continue
		}
		switch {
		case g.Asked >= len(QueryDelays):
			if err := l.store.PutTransient(ctx, telemetry.OutageRecord, name, nil, 0); err != nil {
				return nil, err
			}
		case g.Asked == 0 && !now.Before(g.To), !now.Before(g.To.Add(QueryDelays[g.Asked])):
			due = append(due, g)
		}
	}
	slices.SortFunc(
		due,
		func(a, b namedOutage) int { return cmp.Or(cmp.Compare(a.Provider, b.Provider), a.From.Compare(b.From)) },
	)
	return due, nil
}

// lookUpSpan looks up what a provider, or all of them, reported between two
// times. It says how many could be asked, and which could not.
func (l *Lookups) lookUpSpan(ctx context.Context, provider string, from, to time.Time) (asked int, away []string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	found := 0
	for _, a := range l.providers.All() {
		looker := l.eventLookup(a.Name)
		if looker == nil || provider != "" && a.Name != provider {
			continue
		}
		wg.Go(func() {
			news := Findings{}
			err := l.LookUp(ctx, a.Name, looker, from, to.Add(time.Minute), "", nil, news)
			mu.Lock()
			defer mu.Unlock()
			found += news.Total()
			if err == nil {
				asked++
				return
			}
			away = append(away, a.Name)
			if ctx.Err() == nil {
				l.log.Warn("cannot fetch missed events yet, will retry", "provider", a.Name, "err", err)
			}
		})
	}
	wg.Wait()
	if found > 0 {
		l.log.Info("fetched events that were missed during an outage", "found", found, "from", from, "to", to)
	}
	return asked, away
}
