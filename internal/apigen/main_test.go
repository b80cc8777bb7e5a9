package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUpToDate: the generated files are those of the table. Run go generate ./api.
func TestUpToDate(t *testing.T) {
	t.Parallel()
	files, err := generate("../..")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s is not up to date: run go generate ./api", name)
	}
}
