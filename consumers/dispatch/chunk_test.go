package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestMayHaveOtherProvider: an attempt at one provider says nothing of another, even if both
// are the same domain at the same company.
func TestMayHaveOtherProvider(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg", "mg")
	b := f.batch(t, 1, models.Hold)
	f.attempted(t, b, "sg")
	c, err := f.Chunks.Load(t.Context(), b.ID)
	require.NoError(t, err)
	require.True(t, c.MayHave("sg", 1, 1))
	require.True(t, c.MayHave("sg", 1, 0))
	require.False(t, c.MayHave("sg", 1, 2))
	require.False(t, c.MayHave("mg", 1, 0))
}
