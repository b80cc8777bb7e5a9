package consumers

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestMetrics: what happened is counted, under names and labels that follow the
// conventions and hold nothing of any recipient.
func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	cfg := fast()
	cfg.Metrics, cfg.SumsPoll = reg, 50*time.Millisecond
	sg := newScripted("sg", always(models.Unavailable))
	mg := newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
		if c.Recipients[0].Recipient.Email == "nobody@x.test" {
			return part(models.RejectedRecipient, c)
		}
		return part(models.Accepted, c)
	})
	r := emptyRig(t, nil, "sg", "mg")
	account := func(p *scripted, rate, calls float64) Account {
		return Account{Provider: p, Account: models.Account{Name: p.name, Weight: 1, Concurrency: 4, ChunkLimit: 1000, Timeout: time.Second,
			Events: models.EventsNone, Rate: rate, CallRate: calls}}
	}
	r.engine = r.start(cfg, []Account{account(sg, 0, 0), account(mg, 2000, 300)})
	r.known()
	refused := r.batch(1, true, func(b *models.Batch, rs []models.Recipient) {
		b.Accounts, rs[0].Email = []string{"mg"}, "nobody@x.test"
	})
	require.EqualValues(t, 1, r.done(refused).Summary().Failed)
	b := r.batch(20, true, func(b *models.Batch, _ []models.Recipient) { b.Accounts = []string{"sg", "mg"} })
	require.EqualValues(t, 20, r.done(b).Summary().Success)
	families := map[string]*dto.MetricFamily{}
	require.Eventually(t, func() bool {
		all, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range all {
			families[f.GetName()] = f
		}
		_, err = r.store.Report(t.Context(), models.RecountReport, models.NewestRecount)
		return err == nil && value(families, "safedelivr_workers") == 1 && value(families, "safedelivr_unknown_outcomes", "held") == 0
	}, patience, 10*time.Millisecond)
	require.InDelta(t, 20, value(families, "safedelivr_attempt_recipients_total", "mg", "accepted"), 0)
	require.InDelta(t, 20, value(families, "safedelivr_attempt_recipients_total", "sg", "unavailable"), 0)
	require.InDelta(t, 1, value(families, "safedelivr_attempts_total", "sg", "unavailable"), 0)
	require.InDelta(t, 1, value(families, "safedelivr_attempts_total", "mg", "rejected_recipient"), 0)
	require.InDelta(t, 1, value(families, "safedelivr_attempts_total", "mg", "accepted"), 0)
	require.InDelta(t, 1, value(families, "safedelivr_account_state", "mg", models.Healthy), 0)
	require.InDelta(t, 20, value(families, "safedelivr_log_state_changes_total", "success", "unconfirmed"), 0)
	require.InDelta(t, 1, value(families, "safedelivr_log_state_changes_total", "failed", "mailbox_invalid"), 0, "the answer was the end of it")
	require.InDelta(t, 2000, value(families, "safedelivr_rate_limit_recipients_per_second", "mg"), 0)
	require.InDelta(t, 300, value(families, "safedelivr_rate_limit_calls_per_second", "mg"), 0)
	require.InDelta(t, 300, value(families, "safedelivr_rate_share_calls_per_second", "mg"), 0)
	require.InDelta(t, 0, value(families, "safedelivr_account_refused_senders", "mg"), 0)
	require.InDelta(t, 0, value(families, "safedelivr_conservation_difference"), 0)
	require.NotNil(t, families["safedelivr_accept_to_provider_seconds"])
	name := regexp.MustCompile(`^safedelivr_[a-z_]+$`)
	for _, f := range families {
		require.Regexp(t, name, f.GetName())
		require.NotEmpty(t, f.GetHelp())
		require.Equal(t, f.GetType() == dto.MetricType_COUNTER, strings.HasSuffix(f.GetName(), "_total"), f.GetName())
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				require.NotContains(t, l.GetValue(), "@")
				require.NotContains(t, l.GetValue(), b.ID.String())
			}
		}
	}
}

// value reads the sample whose labels have these values; -1: there is none.
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
