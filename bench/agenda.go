package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// lastUrgent is how many urgent mails stand at the end of the line.
const lastUrgent = 20

// agendaAll measures how soon mail is on its way again when nothing about it
// waits in the broker any more and very much else is due at the same moment.
func (b *bench) agendaAll(be *backend) error {
	n := b.due
	if be.name != "embedded" {
		n = b.dueReal
	}
	title := fmt.Sprintf("%s entries due and no message left, to the last of %d urgent mails behind them", thousands(int64(n)), lastUrgent)
	fmt.Fprintln(os.Stderr, be.title+":", title)
	var urgent []models.ID
	r, err := b.newRig(be, &rigOptions{concurrency: atOnce, seed: func(store models.Store) (err error) {
		urgent, err = b.unfinished(store, n)
		return err
	}})
	if err != nil {
		return err
	}
	defer r.kill()
	if err := r.wait(func() (bool, error) {
		for i, id := range urgent {
			if copies, err := r.sim.Copies(b.ctx, id.Log(1).String()); err != nil || len(copies) == 0 {
				urgent = urgent[i:] // those before it have come
				return false, err
			}
		}
		return true, nil
	}); err != nil {
		return err
	}
	took := time.Since(r.began)
	st, err := r.sim.Stats(b.ctx, "")
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("from the start of the program; %s mails had gone out by then; aim: under 60 s", thousands(st.Accepted))
	b.report.add(be, title, took.Seconds(), "s", detail)
	return nil
}

// unfinished stores batches of one recipient that nobody announces: so many of
// bulk, then the urgent ones, which it returns.
func (b *bench) unfinished(store models.Store, bulk int) ([]models.ID, error) {
	user := models.NewUserID()
	put := func(ctx context.Context, lane models.Lane, to string) (models.ID, error) {
		now := time.Now()
		batch := models.Batch{ID: models.NewBatchID(now), User: user, Lane: lane, OnUnknown: models.Hold, Recipients: 1, Chunks: 1, Deadline: now.Add(24 * time.Hour),
			Content: models.Content{From: models.Address{Email: "shop@bench.test"}, Subject: "Your order", Text: "It is on its way."}}
		entry := models.AgendaEntry{Due: now, Kind: models.LookAtBatch, ID: batch.ID, User: user, Chunks: 1, Lane: lane}
		if err := store.Schedule(ctx, entry); err != nil {
			return batch.ID, err
		}
		return batch.ID, store.PutBatch(ctx, batch, models.Chunk{ID: batch.ID, Recipients: []models.Recipient{{Email: to}}})
	}
	if _, err := each(bulk, 64, func(i int) error {
		_, err := put(b.ctx, models.Bulk, fmt.Sprintf("user%d@bench.test", i))
		return err
	}); err != nil {
		return nil, err
	}
	var out []models.ID
	for i := range lastUrgent {
		id, err := put(b.ctx, models.Urgent, fmt.Sprintf("urgent%d@bench.test", i))
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	slices.Reverse(out) // the last one is asked about first
	return out, nil
}
