package consumers

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestMetrics: calls, answers and states are counted. Names and labels follow the conventions, and
// no label holds an address or an id.
func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		cfg := fast()
		cfg.Metrics, cfg.SumsPoll = reg, 50*time.Millisecond
		sg := newScripted("sg", always(models.Unavailable))
		mg := newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
			if c.Recipients[0].Recipient.Email == "unknown@x.test" {
				return part(models.RejectedRecipient, c)
			}
			return part(models.Accepted, c)
		})
		r := emptyRig(t, nil, "sg", "mg")
		spec := func(p *scripted, rate, calls float64) provider.Spec {
			return provider.Spec{
				Adapter: p,
				Provider: models.Provider{
					Name:        p.name,
					Weight:      1,
					Concurrency: 4,
					ChunkLimit:  1000,
					Timeout:     time.Second,
					Events:      models.EventsNone,
					Rate:        rate,
					CallRate:    calls,
				},
			}
		}
		r.engine = r.start(cfg, []provider.Spec{spec(sg, 0, 0), spec(mg, 2000, 300)})
		r.known()
		refused := r.batch(1, true, func(b *models.Batch, rs []models.Recipient) {
			b.Providers, rs[0].Email = []string{"mg"}, "unknown@x.test"
		})
		require.EqualValues(t, 1, r.done(refused).Summary().Failed)
		b := r.batch(20, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		require.EqualValues(t, 20, r.done(b).Summary().Success)
		families := map[string]*dto.MetricFamily{}
		require.Eventually(t, func() bool {
			all, err := reg.Gather()
			require.NoError(t, err)
			for _, f := range all {
				families[f.GetName()] = f
			}
			_, err = r.store.Transient(t.Context(), telemetry.RecountReport, telemetry.NewestRecount)
			return err == nil && value(families, "safedelivr_workers") == 1 &&
				value(families, "safedelivr_unknown_outcomes", "held") == 0
		}, patience, 10*time.Millisecond)
		require.InDelta(t, 20, value(families, "safedelivr_attempt_recipients_total", "mg", "accepted"), 0)
		require.InDelta(t, 20, value(families, "safedelivr_attempt_recipients_total", "sg", "unavailable"), 0)
		require.InDelta(t, 1, value(families, "safedelivr_attempts_total", "sg", "unavailable"), 0)
		require.InDelta(t, 1, value(families, "safedelivr_attempts_total", "mg", "rejected_recipient"), 0)
		require.InDelta(t, 1, value(families, "safedelivr_attempts_total", "mg", "accepted"), 0)
		require.InDelta(t, 1, value(families, "safedelivr_provider_state", "mg", telemetry.Healthy), 0)
		require.InDelta(t, 20, value(families, "safedelivr_log_state_changes_total", "delivered", "unconfirmed"), 0)
		require.InDelta(
			t,
			1,
			value(families, "safedelivr_log_state_changes_total", "failed", "mailbox_invalid"),
			0,
			"the answer is final",
		)
		require.InDelta(t, 2000, value(families, "safedelivr_rate_limit_recipients_per_second", "mg"), 0)
		require.InDelta(t, 300, value(families, "safedelivr_rate_limit_calls_per_second", "mg"), 0)
		require.InDelta(t, 300, value(families, "safedelivr_rate_share_calls_per_second", "mg"), 0)
		require.InDelta(t, 0, value(families, "safedelivr_provider_refused_senders", "mg"), 0)
		require.InDelta(t, 0, value(families, "safedelivr_conservation_difference"), 0)
		require.NotNil(t, families["safedelivr_accept_to_provider_seconds"])
		name := regexp.MustCompile(`^safedelivr_[a-z_]+$`)
		for _, f := range families {
			require.Regexp(t, name, f.GetName())
			require.NotEmpty(t, f.GetHelp())
			require.Equal(
				t,
				f.GetType() == dto.MetricType_COUNTER,
				strings.HasSuffix(f.GetName(), "_total"),
				f.GetName(),
			)
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					require.NotContains(t, l.GetValue(), "@")
					require.NotContains(t, l.GetValue(), b.ID.String())
				}
			}
		}
	})
}

// gathered returns the published metrics by name.
func gathered(t *testing.T, reg prometheus.Gatherer) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := reg.Gather()
	require.NoError(t, err)
	families := map[string]*dto.MetricFamily{}
	for _, f := range all {
		families[f.GetName()] = f
	}
	return families
}

// TestMetricsCountOnce: repeats of an event are not counted, nor are calls that were not made.
// Counters begin at 0, so that the first increment is an increase.
func TestMetricsCountOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		cfg := fast()
		cfg.Metrics, cfg.StartBy = reg, time.Second
		mg := newScripted("mg", always(models.Accepted))
		var once sync.Once
		r := emptyRig(t, func(s models.Store) models.Store {
			return &gate{s, func(_ context.Context, next func() error) error {
				err := next()
				once.Do(func() { time.Sleep(1200 * time.Millisecond) }) // its start-by passes
				return err
			}}
		}, "mg")
		r.withEvents(cfg, mg)
		require.InDelta(t, 0, value(gathered(t, reg), "safedelivr_attempts_total", "mg", "unavailable"), 0)
		require.InDelta(t, 0, value(gathered(t, reg), "safedelivr_events_total", "mg", "bounced"), 0)
		b := r.batch(3, true, nil)
		r.taken(b)
		attempt := r.view(b).Status(1).Last.Attempt
		require.Equal(t, 2, attempt)
		for range 3 {
			for n := 1; n <= 3; n++ {
				r.event(
					"mg",
					b.ID.Log(n),
					models.Event{ID: fmt.Sprint(n), Attempt: attempt, Kind: models.Delivered, At: time.Now()},
				)
			}
		}
		r.done(b)
		r.workedOff()
		all := gathered(t, reg)
		require.InDelta(t, 3, value(all, "safedelivr_log_state_changes_total", "delivered"), 0)
		require.InDelta(t, 3, value(all, "safedelivr_events_total", "mg", "delivered"), 0)
		require.EqualValues(
			t,
			3,
			all["safedelivr_accept_to_delivered_seconds"].GetMetric()[0].GetHistogram().GetSampleCount(),
		)
		require.InDelta(t, 0, value(all, "safedelivr_attempts_total", "mg", "unavailable"), 0)
		require.InDelta(t, 1, value(all, "safedelivr_attempts_total", "mg", "accepted"), 0)
		for _, name := range []string{"safedelivr_call_duration_seconds", "safedelivr_accept_to_provider_seconds"} {
			require.EqualValues(t, 1, all[name].GetMetric()[0].GetHistogram().GetSampleCount(), name)
		}
		require.EqualValues(t, 3, r.engine.State().Providers[0].Counters.Delivered)
		require.EqualValues(t, 1, r.engine.State().Providers[0].Counters.Calls)
	})
}

// TestRejectedKeyIsReported: a rejected key is an error in the log, and a state in the metrics.
func TestRejectedKeyIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		reg := prometheus.NewPedanticRegistry()
		cfg := fast()
		cfg.Metrics, cfg.Hold, cfg.Logger = reg, time.Hour, slog.New(slog.NewJSONHandler(&out, nil))
		r := newRig(t, cfg, nil, newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			parts := part(models.AccountClass, c)
			parts[0].Text = "the key was revoked"
			return parts
		}), newScripted("mg", always(models.Accepted)))
		r.done(r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} }))
		all := gathered(t, reg)
		require.InDelta(t, 1, value(all, "safedelivr_provider_state", "sg", telemetry.Suspended), 0)
		require.InDelta(t, 0, value(all, "safedelivr_provider_state", "sg", telemetry.Healthy), 0)
		require.Regexp(
			t,
			`"level":"ERROR","msg":"provider suspended: it rejects its credentials or quota","provider":"sg",`+
				`"why":"the key was revoked"`,
			out.String(),
		)
	})
}

// lockedBuffer is a buffer that several goroutines may use.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// value returns the sample whose labels have these values; -1: there is none.
func value(families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	for _, m := range families[name].GetMetric() {
		have := map[string]bool{}
		for _, l := range m.GetLabel() {
			have[l.GetValue()] = true
		}
		ok := true
		for _, l := range labels {
			ok = ok && have[l]
		}
		if ok {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return -1
}
