package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// repeatMargin is how much shorter than the repeats of a provider an outage is that needs no
// look-up.
const repeatMargin = 4 * time.Hour

// outageLease is the name of the lease for lookUpOutages.
const outageLease = "outages"

// lookUpOutages looks up the events that providers reported during outages of the webhook
// receiver, which are stored as transient values. One worker does so at a time.
func (l *Lookups) lookUpOutages(ctx context.Context) error {
	raw, err := l.Store.Transients(ctx, telemetry.OutageRecord)
	if err != nil || len(raw) == 0 {
		return err
	}
	held, err := l.Store.Lease(ctx, outageLease, l.cfg.Worker, outageLeaseTTL)
	if err != nil || !held {
		return err
	}
	// Release the lease at once, so that it does not delay others if this worker is killed.
	defer func() { _, _ = l.Store.Lease(ctx, outageLease, l.cfg.Worker, 0) }()
	due, err := l.dueOutages(ctx, raw)
	if err != nil {
		return err
	}
	// Outages that overlap share a query. A process that is killed again and again leaves
	// many of them.
	for len(due) > 0 {
		n, to := 1, due[0].To
		for n < len(due) && due[n].Provider == due[0].Provider && !due[n].From.After(to) {
			to = models.LaterOf(to, due[n].To)
			n++
		}
		queried, failed := l.lookUpSpan(ctx, due[0].Provider, due[0].From, to)
		for _, o := range due[:n] {
			if err := l.recordQueried(ctx, o, queried, failed); err != nil {
				return err
			}
		}
		due = due[n:]
	}
	return nil
}

// recordQueried stores that the providers of an outage were queried. If only some could
// be, each of the others gets an outage of its own. If none could be, the outage stays due.
func (l *Lookups) recordQueried(ctx context.Context, o namedOutage, queried int, failed []string) error {
	if queried == 0 && len(failed) > 0 {
		return nil
	}
	put := func(name string, o telemetry.Outage) error {
		b, err := json.Marshal(o)
		if err != nil {
			return err
		}
		return l.Store.PutTransient(ctx, telemetry.OutageRecord, name, b, telemetry.OutageTTL)
	}
	for _, provider := range failed {
		own := o.Outage
		own.Provider = provider
		if err := put(o.name+"@"+provider, own); err != nil {
			return err
		}
	}
	o.Asked++
	return put(o.name, o.Outage)
}

// namedOutage is an outage with the name that it is stored under.
type namedOutage struct {
	telemetry.Outage
	name string
}

// dueOutages returns the outages that are due, by provider and begin. It removes those
// that were looked up often enough.
func (l *Lookups) dueOutages(ctx context.Context, raw map[string][]byte) ([]namedOutage, error) {
	var due []namedOutage
	now := time.Now()
	for name, b := range raw {
		o := namedOutage{name: name}
		if err := json.Unmarshal(b, &o.Outage); err != nil {
			l.log.Error("cannot read an outage of the webhook receiver", "name", name, "err", err)
			continue
		}
		switch {
		case o.Asked >= len(queryDelays):
			if err := l.Store.PutTransient(ctx, telemetry.OutageRecord, name, nil, 0); err != nil {
				return nil, err
			}
		case o.Asked == 0 && !now.Before(o.To), !now.Before(o.To.Add(queryDelays[o.Asked])):
			due = append(due, o)
		}
	}
	slices.SortFunc(
		due,
		func(a, b namedOutage) int { return cmp.Or(cmp.Compare(a.Provider, b.Provider), a.From.Compare(b.From)) },
	)
	return due, nil
}

// lookUpSpan looks up the events of a provider, or of all if it is empty, in a span. It
// returns how many providers were queried, and the names of those that could not be.
func (l *Lookups) lookUpSpan(ctx context.Context, provider string, from, to time.Time) (queried int, failed []string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for _, a := range l.Providers.All() {
		api := l.eventLookup(a.Name)
		if api == nil || provider != "" && a.Name != provider || to.Sub(from)+repeatMargin < api.Repeats() {
			continue
		}
		wg.Go(func() {
			found := findings{}
			err := l.search(ctx, a.Name, api, models.LookupQuery{From: from, To: to.Add(margin)}, found)
			if errors.Is(err, models.ErrNoLookup) {
				l.refuse(a.Name, err)
				err = nil
			}
			mu.Lock()
			defer mu.Unlock()
			total += found.total()
			if err == nil {
				queried++
				return
			}
			failed = append(failed, a.Name)
			if ctx.Err() == nil {
				l.log.Warn("cannot look up missed events; will retry", "provider", a.Name, "err", err)
			}
		})
	}
	wg.Wait()
	if total > 0 {
		l.log.Info("looked up events that were missed during an outage", "found", total, "from", from, "to", to)
	}
	return queried, failed
}
