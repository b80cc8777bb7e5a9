package consumers

import (
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
	sg, mg := newScripted("sg", always(models.Unavailable)), newScripted("mg", always(models.Accepted))
	r := newRig(t, cfg, nil, sg, mg)
	r.known()
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
		return err == nil && value(families, "safedelivr_workers") == 1
	}, patience, 10*time.Millisecond)
	require.InDelta(t, 20, value(families, "safedelivr_attempt_recipients_total", "mg", "accepted"), 0)
	require.InDelta(t, 20, value(families, "safedelivr_attempt_recipients_total", "sg", "unavailable"), 0)
	require.InDelta(t, 1, value(families, "safedelivr_account_state", "mg", models.Healthy), 0)
	require.InDelta(t, 20, value(families, "safedelivr_log_state_changes_total", "success", "unconfirmed"), 0)
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
