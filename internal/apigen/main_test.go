package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
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
		testkit.SameLines(t, strings.Split(string(want), "\n"), strings.Split(string(got), "\n"),
			name+" is not up to date: run go generate ./api")
	}
}

// whose has the name of a struct of service/endpoints.
type whose struct {
	Installation bool `query:"installation"`
}

// TestFlagTextsOfEqualNames: a struct takes no comments from one of its name in another package.
func TestFlagTextsOfEqualNames(t *testing.T) {
	t.Parallel()
	words := comments{root: "../.."}
	want, err := flagTexts(service.Operations(&service.Service{}), &words)
	require.NoError(t, err)
	require.Contains(t, string(want), "service/endpoints.whose.Installation")
	other := operation.Reading(operation.Operation{Name: "x", Route: "GET /v1/x"},
		func(context.Context, caller.Caller, *whose) (operation.Nothing, error) {
			return operation.Nothing{}, nil
		})
	got, err := flagTexts(append(service.Operations(&service.Service{}), other), &words)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "the other one takes none")
}
