package web

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTimesInText(t *testing.T) {
	t.Parallel()
	require.Contains(t, string(timedShort("<since> 2026-11-28T10:53:41Z")),
		`&lt;since&gt; <time datetime="2026-11-28T10:53:41.000Z"`)
}
