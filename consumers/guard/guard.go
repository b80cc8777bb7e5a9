// Package guard stops batches with too many recipients that do not exist: going on would cost the
// sender its reputation at all providers.
package guard

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// minTried is how many recipients of a batch must have been tried before their share says something.
const minTried = 100

// stopped is the kind of the transient value that says that a batch was stopped once.
const stopped = "bounces.stopped"

// Config configures a Guard.
type Config struct {
	Bounces float64       // percent of a batch's tried recipients that may bounce; 0: any
	Keep    time.Duration // how long a batch is known to have been stopped
	Logger  *slog.Logger
}

// Store is the part of models.Store that a Guard needs.
type Store interface {
	Summaries(ctx context.Context, user string, batch models.ID, from int) iter.Seq2[models.ChunkSummary, error]
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
}

// Commands appends to the command log.
type Commands interface {
	Append(ctx context.Context, c *models.Command, wanted func(*control.Rules) bool) (done bool, err error)
}

// Guard watches the summaries of batches. A batch that was resumed is not stopped again.
type Guard struct {
	cfg      Config
	store    Store
	commands Commands
}

// New returns a Guard.
func New(cfg Config, store Store, commands Commands) *Guard {
	return &Guard{cfg: cfg, store: store, commands: commands}
}

// Counted looks at batches with new summaries. What fails is done at the next summary.
func (g *Guard) Counted(ctx context.Context, sums []models.ChunkSummary) {
	if g.cfg.Bounces <= 0 {
		return
	}
	looked := map[models.ID]bool{}
	for i := range sums {
		batch := sums[i].Chunk.Batch()
		if looked[batch] || !g.many(&sums[i].Summary) {
			continue
		}
		looked[batch] = true
		if err := g.look(ctx, sums[i].User, batch); err != nil && ctx.Err() == nil {
			g.cfg.Logger.Warn("cannot stop a batch that bounces; will retry", "batch_id", batch.String(), "err", err)
		}
	}
}

// bounced returns how many recipients do not exist, of how many that were tried. Those that have
// not ended count, too: bounces are reported sooner than deliveries.
func bounced(s *models.Summary) (n, of int64) { return s.Reasons[models.MailboxInvalid], s.Touched() }

// many reports whether more recipients bounced than may.
func (g *Guard) many(s *models.Summary) bool {
	n, of := bounced(s)
	return n > 0 && float64(n)*100 > g.cfg.Bounces*float64(of)
}

// look stops a batch if too much of it bounced and some of it was not tried yet.
func (g *Guard) look(ctx context.Context, user string, batch models.ID) error {
	var all models.Summary
	for s, err := range g.store.Summaries(ctx, user, batch, 0) {
		if err != nil {
			return err
		}
		all.Add(&s.Summary)
	}
	n, of := bounced(&all)
	if of < minTried || !g.many(&all) || all.Untried == 0 {
		return nil
	}
	_, err := g.store.Transient(ctx, stopped, batch.String())
	if !errors.Is(err, models.ErrNotFound) {
		return err
	}
	c := models.Command{
		Kind: models.StopBatch, Batch: batch, By: models.BySafedelivr,
		Why: fmt.Sprintf(
			"%d of the %d recipients that were tried do not exist, which is more than %g %%",
			n,
			of,
			g.cfg.Bounces,
		),
	}
	done, err := g.commands.Append(ctx, &c, func(r *control.Rules) bool {
		stop, cancel := r.Stops(batch)
		return stop == nil && cancel == nil
	})
	if err != nil {
		return err
	}
	if done {
		g.cfg.Logger.Warn("a batch was stopped", "batch_id", batch.String(), "why", c.Why)
	}
	return g.store.PutTransient(ctx, stopped, batch.String(), nil, g.cfg.Keep)
}
