package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// testClose closes a store while goroutines call it.
func testClose(t *testing.T, s models.Store) {
	var (
		ctx     = t.Context()
		all     sync.WaitGroup
		done    atomic.Int64
		busy    = make(chan struct{})
		ready   = sync.OnceFunc(func() { close(busy) })
		wrong   = make(chan error, 64)
		methods = calls()
	)
	for i := range 16 {
		all.Go(func() {
			for k := i; ; k++ {
				c := methods[k%len(methods)]
				err := c.do(ctx, s)
				if done.Add(1) == 300 {
					ready()
				}
				if errors.Is(err, models.ErrClosed) {
					return
				}
				if !fineWhileClosing(err) {
					ready()
					wrong <- fmt.Errorf("%s: %w", c.name, err)
					return
				}
			}
		})
	}
	<-busy
	require.NoError(t, s.Close())
	all.Wait()
	close(wrong)
	for err := range wrong {
		require.NoError(t, err, "a call during Close must finish or return ErrClosed")
	}

	require.NoError(t, s.Close(), "calling it again does nothing")
	for _, c := range calls() {
		require.ErrorIs(t, c.do(context.Background(), s), models.ErrClosed, c.name)
	}
}

// fineWhileClosing reports whether err is nil or an answer that concurrent calls with the
// same arguments may get.
func fineWhileClosing(err error) bool {
	var conflict *models.ConflictError
	return err == nil || errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrExists) ||
		errors.Is(err, models.ErrOutcomeUnknown) || errors.As(err, &conflict)
}
