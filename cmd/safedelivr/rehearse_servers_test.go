//go:build full

package main

import (
	"testing"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// TestRehearseOnServers is TestRehearse with RabbitMQ and Cassandra.
func TestRehearseOnServers(t *testing.T) {
	t.Setenv(childMark, "1")
	rehearse(t, testkit.Servers())
}
