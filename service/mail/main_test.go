package mail

import (
	"testing"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }
