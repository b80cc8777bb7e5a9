package dashboard

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestInOrder checks that an event with a time in whole seconds follows the answer to
// its attempt, and that delivered follows processed.
func TestInOrder(t *testing.T) {
	t.Parallel()
	second := time.Date(2026, 1, 31, 12, 0, 10, 0, time.UTC)
	at := func(ms int) time.Time { return second.Add(time.Duration(ms) * time.Millisecond) }
	story := []models.Moment{{What: "accepted", At: at(100)}, {What: "attempt", Attempt: 1, At: at(300)},
		{
			What:    "event",
			Event:   models.Delivered,
			Attempt: 1,
			At:      second,
		}, {What: "event", Event: models.Processed, Attempt: 1, At: second},
		{What: "answer", Attempt: 1, At: at(400)}, {What: "event", Event: models.Opened, Attempt: 1, At: at(60_000)}}
	inOrder(story)
	var got []string
	for _, m := range story {
		got = append(got, m.What+string(m.Event))
	}
	require.Equal(t, []string{"accepted", "attempt", "answer", "eventprocessed", "eventdelivered", "eventopened"}, got)
}

// TestOpenLogsShareAReader checks that 200 open logs of a chunk read it once for every
// change, not 200 times.
func TestOpenLogsShareAReader(t *testing.T) {
	t.Parallel()
	const open, changes = 200, 3
	f := newRig(t, nil)
	who := service.Caller{User: "local"}
	to := make([]service.Recipient, open)
	for i := range to {
		to[i].Email = fmt.Sprintf("user%d@example.com", i)
	}
	batch := f.batchOf(who.User, nil, to...)
	sources := make([]source, open)
	for i := range sources {
		sources[i] = f.board.logSource(who, batch.Log(i+1))
	}
	lookAll := func() []*logView {
		out := make([]*logView, open)
		var wg sync.WaitGroup
		for i := range sources {
			wg.Go(func() {
				v, err := sources[i].read(f.Context())
				if err == nil {
					out[i], _ = v.(*logView)
				}
			})
		}
		wg.Wait()
		return out
	}
	lookAll()
	before := f.store.records.Load()
	for n := range int64(changes) {
		// An attempt, and the counts after it.
		require.NoError(
			t,
			f.store.Append(
				t.Context(),
				batch,
				models.Entry{Number: int(n) + 1, Token: models.NewToken(), Kind: models.Attempt, At: time.Now(),
					Recipients: models.SetOf(int(n) + 1), Provider: "sg"},
			),
		)
		sum := models.Summary{
			Version:   n + 1,
			Accepted:  open,
			Queued:    open,
			Untried:   open - n - 1,
			Providers: map[string]models.ProviderCounts{"sg": {Tried: n + 1}},
		}
		require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: who.User, Chunk: batch, Summary: sum}))
		r := f.board.chunks.of(who, batch.Log(1))
		r.mu.Lock()
		r.asked = time.Time{} // a second later
		r.mu.Unlock()
		views := lookAll()
		require.Len(t, views[n].Story, 2, "accepted, attempt")
		require.Len(t, views[open-1].Story, 1)
	}
	require.Equal(t, int64(changes), f.store.records.Load()-before)
}
