package providers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/operate"
)

// TestLacksWebhook checks that a provider is reported as lacksWebhook only if it accepted mail a
// while ago and has never sent a webhook.
func TestLacksWebhook(t *testing.T) {
	t.Parallel()
	now := time.Now()
	after := func(ds ...time.Duration) (h []sample) {
		for i, d := range ds {
			h = append(h, sample{at: now.Add(d), accepted: int64(10 * i)})
		}
		return h
	}
	hook := web.Provider{Webhooks: true}
	for name, c := range map[string]struct {
		last    time.Time
		info    web.Provider
		history []sample
		want    bool
	}{
		"no samples":             {info: hook},
		"accepted nothing":       {info: hook, history: after(0)},
		"accepted mail just now": {info: hook, history: after(0, time.Second, 30*time.Second)},
		"accepted mail long ago": {info: hook, history: after(0, time.Second, 2*time.Minute), want: true},
		"sent a webhook":         {info: hook, history: after(0, time.Second, 2*time.Minute), last: now},
		"has no webhooks":        {history: after(0, time.Second, 2*time.Minute)},
	} {
		require.Equal(t, c.want, lacksWebhook(&operate.Provider{LastWebhook: c.last}, &c.info, c.history), name)
	}
}

// TestLateSampleIsNotShown: a sample that began before a command, and ends after the page of the command was made, does
// not bring back what was before.
func TestLateSampleIsNotShown(t *testing.T) {
	t.Parallel()
	in := func(state string) []operate.Provider {
		return []operate.Provider{{Name: "sg", Health: &telemetry.Health{State: state}}}
	}
	shown := &tracker{history: map[string][]sample{}}
	late, command := shown.begun.Add(1), shown.begun.Add(1)
	shown.take(command, time.Now(), in(telemetry.Offline), nil)
	shown.take(late, time.Now(), in(telemetry.Healthy), nil)
	require.Equal(t, telemetry.Offline, shown.providers[0].Health.State)
	shown.take(late, time.Now(), nil, models.ErrUnavailable)
	require.NoError(t, shown.err)
}
