package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestInflightDeduplicates: the same work has one run at a time, which learns that the work
// was requested meanwhile.
func TestInflightDeduplicates(t *testing.T) {
	t.Parallel()
	f := newInflight()
	key := inflightKey{chunk: models.NewBatchID(time.Now()), provider: "sg"}
	first := f.begin(key)
	require.NotNil(t, first)
	require.NotNil(t, f.begin(inflightKey{chunk: key.chunk, provider: "mg"}), "another provider is other work")
	require.Nil(t, f.begin(key))
	require.Nil(t, f.begin(key))
	require.True(t, f.rerun(key, first))
	require.Nil(t, f.begin(key), "it is still running")
	require.True(t, f.rerun(key, first))
	require.False(t, f.rerun(key, first))

	second := f.begin(key)
	require.NotNil(t, second, "the first run has ended")
	require.False(t, f.end(key, first), "its end does not end the second")
	require.Nil(t, f.begin(key))
	require.True(t, f.end(key, second))
	require.NotNil(t, f.begin(key))
}
