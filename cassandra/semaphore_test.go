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

// TestTurns: statements of work that can wait are few at once while others are
// under way, and hold up nobody.
func TestTurns(t *testing.T) {
	t.Parallel()
	r := &runner{timeout: time.Minute, turns: &turns{}}
	ctx := models.WithBackground(t.Context())
	for _, beside := range []bool{true, false} {
		most, over := patientAlone, make(chan struct{})
		var all, others sync.WaitGroup
		if beside {
			most = patientBeside
			begun := make(chan struct{})
			others.Go(func() {
				if err := r.try(t.Context(), plain, func() error { close(begun); <-over; return nil }); err != nil {
					t.Error(err)
				}
			})
			<-begun
		}
		var under, sent atomic.Int64
		var full sync.WaitGroup
		full.Add(most)
		on := make(chan struct{})
		for range 10 * patientAlone {
			all.Go(func() {
				err := r.try(ctx, plain, func() error {
					defer under.Add(-1)
					if n := under.Add(1); n > int64(most) {
						t.Errorf("%d at once, with others: %v", n, beside)
					}
					if sent.Add(1) <= int64(most) {
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
		close(over)
		others.Wait()
		require.EqualValues(t, 10*patientAlone, sent.Load())
		require.Zero(t, r.turns.patient)
		require.Zero(t, r.turns.others)
		require.Empty(t, r.turns.line)
	}
}

// TestTurnsGrow: as soon as nobody else is served, more go at once.
func TestTurnsGrow(t *testing.T) {
	t.Parallel()
	s := &turns{}
	end, err := s.begin(t.Context())
	require.NoError(t, err)
	ctx := models.WithBackground(t.Context())
	ends := make(chan func(), patientAlone+1)
	for range patientAlone + 1 {
		go func() {
			end, err := s.begin(ctx)
			if err != nil {
				t.Error(err)
			}
			ends <- end
		}()
	}
	var under []func()
	for range patientBeside {
		under = append(under, <-ends)
	}
	require.Empty(t, ends)
	end()
	for range patientAlone - patientBeside {
		under = append(under, <-ends)
	}
	require.Empty(t, ends)
	for _, end := range under {
		end()
	}
	(<-ends)()
	require.Zero(t, s.patient)
}
