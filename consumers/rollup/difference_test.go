package rollup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestDifferenceText: the text of a difference names the parts that differ, even if the
// states are equal.
func TestDifferenceText(t *testing.T) {
	t.Parallel()
	d := Difference{
		What:    "chunk",
		User:    "u",
		ID:      "x",
		Shown:   models.Summary{Accepted: 2, Failed: 2, Reasons: map[models.Reason]int64{models.Expired: 2}, Rerouted: 1},
		Counted: models.Summary{Accepted: 2, Failed: 2, Reasons: map[models.Reason]int64{models.Virus: 2}},
	}
	require.Equal(t, "chunk x of user u: "+
		"shown accepted 2 = queued 0 + sent 0 + delivered 0 + failed 2 + cancelled 0, rerouted 1, reasons map[expired:2]; "+
		"counted accepted 2 = queued 0 + sent 0 + delivered 0 + failed 2 + cancelled 0, rerouted 0, reasons map[virus:2]",
		d.String())
}
