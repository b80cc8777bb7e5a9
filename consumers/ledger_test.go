package consumers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// gate is a store with a hook around the appends of attempts.
type gate struct {
	models.Store
	append func(ctx context.Context, next func() error) error
}

func (g *gate) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	if e.Kind != models.Attempt {
		return g.Store.Append(ctx, chunk, e)
	}
	return g.append(ctx, func() error { return g.Store.Append(ctx, chunk, e) })
}

// TestStartByPassed: if the ledger is so slow that the start-by of an attempt passes, its call is
// not made, and another attempt follows.
func TestStartByPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy = time.Second
		sg := newScripted("sg", always(models.Accepted))
		var once sync.Once
		r := newRig(t, cfg, func(s models.Store) models.Store {
			return &gate{s, func(_ context.Context, next func() error) error {
				err := next()
				once.Do(func() { time.Sleep(1200 * time.Millisecond) }) // the worker freezes after the append
				return err
			}}
		}, sg)
		b := r.batch(2, true, nil)
		v := r.done(b)
		require.Equal(t, models.Success, v.Status(1).State)
		require.GreaterOrEqual(t, v.Status(1).Attempts, 2)
		require.Equal(t, 1, sg.count(), "the first attempt made no call")
		require.Equal(t, models.StartByPassed, v.Tries(1)[0].Reason)
		require.Equal(t, 1, sg.copiesOf(b.ID.Log(1)))
	})
}

// TestUnknownAppend: if it is unknown whether an append succeeded, its call is not made.
func TestUnknownAppend(t *testing.T) {
	t.Parallel()
	for name, stored := range map[string]bool{"the entry is stored": true, "the entry is not stored": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sg := newScripted("sg", always(models.Accepted))
				var n atomic.Int64
				r := newRig(t, fast(), func(s models.Store) models.Store {
					return &gate{s, func(_ context.Context, next func() error) error {
						if n.Add(1) > 1 {
							return next()
						}
						if stored {
							if err := next(); err != nil {
								return err
							}
						}
						return fmt.Errorf("%w: as the test wants", models.ErrOutcomeUnknown)
					}}
				}, sg)
				b := r.batch(2, true, nil)
				v := r.done(b)
				require.Equal(t, models.Success, v.Status(1).State)
				require.Equal(t, 1, sg.count(), "no call without a known append")
				require.Equal(t, 1, sg.copiesOf(b.ID.Log(1)))
			})
		})
	}
}

// TestWorkersShareLedger: however many workers handle a chunk, and however often it is announced,
// each recipient gets one copy.
func TestWorkersShareLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		for range 3 {
			r.worker(fast(), sg, mg)
		}
		var bs []*models.Batch
		for range 60 {
			b := r.batch(20, true, nil)
			for range 4 { // each batch is announced many times
				require.NoError(
					t,
					r.broker.Publish(context.Background(), models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane},
						models.Message{Kind: models.ProviderMessage, Provider: "mg", ID: b.ID, Lane: b.Lane}),
				)
			}
			bs = append(bs, b)
		}
		for _, b := range bs {
			r.done(b)
			for i := 1; i <= 20; i++ {
				require.Equal(t, 1, sg.copiesOf(b.ID.Log(i))+mg.copiesOf(b.ID.Log(i)))
			}
		}
	})
}
