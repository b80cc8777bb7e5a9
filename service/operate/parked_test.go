package operate

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/store/memory"
)

// parkingBroker is a broker with its own parked messages. Like other brokers it lists them
// only from the beginning.
type parkingBroker struct {
	models.Broker
	parked []models.Parked
}

func (b *parkingBroker) Parked(_ context.Context, limit int) ([]models.Parked, error) {
	return b.parked[:min(limit, len(b.parked))], nil
}

// TestParkedPages: the pages list every parked message, even if other messages are requeued
// or discarded between two pages.
func TestParkedPages(t *testing.T) {
	t.Parallel()
	const all = 1203
	for name, remove := range map[string]func(all []models.Parked, page int) []models.Parked{
		"none":              func(all []models.Parked, _ int) []models.Parked { return all },
		"last of page":      func(all []models.Parked, page int) []models.Parked { return slices.Delete(all, page-1, page) },
		"whole page":        func(all []models.Parked, page int) []models.Parked { return all[page:] },
		"half of page":      func(all []models.Parked, page int) []models.Parked { return all[page/2:] },
		"all but the first": func(all []models.Parked, page int) []models.Parked { return slices.Delete(all, 1, page) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newInstallation(memory.Open(t), inproctest.New(t, "sg"), "sg")
			b := &parkingBroker{Broker: f.Broker}
			f.Broker = b
			began := time.Now()
			for i := range all {
				at := began.Add(time.Duration(i/10) * time.Millisecond) // several have the same time
				b.parked = append(b.parked, models.Parked{ID: fmt.Sprint("m", i), Key: "k", At: at})
			}
			seen := map[string]bool{}
			p := operation.Page{Limit: 500}
			for pages := 0; ; pages++ {
				require.Less(t, pages, 10)
				out, err := f.Parked(t.Context(), operator, p)
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
					b.parked = remove(b.parked, len(out.Parked))
				}
			}
			require.Len(t, seen, all)
		})
	}
}

// Discard implements models.Broker. It behaves as if another request were always faster.
func (b *parkingBroker) Discard(context.Context, string) error { return models.ErrNotFound }

// TestConcurrentDiscard: of two concurrent requests that discard a message, the slower
// succeeds and changes nothing. If no command removed the message, there is no such
// message.
func TestConcurrentDiscard(t *testing.T) {
	t.Parallel()
	f := newInstallation(memory.Open(t), inproctest.New(t, "sg"), "sg")
	f.Broker = &parkingBroker{Broker: f.Broker, parked: []models.Parked{{ID: "m", Key: "k"}}}
	_, err := f.Discard(t.Context(), operator, "m", "")
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, problem.NotFound, e.Kind)
	changed, err := f.Discard(t.Context(), operator, "m", "")
	require.NoError(t, err)
	require.False(t, changed)
}
