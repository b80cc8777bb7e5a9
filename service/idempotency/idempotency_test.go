package idempotency

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// run is one attempt of a request: the result of do, and what do got.
type run struct {
	err   error
	claim models.Claim
	older bool
}

// once runs a request with the key k and the hash h of user u.
func once(t *testing.T, g *Guard, u, k, h string, r *run) (answer string, replayed bool, err error) {
	t.Helper()
	do := func(_ context.Context, c models.Claim, older bool) (string, error) {
		r.claim, r.older = c, older
		return "answer of " + c.ID.String(), r.err
	}
	return Once(t.Context(), g, u, Repeat{Key: k, Route: "POST /", Hash: h}, do)
}

func newGuard(t *testing.T) *Guard {
	t.Helper()
	return &Guard{
		Store:     memory.Open(t),
		TTL:       time.Hour,
		RetryTime: time.Minute,
		Log:       slog.New(slog.DiscardHandler),
	}
}

// TestAnswerIsReplayed: a repeat gets the answer of the first attempt and does not run.
func TestAnswerIsReplayed(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	first, replayed, err := once(t, g, "ann", "k", "h", &run{})
	require.NoError(t, err)
	require.False(t, replayed)
	var second run
	answer, replayed, err := once(t, g, "ann", "k", "h", &second)
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, first, answer)
	require.Zero(t, second.claim, "the repeat does not run")

	begun, err := g.Begun(t.Context(), "ann", Repeat{Key: "k", Route: "POST /", Hash: "h"})
	require.NoError(t, err)
	require.True(t, begun)
	done, err := g.Done(t.Context(), "ann", Repeat{Key: "k", Route: "POST /", Hash: "h"})
	require.NoError(t, err)
	require.True(t, done)
	_, replayed, err = once(t, g, "bob", "k", "h", &run{})
	require.NoError(t, err)
	require.False(t, replayed, "a key of another user")
}

// TestReusedKey: a key cannot be used for a different request.
func TestReusedKey(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	_, _, err := once(t, g, "ann", "k", "h", &run{})
	require.NoError(t, err)
	_, _, err = once(t, g, "ann", "k", "other", &run{})
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "idempotency_key_reused", e.Code)
}

// TestKeyAfterError: a refused request frees its key. After a failure on our side a repeat
// continues the first attempt under its claim.
func TestKeyAfterError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind problem.Kind
		kept bool
	}{
		"refused":     {problem.Invalid, false},
		"conflict":    {problem.Conflict, false},
		"unavailable": {problem.Unavailable, true},
		"bug":         {problem.Internal, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuard(t)
			first := run{err: problem.New(c.kind, "failed", "It failed.")}
			_, _, err := once(t, g, "ann", "k", "h", &first)
			require.ErrorIs(t, err, first.err)
			var second run
			_, replayed, err := once(t, g, "ann", "k", "h", &second)
			require.NoError(t, err)
			require.False(t, replayed)
			require.Equal(t, c.kept, second.older)
			require.Equal(t, c.kept, second.claim.ID == first.claim.ID)
		})
	}
}

// lostLease is a store whose leases are never held: a run loses its lease as soon as
// another one wants it.
type lostLease struct {
	Store
	mu     sync.Mutex
	holder map[string]string // by name, the newest
	old    map[string]bool   // holders that lost a lease
}

func (s *lostLease) Lease(_ context.Context, name, holder string, ttl time.Duration) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.holder[name]
	switch {
	case s.old[holder]:
		return now == "", nil
	case ttl == 0 && now == holder:
		s.holder[name] = ""
	case now != holder:
		s.old[now], s.holder[name] = true, holder
	}
	return true, nil
}

// TestClaimOfRunningRepeatStays: a run loses its lease, and a repeat runs beside it. If the run is
// refused, the claim stays for the repeat, or for its answer.
func TestClaimOfRunningRepeatStays(t *testing.T) {
	t.Parallel()
	refusal := problem.New(problem.Invalid, "failed", "It failed.")
	for name, answered := range map[string]bool{"runs": false, "answered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuard(t)
			g.Store = &lostLease{Store: g.Store, holder: map[string]string{}, old: map[string]bool{}}
			r := Repeat{Key: "k", Route: "POST /", Hash: "h"}
			refuse, repeated := make(chan struct{}), make(chan error, 1)
			var first models.ID
			_, _, err := Once(t.Context(), g, "ann", r, func(ctx context.Context, c models.Claim, _ bool) (string, error) {
				first = c.ID
				started := make(chan struct{})
				go func() {
					_, _, err := Once(ctx, g, "ann", r, func(context.Context, models.Claim, bool) (string, error) {
						close(started)
						if !answered {
							<-refuse
						}
						return "answer of the repeat", nil
					})
					repeated <- err
				}()
				<-started
				if answered {
					repeated <- <-repeated // it has ended
				}
				return "", refusal
			})
			require.ErrorIs(t, err, refusal)
			close(refuse)
			require.NoError(t, <-repeated)
			var third run
			answer, replayed, err := once(t, g, "ann", "k", "h", &third)
			require.NoError(t, err)
			require.True(t, replayed, "it ran under %s, not under %s", third.claim.ID, first)
			require.Equal(t, "answer of the repeat", answer)
		})
	}
}

// TestStoredResult: a request whose result is stored under its claim's ID keeps no answer, so that repeats run and find
// the result. If the run is refused after a repeat has stored it, the claim stays.
func TestStoredResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t)
		stored := map[models.ID]bool{}
		g.Stored = func(_ context.Context, id models.ID) (bool, error) { return stored[id], nil }
		var first, second, third run
		_, _, err := once(t, g, "ann", "k", "h", &first)
		require.NoError(t, err)
		stored[first.claim.ID] = true
		second.err = problem.New(problem.Invalid, "failed", "It failed.")
		_, _, err = once(t, g, "ann", "k", "h", &second)
		require.ErrorIs(t, err, second.err)
		_, replayed, err := once(t, g, "ann", "k", "h", &third)
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, []bool{false, true, true}, []bool{first.older, second.older, third.older})
		require.Equal(t, first.claim.ID, second.claim.ID)
		require.Equal(t, first.claim.ID, third.claim.ID)

		stored[first.claim.ID] = false
		time.Sleep(youngClaim)
		_, _, err = once(t, g, "ann", "k", "h", &second)
		require.ErrorIs(t, err, second.err)
		_, _, err = once(t, g, "ann", "k", "h", &third)
		require.NoError(t, err)
		require.False(t, third.older, "nothing is stored, so the refusal freed the key")
	})
}

// TestRepeatsOfStoredResult: repeats of a request that has stored its result run beside each other. None is refused
// because another one runs.
func TestRepeatsOfStoredResult(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.Stored = func(context.Context, models.ID) (bool, error) { return true, nil }
	_, _, err := once(t, g, "ann", "k", "h", &run{})
	require.NoError(t, err)
	r := Repeat{Key: "k", Route: "POST /", Hash: "h"}
	_, _, err = Once(t.Context(), g, "ann", r, func(context.Context, models.Claim, bool) (string, error) {
		_, _, err := once(t, g, "ann", "k", "h", &run{})
		return "", err
	})
	require.NoError(t, err)
}

// countedLeases counts what is asked of leases.
type countedLeases struct {
	Store
	asked atomic.Int64
}

func (s *countedLeases) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	s.asked.Add(1)
	return s.Store.Lease(ctx, name, holder, ttl)
}

// TestLateLease: a request whose result is stored under its ID asks for no lease if it ends soon. While it runs, its
// repeats are refused, by the age of its claim and then by its lease. When it was cut off, a repeat runs.
func TestLateLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t)
		leases := &countedLeases{Store: g.Store}
		g.Store = leases
		g.Stored = func(context.Context, models.ID) (bool, error) { return false, nil }
		_, _, err := once(t, g, "ann", "quick", "h", &run{})
		require.NoError(t, err)
		require.Zero(t, leases.asked.Load())

		running := func() {
			t.Helper()
			_, _, err := once(t, g, "ann", "slow", "h", &run{})
			var e *problem.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "request_running", e.Code)
		}
		_, _, err = Once(t.Context(), g, "ann", Repeat{Key: "slow", Route: "POST /", Hash: "h"},
			func(context.Context, models.Claim, bool) (string, error) {
				running()
				for range 60 {
					time.Sleep(time.Second)
					running()
				}
				return "", problem.New(problem.Unavailable, "failed", "It failed.")
			})
		require.Error(t, err)
		var repeat run
		_, _, err = once(t, g, "ann", "slow", "h", &repeat)
		require.NoError(t, err)
		require.True(t, repeat.older)

		_, _, err = once(t, g, "ann", "failed", "h", &run{err: problem.New(problem.Unavailable, "failed", "It failed.")})
		require.Error(t, err)
		asked := leases.asked.Load()
		_, _, err = once(t, g, "ann", "failed", "h", &repeat)
		require.NoError(t, err, "the claim is young, but its run has ended")
		require.True(t, repeat.older)
		require.Greater(t, leases.asked.Load(), asked)

		// A process that was killed leaves a claim.
		killed := models.Claim{ID: models.NewBatchID(time.Now()), Hash: "h", At: time.Now()}
		r := Repeat{Key: "killed", Route: "POST /", Hash: "h"}
		_, err = g.Store.Claim(t.Context(), r.storedKey("ann"), killed, time.Hour)
		require.NoError(t, err)
		_, _, err = once(t, g, "ann", "killed", "h", &repeat)
		require.Error(t, err)
		time.Sleep(youngClaim)
		_, _, err = once(t, g, "ann", "killed", "h", &repeat)
		require.NoError(t, err)
		require.Equal(t, killed.ID, repeat.claim.ID)
	})
}
