package agenda

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/store/memory"
)

// readings counts the readings of summaries.
type readings struct {
	models.Store
	n int
}

func (r *readings) Summaries(
	ctx context.Context, user string, batch models.ID, from int,
) iter.Seq2[models.ChunkSummary, error] {
	r.n++
	return r.Store.Summaries(ctx, user, batch, from)
}

func retry(t *testing.T, f *fixture, batch models.ID) {
	done, err := f.Follower.Append(t.Context(), &models.Command{Kind: models.RetryBatch, Batch: batch, By: "test"},
		func(*control.Rules) bool { return true })
	require.NoError(t, err)
	require.True(t, done)
}

// TestEndedMailIsNotRead: a batch of one chunk whose mail has ended is not read, unless another process, a command or a
// later summary may have changed that.
func TestEndedMailIsNotRead(t *testing.T) {
	t.Parallel()
	type change = func(t *testing.T, f *fixture, e *models.AgendaEntry)
	over, waits := models.Summary{Accepted: 1, Success: 1, Version: 2}, models.Summary{Accepted: 1, Sent: 1, Version: 3}
	for name, c := range map[string]struct {
		shared bool
		then   []models.Summary
		change change
		reads  int
	}{
		"ended":           {then: []models.Summary{over}},
		"not counted":     {reads: 1},
		"open":            {then: []models.Summary{waits}, reads: 1},
		"open again":      {then: []models.Summary{over, waits}, reads: 1},
		"other processes": {shared: true, then: []models.Summary{over}, reads: 1},
		"after a command": {then: []models.Summary{over}, reads: 1,
			change: func(t *testing.T, f *fixture, e *models.AgendaEntry) {
				retry(t, f, e.ID)
				f.Counted([]models.ChunkSummary{{User: e.User, Chunk: e.ID, Summary: over}}) // a late event of what has ended
			}},
		"after one for another batch": {then: []models.Summary{over},
			change: func(t *testing.T, f *fixture, _ *models.AgendaEntry) { retry(t, f, models.NewBatchID(time.Now())) }},
		"several chunks": {then: []models.Summary{over}, reads: 1,
			change: func(_ *testing.T, _ *fixture, e *models.AgendaEntry) { e.Chunks = 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, store := testConfig(), &readings{Store: memory.Open(t)}
			cfg.Sole = !c.shared
			f := newFixture(t, store, inproctest.New(t, "sg"), cfg)
			var user string
			id := f.putBatch(t, time.Now(), func(b *models.Batch) { user = b.User })
			for _, sum := range c.then {
				f.Counted([]models.ChunkSummary{{User: user, Chunk: id, Summary: sum}})
			}
			entry := models.AgendaEntry{Due: time.Now(), Kind: models.LookAtBatch, ID: id, User: user, Chunks: 1,
				Lane: models.Bulk}
			if c.change != nil {
				c.change(t, f, &entry)
			}
			require.NoError(t, f.reconcile(t.Context(), entry))
			require.Equal(t, c.reads, store.n)
		})
	}
}

// TestEndedIsBounded: mail is noted only while the agenda has not looked at it, so that late events do not fill the
// memory. What is full is emptied.
func TestEndedIsBounded(t *testing.T) {
	t.Parallel()
	e, over := &ended{}, models.Summary{Accepted: 1, Success: 1}
	note := func(at time.Time) {
		e.note([]models.ChunkSummary{{Chunk: models.NewBatchID(at), Summary: over}}, time.Minute)
	}
	note(time.Now().Add(-2 * time.Minute))
	require.Empty(t, e.batches)
	for range maxEnded {
		note(time.Now())
	}
	require.Len(t, e.batches, maxEnded)
	note(time.Now())
	require.Len(t, e.batches, 1)
}
