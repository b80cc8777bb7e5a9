package consumers

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"pgregory.net/rapid"
)

// addOwnTimes adds up to two chunks to a batch whose recipients have times of their own: a time, or a strict window
// that does not open before they expire.
func (m *promises) addOwnTimes(t *rapid.T, b *models.Batch, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b.Sizes = []int{b.Recipients}
	for range rapid.IntRange(0, 2).Draw(t, "own times") {
		own := models.OwnTimes{From: b.Chunks}
		own.DeliverAt, own.ExpiresAt = m.soon(t, now), b.ExpiresAt
		m.due[b.ID.Chunk(b.Chunks)] = own.DeliverAt
		if rapid.Bool().Draw(t, "never") {
			opens := models.TimeOfDay((now.UTC().Hour() + 2) % 24 * 60)
			own.Window = &models.SendWindow{From: opens, To: opens + 60, Zone: "UTC", Strict: true}
			own.ExpiresAt = own.DeliverAt.Add(100 * time.Millisecond)
			m.due[b.ID.Chunk(b.Chunks)] = now.Add(time.Hour)
		}
		n := rapid.IntRange(1, 5).Draw(t, "recipients")
		b.Own, b.Sizes = append(b.Own, own), append(b.Sizes, n)
		b.Recipients, b.Chunks = b.Recipients+n, b.Chunks+1
	}
}

// soon returns a time within half a second.
func (*promises) soon(t *rapid.T, now time.Time) time.Time {
	return now.Add(time.Duration(rapid.IntRange(0, 500).Draw(t, "ms")) * time.Millisecond).
		UTC().
		Truncate(time.Millisecond)
}

// move gives a batch whose time has not come another time, as the service does: the agenda has it first.
func (m *promises) move(t *rapid.T) {
	var waiting []*modelled
	m.mu.Lock()
	for _, b := range m.batches {
		if m.due[b.ID].After(time.Now()) && !b.cancelled {
			waiting = append(waiting, b)
		}
	}
	m.mu.Unlock()
	if len(waiting) == 0 {
		t.Skip("no batch waits for its time")
	}
	b := rapid.SampledFrom(waiting).Draw(t, "batch")
	before, at := b.DeliverAt, m.soon(t, time.Now())
	b.DeliverAt = at // the other recipients keep their own times
	must(t, m.store.Schedule(context.Background(), models.AgendaEntry{
		Due:    models.LaterOf(at, time.Now().Add(100*time.Millisecond)),
		Kind:   models.LookAtBatch,
		ID:     b.ID,
		User:   b.User,
		Chunks: b.Chunks,
		Round:  1,
	}))
	m.mu.Lock()
	m.due[b.ID] = models.EarlierOf(at, before)
	m.mu.Unlock()
	m.order(t, models.Command{
		Kind:     models.RescheduleBatch,
		Batch:    b.ID,
		Schedule: &models.Schedule{DeliverAt: at, ExpiresAt: b.ExpiresAt},
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if before.After(time.Now()) { // else it may have begun before the command was in effect
		m.due[b.ID] = at
	}
}
