package rabbit

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/brokertest"
)

// testURL is where scripts/services started RabbitMQ.
func testURL(t *testing.T) string {
	t.Helper()
	u := os.Getenv("SAFEDELIVR_TEST_AMQP_URL")
	if u == "" {
		t.Skip("needs RabbitMQ: start it with scripts/services up and set SAFEDELIVR_TEST_AMQP_URL")
	}
	return u
}

func openTest(t *testing.T, accounts ...string) *Broker {
	t.Helper()
	c := Config{URL: testURL(t), Prefix: "t" + models.NewUserID(), Accounts: accounts}
	b, err := Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		again, err := Open(context.Background(), c) // some tests close it
		require.NoError(t, err)
		require.NoError(t, again.Remove(context.Background()))
		require.NoError(t, again.Close())
	})
	return b
}

func TestBroker(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T, accounts ...string) models.Broker { return openTest(t, accounts...) })
}

// One node of several is enough, whichever a connection begins with.
func TestOneNodeIsEnough(t *testing.T) {
	t.Parallel()
	good, _, _ := strings.Cut(testURL(t), ",")
	for range 4 {
		c := Config{URL: "amqp://guest:guest@127.0.0.1:1/, " + good + ",amqp://guest:guest@127.0.0.1:2/", Prefix: "t" + models.NewUserID()}
		b, err := Open(t.Context(), c)
		require.NoError(t, err)
		require.NoError(t, b.Ping(t.Context()))
		_, err = b.Depths(t.Context()) // over the other connection
		require.NoError(t, err)
		require.NoError(t, b.Remove(t.Context()))
		require.NoError(t, b.Close())
	}
	_, err := Open(t.Context(), Config{URL: good + ",http://127.0.0.1"})
	require.ErrorIs(t, err, models.ErrInvalid)
}

func TestNamesAreOurs(t *testing.T) {
	t.Parallel()
	for _, q := range newTopology("sd", []string{"sg"}).names() {
		require.True(t, strings.HasPrefix(q, "sd."))
	}
}
