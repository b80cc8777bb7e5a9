package cassandra

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestPatient: statements of work that can wait are few at once, and hold up
// nobody else.
func TestPatient(t *testing.T) {
	t.Parallel()
	r := &runner{timeout: time.Minute, patient: make(chan struct{}, patientAtOnce)}
	ctx := models.WithBackground(t.Context())
	var (
		all, full  sync.WaitGroup
		under      atomic.Int64
		on         = make(chan struct{})
		statements atomic.Int64
	)
	full.Add(patientAtOnce)
	for range 10 * patientAtOnce {
		all.Go(func() {
			err := r.try(ctx, plain, func() error {
				defer under.Add(-1)
				if n := under.Add(1); n > patientAtOnce {
					t.Errorf("%d at once", n)
				}
				if statements.Add(1) <= patientAtOnce {
					full.Done()
				}
				<-on
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	full.Wait()
	require.NoError(t, r.try(t.Context(), plain, func() error { return nil }), "what is in a hurry waits for none of them")
	late, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, r.try(late, deciding, func() error { t.Error("sent"); return nil }), models.ErrUnavailable)
	close(on)
	all.Wait()
	require.EqualValues(t, 10*patientAtOnce, statements.Load())
	require.Empty(t, r.patient, "each gave its place back")
}
