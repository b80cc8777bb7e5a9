package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReportKeepsSections checks that writing the tables again keeps the sections below them.
func TestReportKeepsSections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "benchmarks.md")
	r := &report{}
	r.add(&backend{title: "embedded"}, "accept", 1, "batches/s", "")
	require.NoError(t, r.write(path, ""), "the file did not exist")
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	const own = "\n## The dashboard\n\nWords.\n\n## On reflection\n\nMore.\n"
	require.NoError(t, os.WriteFile(path, append(first, own...), 0o600))
	r.add(&backend{title: "RabbitMQ + Cassandra"}, "accept", 2, "batches/s", "")
	for range 2 {
		require.NoError(t, r.write(path, ""))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(string(text), " |\n"+own), "%s", text)
		require.Equal(t, 1, strings.Count(string(text), "## On RabbitMQ + Cassandra"))
		require.Equal(t, 1, strings.Count(string(text), "## The dashboard"))
	}
}

// TestAimIsAsserted: a figure above its aim is an error, which names the figure and the aim.
func TestAimIsAsserted(t *testing.T) {
	t.Parallel()
	r := &report{}
	l := r.add(&backend{title: "embedded"}, "urgent mail", 15, "ms", "", base{"idle", 10})
	require.NoError(t, l.atMost(1.5))
	require.EqualError(t, l.atMost(1.4), "urgent mail: idle 10.0: 1.50 of it; the aim is at most 1.4")
}
