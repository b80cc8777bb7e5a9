package app

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
)

// The time to accept is counted once for each accepted batch, by lane, and not for refused ones.
func TestAcceptTimes(t *testing.T) {
	t.Parallel()
	a := serveApp(t, slog.New(slog.DiscardHandler), simulated.Usual.Settings("http://127.0.0.1:8025")...)
	key := newKey(t, a, models.KeyOptions{})
	for fields, status := range map[string]int{
		`"text": "t"`:                 http.StatusAccepted,
		`"text": "t", "lane": "bulk"`: http.StatusAccepted,
		`"lane": "bulk"`:              http.StatusUnprocessableEntity,
	} {
		body := `{"from": "a@example.com", "to": ["b@example.com"], "subject": "s", ` + fields + `}`
		url := "http://" + a.Addr() + "/v1/batches"
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, status, resp.StatusCode, body)
	}
	families, err := a.metrics.Gather()
	require.NoError(t, err)
	counts := map[string]uint64{}
	for _, f := range families {
		if f.GetName() == "safedelivr_accept_seconds" {
			for _, m := range f.GetMetric() {
				h := m.GetHistogram()
				counts[m.GetLabel()[0].GetValue()] = h.GetSampleCount()
				require.Less(t, h.GetSampleSum(), 60*float64(h.GetSampleCount()), "seconds")
			}
		}
	}
	require.Equal(t, map[string]uint64{"urgent": 1, "bulk": 1}, counts)
}

func TestDiskMetrics(t *testing.T) {
	t.Parallel()
	values := func(dir string) map[string]float64 {
		reg := newRegistry()
		reg.MustRegister(diskMetrics(dir, 1000)...)
		families, err := reg.Gather()
		require.NoError(t, err)
		found := map[string]float64{}
		for _, f := range families {
			found[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		return found
	}
	v := values(t.TempDir())
	require.Positive(t, v["safedelivr_disk_free_bytes"])
	require.InDelta(t, 1000, v["safedelivr_disk_reserve_bytes"], 0)
	v = values("/does/not/exist")
	require.InDelta(t, -1, v["safedelivr_disk_free_bytes"], 0)
}
