package models

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommandKinds: each kind is known once, with words.
func TestCommandKinds(t *testing.T) {
	t.Parallel()
	var kinds []CommandKind
	for kind, words := range CommandKinds() {
		require.NotEmpty(t, words, kind)
		require.NotContains(t, kinds, kind, "it is known twice")
		kinds = append(kinds, kind)
	}
	require.False(t, CommandKind("not.yet.known").Known())
	require.True(t, slices.ContainsFunc(kinds, CommandKind.Withholds))
}
