package models

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeftOut(t *testing.T) {
	t.Parallel()
	c := &Content{Tags: []string{"a", "b", "c", "d"}}
	require.Empty(t, Capabilities{Tags: 4, Names: true}.LeftOut(c))
	require.Equal(t, "1 of 4 tags: it takes 3", Capabilities{Tags: 3, Names: true}.LeftOut(c))
	require.Equal(t, "the names of recipients", Capabilities{Tags: 4}.LeftOut(c))
}
