package service

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// fullLot is a broker with a parking lot of its own, which lists from the beginning
// alone, as brokers do.
type fullLot struct {
	models.Broker
	lot []models.Parked
}

func (b *fullLot) Parked(_ context.Context, limit int) ([]models.Parked, error) {
	return b.lot[:min(limit, len(b.lot))], nil
}

// TestParkedPages: every parked message is listed, however many there are, and none
// is passed over while others are put back or dropped.
func TestParkedPages(t *testing.T) {
	t.Parallel()
	const all = 1203
	boss := Caller{By: "boss", Operator: true}
	for name, gone := range map[string]func(lot []models.Parked, page int) []models.Parked{
		"all stay":         func(lot []models.Parked, _ int) []models.Parked { return lot },
		"the last goes":    func(lot []models.Parked, page int) []models.Parked { return append(lot[:page-1:page-1], lot[page:]...) },
		"the page goes":    func(lot []models.Parked, page int) []models.Parked { return lot[page:] },
		"its half goes":    func(lot []models.Parked, page int) []models.Parked { return lot[page/2:] },
		"all but one goes": func(lot []models.Parked, page int) []models.Parked { return append(lot[:1:1], lot[page:]...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newOrderRig(t)
			b := &fullLot{Broker: f.broker}
			f.broker = b
			began := time.Now()
			for i := range all {
				b.lot = append(
					b.lot,
					models.Parked{ID: fmt.Sprint("m", i), Key: "k", At: began.Add(time.Duration(i/10) * time.Millisecond)},
				) // some at once
			}
			seen := map[string]bool{}
			p := Page{Limit: 500}
			for pages := 0; ; pages++ {
				require.Less(t, pages, 10)
				out, err := f.Parked(t.Context(), boss, p)
				require.NoError(t, err)
				require.LessOrEqual(t, len(out.Parked), 500)
				for _, m := range out.Parked {
					seen[m.ID] = true
				}
				if out.Next == "" {
					break
				}
				p.Cursor = out.Next
				if pages == 0 {
					b.lot = gone(b.lot, len(out.Parked))
				}
			}
			require.Len(t, seen, all)
		})
	}
}

// Discard implements models.Broker: another was always quicker.
func (b *fullLot) Discard(context.Context, string) error { return models.ErrNotFound }

// TestDiscardedByAnother: of two who drop one message at once, the slower changes
// nothing, and is told so; who has nobody's order before it, is told that there is
// no such message.
func TestDiscardedByAnother(t *testing.T) {
	t.Parallel()
	f := newOrderRig(t)
	f.broker = &fullLot{Broker: f.broker, lot: []models.Parked{{ID: "m", Key: "k"}}}
	boss := Caller{By: "boss", Operator: true}
	_, err := f.Discard(t.Context(), boss, "m", "")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, NotFound, e.Kind)
	changed, err := f.Discard(t.Context(), boss, "m", "")
	require.NoError(t, err)
	require.False(t, changed)
}
