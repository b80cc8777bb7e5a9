package operations

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestManyParked checks that the page says so if it does not list all parked messages.
func TestManyParked(t *testing.T) {
	t.Parallel()
	view := &operationsView{
		Parked: client.ParkedPage{Parked: []client.ParkedMessage{{ID: "7", Key: "batch.x", Why: "cannot be read"}}},
	}
	shown, err := views.Parts("operations", view, "parked", "sums")
	require.NoError(t, err)
	require.NotContains(t, string(shown["parked"])+string(shown["sums"]), "more")
	view.Parked.Next = "x"
	shown, err = views.Parts("operations", view, "parked", "sums")
	require.NoError(t, err)
	require.Contains(t, string(shown["parked"]), "safedelivr parked list --all")
	require.Contains(t, string(shown["sums"]), "1 or more")
}
