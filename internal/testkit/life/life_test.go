package life_test

import (
	"testing"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/internal/testkit/life"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// TestLife: what a mail asks of a store and a broker in its whole life is what the documents say.
func TestLife(t *testing.T) { life.Verify(t, "../../..", "any store", life.Record(t, false).Steps) }
