package chart

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSparkline(t *testing.T) {
	t.Parallel()
	require.Equal(t, `<svg class="spark" viewBox="0 0 2 16" preserveAspectRatio="none" aria-hidden="true">`+
		`<polyline points="0,15.0 1,1.0 2,8.0"/></svg>`, string(Sparkline([]float64{0, 4, 2})))
	require.Empty(t, Sparkline([]float64{0, 0}), "nothing happened")
	require.Empty(t, Sparkline([]float64{5}))
}
