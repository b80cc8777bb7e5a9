package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// announcer publishes the messages of accepted batches beside the requests, so
// that a slow or missing broker never holds one. What it cannot publish is
// dropped: the agenda knows of it.
type announcer struct {
	broker models.Broker
	log    *slog.Logger
	in     chan models.Message
	stop   chan struct{}
	wg     sync.WaitGroup

	ctx    context.Context //nolint:containedctx // of the workers, which live as long as the announcer
	cancel context.CancelFunc
}

const (
	announceQueue   = 20_000
	announceAtOnce  = 200
	announceWorkers = 4
	announceTime    = 5 * time.Second // for one call of the broker, and for Close
)

func newAnnouncer(b models.Broker, log *slog.Logger) *announcer {
	a := &announcer{broker: b, log: log, in: make(chan models.Message, announceQueue), stop: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	for range announceWorkers {
		a.wg.Go(a.run)
	}
	return a
}

// add queues the announcement of a batch; what does not fit is left to the
// agenda.
func (a *announcer) add(b *models.Batch) {
	for n := range b.Chunks {
		select {
		case a.in <- models.Message{Kind: models.BatchMessage, ID: b.ID.Chunk(n), Lane: b.Lane}:
		default:
			a.log.Warn("announcements are held up; the agenda makes them later", "batch_id", b.ID.String(), "chunk", n)
			return
		}
	}
}

func (a *announcer) run() {
	for {
		select {
		case m := <-a.in:
			a.publish(m)
		case <-a.stop:
			for {
				select {
				case m := <-a.in:
					a.publish(m)
				default:
					return
				}
			}
		}
	}
}

func (a *announcer) publish(m models.Message) {
	ms := append(make([]models.Message, 0, announceAtOnce), m)
fill:
	for len(ms) < announceAtOnce {
		select {
		case m := <-a.in:
			ms = append(ms, m)
		default:
			break fill
		}
	}
	ctx, cancel := context.WithTimeout(a.ctx, announceTime)
	defer cancel()
	if err := a.broker.Publish(ctx, ms...); err != nil {
		a.log.Warn("announcement failed; the agenda repeats it", "batch_id", ms[0].ID.Batch().String(), "err", err)
	}
}

// close publishes what waits, but tries no longer than announceTime.
func (a *announcer) close() {
	close(a.stop)
	late := time.AfterFunc(announceTime, a.cancel)
	defer late.Stop()
	a.wg.Wait()
	a.cancel()
}
