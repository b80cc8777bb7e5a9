package overview

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
)

// TestOverviewTiles: a tile has a line of its count in the last 30 days.
func TestOverviewTiles(t *testing.T) {
	t.Parallel()
	days := []client.DayCounts{{Counts: client.Counts{Accepted: 3, Delivered: 2, Failed: 1}}, {Counts: client.Counts{}}}
	require.Equal(t, []float64{3, 0}, eachDay(days, "accepted"))
	require.Equal(t, []float64{2, 0}, eachDay(days, "delivered"))
	require.Equal(t, []float64{1, 0}, eachDay(days, "failed"))
	require.Equal(t, []float64{0, 0}, eachDay(days, "rerouted"))
	frame, err := web.New(web.Config{
		Templates: []*web.Templates{Templates}, Providers: web.NewProviders(nil), Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	defer frame.Close()
	page, err := frame.Parts("overview", &overviewView{Days: days}, "today")
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(page["today"]), "<polyline"))
}
