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

// TestDeliveryTime: the time from a call to its delivery is as exact as the provider's clock allows,
// and never negative.
func TestDeliveryTime(t *testing.T) {
	t.Parallel()
	call := time.Date(2026, 1, 31, 12, 0, 0, 700_000_000, time.UTC)
	at := func(d time.Duration) time.Time { return call.Add(d) }
	for name, c := range map[string]struct {
		event, heard time.Time
		want         time.Duration
	}{
		"to a millisecond":            {at(time.Second + time.Millisecond), at(time.Minute), time.Second + time.Millisecond},
		"to a second":                 {at(300 * time.Millisecond), at(time.Minute), 800 * time.Millisecond},
		"to a second, heard at once":  {at(300 * time.Millisecond), at(400 * time.Millisecond), 350 * time.Millisecond},
		"in the second of the call":   {at(-700 * time.Millisecond), at(time.Minute), 150 * time.Millisecond},
		"by a clock that is ahead":    {at(time.Hour + 1), at(2 * time.Second), 2 * time.Second},
		"by a clock that lags behind": {at(-time.Hour + 1), at(2 * time.Second), 0},
	} {
		require.Equal(t, c.want, DeliveryTime(c.event, call, c.heard), name)
	}
}
