package overview

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestOverviewTiles: a tile has a line of its count in the last 30 days.
func TestOverviewTiles(t *testing.T) {
	t.Parallel()
	days := []client.DayCounts{{Counts: client.Counts{Accepted: 3, Delivered: 2, Failed: 1}}, {Counts: client.Counts{}}}
	require.Equal(t, []float64{3, 0}, eachDay(days, "accepted"))
	require.Equal(t, []float64{2, 0}, eachDay(days, "delivered"))
	require.Equal(t, []float64{1, 0}, eachDay(days, "failed"))
	require.Equal(t, []float64{0, 0}, eachDay(days, "rerouted"))
	page, err := views.Parts("overview", &overviewView{Days: days}, "today")
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(page["today"]), "<polyline"))
}
