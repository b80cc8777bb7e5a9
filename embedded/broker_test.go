package embedded

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/brokertest"
)

func TestBroker(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T, accounts ...string) models.Broker {
		b, err := NewBroker(accounts, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	})
}
