package sqlite

import (
	"testing"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
)

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) models.Store { return newStore(b) })
}
