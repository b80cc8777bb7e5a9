package cluster

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// startMember returns a member of a worker with one provider, as it is after a start.
func startMember(t *testing.T, board TransientStore, worker string) (*Cluster, *provider.Health) {
	t.Helper()
	c := New(board, memberConfig(worker))
	spec := provider.Spec{Adapter: idleAdapter{}, Provider: models.Provider{Name: "sg", Concurrency: 8}}
	ps, err := provider.NewSet([]provider.Spec{spec}, &health, c)
	require.NoError(t, err)
	c.Carry(ps, provider.NewFlows())
	require.NoError(t, c.Restore(t.Context()))
	return c, ps.Get("sg").Health
}

func healthNow(h *provider.Health) telemetry.Health {
	return h.Report(time.Now(), control.ProviderMode{})
}

// answer makes one call to a provider, with an answer of one part.
func answer(h *provider.Health, domain string, part models.Part) {
	if done, ok := h.Begin(domain, 1); ok {
		part.Recipients = models.SetOf(1)
		done([]models.Part{part}, time.Millisecond)
	}
}

// put stores a finding of another worker.
func (b *reportBoard) put(t *testing.T, name string, at time.Time, f provider.Finding) {
	t.Helper()
	raw, err := json.Marshal(savedFinding{Finding: f, At: at})
	require.NoError(t, err)
	require.NoError(t, b.PutTransient(t.Context(), findingKind, name, raw, time.Hour))
}

// TestFindingsAreRestored: a worker that starts restores what earlier workers found. A finding
// about the provider itself holds for the rest of its time, any other for a moment.
func TestFindingsAreRestored(t *testing.T) {
	t.Parallel()
	for source, c := range map[string]struct {
		part   models.Part
		calls  int
		atMost time.Duration
	}{
		telemetry.Rejected:    {models.Part{Class: models.AccountClass}, 1, 12 * time.Second},
		telemetry.CallsFailed: {models.Part{Class: models.Unknown}, 3, 12 * time.Second},
		telemetry.RetryAfter:  {models.Part{Class: models.Throttled}, 1, time.Hour},
	} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				board := newReportBoard()
				c.part.Text, c.part.RetryAt = "so it is", time.Now().Add(time.Hour)
				if source != telemetry.RetryAfter {
					c.part.RetryAt = time.Time{}
				}
				before, h := startMember(t, board, "w")
				for range c.calls {
					answer(h, "a.test", c.part)
				}
				require.NoError(t, before.persist(t.Context(), persisted{}))

				_, h = startMember(t, board, "w2")
				is := healthNow(h)
				require.Equal(t, telemetry.Suspended, is.State)
				require.Equal(t, source, is.Source)
				require.Equal(t, "so it is", is.Why)
				require.Equal(t, "w", workerOf(is.Peer))
				require.LessOrEqual(t, time.Until(is.Until), c.atMost)
				_, ok := h.Begin("a.test", 1)
				require.False(t, ok)
			})
		})
	}
	t.Run(telemetry.Silence, func(t *testing.T) {
		t.Parallel()
		board := newReportBoard()
		board.put(t, "sg gone", time.Now(), provider.Finding{
			State:  telemetry.Suspended,
			Source: telemetry.Silence,
			Left:   time.Hour,
		})
		_, h := startMember(t, board, "w")
		require.InDelta(t, time.Hour, time.Until(healthNow(h).Until), float64(time.Minute))
	})
	t.Run("full until a time", func(t *testing.T) {
		t.Parallel()
		board := newReportBoard()
		before, h := startMember(t, board, "w")
		answer(h, "a.test", models.Part{Class: models.AccountClass, Status: 420, RetryAt: time.Now().Add(time.Hour)})
		require.NoError(t, before.persist(t.Context(), persisted{}))
		_, h = startMember(t, board, "w2")
		require.InDelta(t, time.Hour, time.Until(healthNow(h).Until), float64(time.Minute), "for all of that time")
	})
	t.Run("recipients of a call", func(t *testing.T) {
		t.Parallel()
		board := newReportBoard()
		before, h := startMember(t, board, "w")
		answer(h, "a.test", models.Part{Class: models.RejectedHereClass, Status: 403, Fewer: 10})
		require.NoError(t, before.persist(t.Context(), persisted{}))
		_, h = startMember(t, board, "w2")
		until := h.TooManyUntil(11, time.Now())
		require.InDelta(t, 24*time.Hour, time.Until(until), float64(time.Minute))
		require.Zero(t, h.TooManyUntil(10, time.Now()))
	})
	t.Run("refused senders", func(t *testing.T) {
		t.Parallel()
		board := newReportBoard()
		before, h := startMember(t, board, "w")
		answer(h, "b.c", models.Part{Class: models.AccountClass, Reason: models.SenderNotVerified})
		require.NoError(t, before.persist(t.Context(), persisted{}))
		_, h = startMember(t, board, "w2")
		require.Equal(t, []string{"b.c"}, healthNow(h).Senders)
	})
}

// countedFindings counts the findings that are written.
type countedFindings struct {
	*reportBoard
	n int
}

func (c *countedFindings) PutTransient(
	ctx context.Context, kind, name string, value []byte, ttl time.Duration,
) error {
	if kind == findingKind && value != nil {
		c.n++
	}
	return c.reportBoard.PutTransient(ctx, kind, name, value, ttl)
}

// TestFindingIsWrittenOnce: a finding is not written again while it does not change, and is
// removed when the provider is healthy. A worker does not overwrite what another one found.
func TestFindingIsWrittenOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := &countedFindings{reportBoard: newReportBoard()}
		c, h := startMember(t, board, "w")
		answer(h, "a.test", models.Part{Class: models.AccountClass})
		time.Sleep(health.Hold) // a probe is required
		written := persisted{}
		for range 10 {
			require.NoError(t, c.persist(t.Context(), written))
			time.Sleep(time.Minute)
		}
		require.Equal(t, 1, board.n)
		board.put(t, "sg other", time.Now(), provider.Finding{State: telemetry.Suspended, Left: time.Hour})
		answer(h, "a.test", models.Part{Class: models.Accepted})
		require.NoError(t, c.persist(t.Context(), written))
		all, err := board.Transients(t.Context(), findingKind)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Contains(t, all, "sg other")
	})
}

// TestExpiredFindingIsNotRestored: an expired finding is not restored, even if clocks differ. Nor is one about a
// provider that is not configured.
func TestExpiredFindingIsNotRestored(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{time.Now().Add(-2 * time.Hour), time.Now().Add(24 * time.Hour)} {
		board := newReportBoard()
		wait := provider.Finding{State: telemetry.Suspended, Source: telemetry.RetryAfter, Left: time.Hour}
		board.put(t, "sg w", at, wait)
		board.put(t, "gone w", at, wait)
		_, h := startMember(t, board, "w2")
		until := healthNow(h).Until
		require.LessOrEqual(t, time.Until(until), time.Hour)
		require.Equal(t, at.After(time.Now()), time.Until(until) > 0)
	}
}
