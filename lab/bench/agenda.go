package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// lastUrgent is the number of urgent mails, which are due last.
const lastUrgent = 20

// agendaAll measures how soon mail is sent if the broker has lost its messages and many
// other entries are due at the same time.
func (b *bench) agendaAll(be *backend) error {
	n := b.due
	if be.name != "embedded" {
		n = b.dueReal
	}
	title := fmt.Sprintf(
		"%s entries due and no message left, to the last of %d urgent mails behind them",
		thousands(int64(n)),
		lastUrgent,
	)
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
				urgent = urgent[i:] // the ones before it have arrived
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
	detail := fmt.Sprintf(
		"from the start of the program; %s mails had gone out by then; aim: under 60 s",
		thousands(st.Accepted),
	)
	b.report.add(be, title, took.Seconds(), "s", detail)
	return nil
}

// unfinished stores batches of one recipient without messages: bulk ones, then urgent
// ones. It returns the urgent ones.
func (b *bench) unfinished(store models.Store, bulk int) ([]models.ID, error) {
	const group = 100
	user := models.NewUserID()
	if _, err := each((bulk+group-1)/group, 256, func(i int) error {
		_, err := putUnfinished(b.ctx, store, user, models.Bulk, min(group, bulk-i*group))
		return err
	}); err != nil {
		return nil, err
	}
	out, err := putUnfinished(b.ctx, store, user, models.Urgent, lastUrgent)
	slices.Reverse(out) // the last one is checked first
	return out, err
}

// putUnfinished stores n batches, and their agenda entries in one call.
func putUnfinished(ctx context.Context, store models.Store, user string, lane models.Lane, n int) ([]models.ID, error) {
	now := time.Now()
	ids, entries := make([]models.ID, n), make([]models.AgendaEntry, n)
	for i := range ids {
		ids[i] = models.NewBatchID(now)
		entries[i] = models.AgendaEntry{Due: now, Kind: models.LookAtBatch, ID: ids[i], User: user, Chunks: 1, Lane: lane}
	}
	if err := store.Schedule(ctx, entries...); err != nil {
		return nil, err
	}
	for i, id := range ids {
		if err := putMail(ctx, store, id, user, lane, fmt.Sprintf("%s%d@bench.test", lane, i)); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// putMail stores a batch to one address, which expires a day after it was created.
func putMail(ctx context.Context, store models.Store, id models.ID, user string, lane models.Lane, to string) error {
	b := models.Batch{ID: id, User: user, Lane: lane, OnUnknown: models.Hold, Recipients: 1, Chunks: 1,
		ExpiresAt: id.Time().Add(24 * time.Hour), Content: models.Content{From: models.Address{Email: "shop@bench.test"},
			Subject: "Your order", Text: "It is on its way."}}
	return store.PutBatch(ctx, b, models.Chunk{ID: id, Recipients: []models.Recipient{{Email: to}}})
}
