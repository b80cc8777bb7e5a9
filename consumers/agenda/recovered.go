package agenda

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// After an outage, mail waits for the delays of its retries, in messages and in the agenda. When a provider takes mail
// again, its delay is over by the decision table, but no handler looks at it. So the agenda reconciles what is unsent
// early, as after a command that resumes mail, urgent mail first. Each worker does so for the shards that it holds,
// whichever worker found out. A worker that acquires a shard later does it then.

// recoveredAgain is how long after a recovery mail is reconciled early once more. By then all workers know of the
// recovery by heartbeats. One that did not know it may have delayed mail again.
const recoveredAgain = 3 * time.Second

// RunRecovered requeues unsent mail early whenever a provider takes mail again, until ctx ends.
func (a *Agenda) RunRecovered(ctx context.Context) {
	var both sync.WaitGroup
	for lane := range 2 {
		both.Go(func() { a.runRecovered(ctx, lane) })
	}
	both.Wait()
}

// lanes are the lanes in the order in which mail is requeued.
var lanes = [2]models.Lane{models.Urgent, models.Bulk}

// runRecovered is RunRecovered for one lane.
func (a *Agenda) runRecovered(ctx context.Context, lane int) {
	var next time.Time // providers that fail now and then do not keep the agenda busy
	for now := range models.Every(ctx, a.cfg.AgendaPoll) {
		if now.Before(next) {
			continue
		}
		began := time.Now()
		worked, err := a.requeueRecovered(ctx, lane)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("mail that waited for a provider is delayed by minutes", "lane", string(lanes[lane]), "err", err)
		}
		if worked {
			next = time.Now().Add(max(2*a.cfg.AgendaPoll, 4*time.Since(began)))
		}
	}
}

// requeueRecovered reconciles the unsent mail of a lane in all shards for which that was not done since the newest
// recovery. It reports whether there were any.
func (a *Agenda) requeueRecovered(ctx context.Context, lane int) (worked bool, err error) {
	noticed, now := a.Providers.RecoveryNoticed(), time.Now()
	if noticed.IsZero() || now.Sub(noticed) > (maxRecheckFactor+1)*a.cfg.Recheck+recoveredAgain {
		return false, nil // everything was reconciled since
	}
	if again := noticed.Add(recoveredAgain); !now.Before(again) {
		noticed = again
	}
	accepted := noticed.Add(a.cfg.Recheck)
	if !a.cfg.Sole {
		accepted = accepted.Add(a.cfg.Recheck) // the clock of another process may be ahead
	}
	unsent := func(e *models.AgendaEntry) bool {
		// The first entry is due a recheck after its mail was accepted. Mail that was accepted since does not wait.
		return (e.Lane == models.Urgent) == (lanes[lane] == models.Urgent) &&
			(e.Unsent || e.Round == 0 && !e.Due.After(accepted))
	}
	for _, s := range a.shards {
		at := noticed.UnixNano()
		if !s.held.Load() || s.recovered[lane].Load() >= at || lane > 0 && s.recovered[0].Load() < at {
			continue
		}
		worked = true
		if err := a.reconcileEntries(ctx, s, now, now.Add((maxRecheckFactor+1)*a.cfg.Recheck), unsent); err != nil {
			return worked, err
		}
		s.recovered[lane].Store(at)
	}
	return worked, nil
}
