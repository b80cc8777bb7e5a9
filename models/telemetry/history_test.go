package telemetry

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	var s Spread
	require.True(t, s.IsZero())
	require.Zero(t, s.Within(.5))
	for i := 1; i <= 1000; i++ {
		s.Add(time.Duration(i) * time.Millisecond)
	}
	for part, want := range map[float64]time.Duration{
		.1: 100 * time.Millisecond,
		.5: 500 * time.Millisecond,
		.9: 900 * time.Millisecond,
		1:  time.Second,
	} {
		require.InEpsilon(t, float64(want), float64(s.Within(part)), .2, "%v", part)
	}
	var one Spread
	one.Add(0)
	one.Add(-time.Second) // two clocks
	one.Add(1000 * time.Hour)
	require.LessOrEqual(t, one.Within(.5), 2*time.Millisecond)
	require.Greater(t, one.Within(1), 18*time.Hour)

	raw, err := json.Marshal(s)
	require.NoError(t, err)
	var back Spread
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, s, back)
	for _, bad := range []string{`[1]`, `[9999,1]`, `{}`, `[-1,1]`} {
		require.Error(t, json.Unmarshal([]byte(bad), &back), bad)
	}
	back = Spread{}
	back.Merge(&s)
	back.Merge(&s)
	require.Equal(t, s.Within(.5), back.Within(.5))
}

func TestHistoryHour(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 23, 59, 0, 0, time.FixedZone("", 3600))
	require.Equal(t, "history/2026013122", HistoryKind(at))
	h := HistoryHour{}
	h.At("sg", 59).Accepted += 3
	h.At("sg", 59).Answers.Add(time.Second)
	h.At("mg", 0).Delivered++
	h.At("mg", 0).Delivery.Add(time.Minute)
	back, err := DecodeHistory(h.Encode())
	require.NoError(t, err)
	require.Equal(t, h, back)
	var sum ProviderTally
	sum.Add(h.At("sg", 59))
	sum.Add(h.At("mg", 0))
	require.EqualValues(t, 3, sum.Accepted)
	require.EqualValues(t, 1, sum.Delivered)
	require.Equal(t, h.At("sg", 59).Answers, sum.Answers)
	_, err = DecodeHistory([]byte{0})
	require.ErrorIs(t, err, models.ErrInvalid)
}
