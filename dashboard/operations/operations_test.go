package operations

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
)

// TestManyParked checks that the page says so if it does not list all parked messages.
func TestManyParked(t *testing.T) {
	t.Parallel()
	frame, err := web.New(web.Config{
		Templates: []*web.Templates{Templates}, Providers: web.NewProviders(nil), Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	defer frame.Close()
	view := &operationsView{
		Parked: client.ParkedPage{Parked: []client.ParkedMessage{{ID: "7", Key: "batch.x", Why: "cannot be read"}}},
	}
	shown, err := frame.Parts("operations", view, "parked", "sums")
	require.NoError(t, err)
	require.NotContains(t, string(shown["parked"])+string(shown["sums"]), "more")
	view.Parked.Next = "x"
	shown, err = frame.Parts("operations", view, "parked", "sums")
	require.NoError(t, err)
	require.Contains(t, string(shown["parked"]), "safedelivr parked list --all")
	require.Contains(t, string(shown["sums"]), "1 or more")
}
