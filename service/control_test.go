package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/embedded/embeddedtest"
	"github.com/safedelivr/safedelivr/models"
)

// TestStopStandsEverywhere: when a stop was answered, a worker in another process,
// which reads the orders now and then, knows of it before its next call.
func TestStopStandsEverywhere(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, broker := embeddedtest.Open(t, "sg")
	s := New(Deps{Store: store, Broker: broker, Accounts: []models.Account{{Name: "sg"}}, Config: Config{SpoolDir: t.TempDir()}})
	t.Cleanup(s.Close)
	require.NoError(t, store.CreateUser(ctx, models.User{ID: "aaaa", Name: "ada", Created: time.Now().UTC()}))
	in := s.NewIntake()
	defer in.Close()
	in.SetText("from", "a@one.example")
	in.SetText("subject", "s")
	in.SetText("text", "t")
	require.NoError(t, in.Add(&Recipient{Email: "x@y.example"}))
	who := Caller{User: "aaaa", By: "aaaa", Operator: true}
	a, _, err := s.Accept(ctx, who, in, Repeat{})
	require.NoError(t, err)

	worker := models.NewJournal(store)
	know := func() *models.Rules {
		require.NoError(t, worker.Within(ctx, models.OrderAge))
		return worker.Rules()
	}
	know()
	for range 2 { // a repeat changes nothing, and says no less
		require.NoError(t, worker.Sync(ctx))
		out, _, err := s.Steer(ctx, who, models.StopBatch, a.ID.String(), "", Repeat{})
		require.NoError(t, err)
		require.Zero(t, out.InFlight)
		stopped, _ := know().Stopped(a.ID)
		require.True(t, stopped)
	}
	require.NoError(t, worker.Sync(ctx))
	_, _, err = s.SwitchAccount(ctx, who, models.AccountOffline, "sg", "", Repeat{})
	require.NoError(t, err)
	require.Equal(t, models.AccountOffline, know().Account("sg").Mode)
}
