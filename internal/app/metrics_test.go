package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
