package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
)

// TestRepeatIsNotCounted: a repeat that finds the batch of the first request is not another accepted batch.
func TestRepeatIsNotCounted(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	for n := range 3 {
		in := f.NewIntake(t.Context(), f.who)
		t.Cleanup(in.Close)
		in.Batch = intake.Batch{From: "a@one.example", Subject: "s", Text: "t"}
		require.NoError(t, in.Read(intake.Of(Recipient{Email: "x@y.example"})))
		_, replayed, err := f.Accept(t.Context(), f.who, in, Repeat{Key: "k", Route: "r", Hash: "h"})
		require.NoError(t, err)
		require.Equal(t, n > 0, replayed)
	}
	require.Equal(t, Tally{Batches: 1, Recipients: 1}, f.Tallies()[models.Urgent])
}
