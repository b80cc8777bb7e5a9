package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// waiting is mail that two providers refused for a temporary reason, at noon.
type waiting struct {
	class   models.Class
	reason  models.Reason
	lane    models.Lane
	retries int
	retryAt time.Duration
	batch   models.ID
}

var noon = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// due returns when a provider may be tried again.
func (w *waiting) due(t *testing.T, rules *control.Rules, recovered ...Recovery) map[string]time.Duration {
	t.Helper()
	p := New(Config{MaxRetries: 10, Delays: []time.Duration{time.Second, time.Minute, time.Hour}},
		[]models.Provider{{Name: "a"}, {Name: "b"}})
	var entries []models.Entry
	var facts []models.Fact
	for n := 1; n <= w.retries+1; n++ {
		entries = append(entries, models.Entry{Number: n, Kind: models.Attempt, At: noon, Recipients: models.SetOf(1),
			Provider: []string{"b", "a"}[n%2], CallEnds: noon, Retry: n - 1})
		part := models.Part{Class: w.class, Reason: w.reason, Recipients: models.SetOf(1)}
		if w.retryAt > 0 {
			part.RetryAt = noon.Add(w.retryAt)
		}
		facts = append(facts, models.Fact{
			Key: models.OutcomeKey(n), Outcome: &models.Outcome{Attempt: n, At: noon, Parts: []models.Part{part}},
		})
	}
	b := &models.Batch{ID: w.batch, Lane: w.lane, ExpiresAt: noon.Add(100 * time.Hour)}
	b.Content.From.Email = "a@b.c"
	cmds := &Commands{Rule: rules.Batch(b), Rules: rules, Recovered: func(name string) []Recovery {
		if name == "a" {
			return recovered
		}
		return nil
	}}
	steps := p.Plan(models.Resolve(1, entries, facts), b, cmds, noon.Add(time.Millisecond))
	require.Len(t, steps, 1)
	require.Equal(t, Call, steps[0].Do, "%+v", steps[0])
	out := map[string]time.Duration{}
	for _, o := range steps[0].Options {
		out[o.Provider] = o.NotBefore.Sub(noon)
	}
	return out
}

// TestRecoveryEndsDelay: mail whose delay is because of a provider is due when the provider has answered another call,
// unless it failed only for a moment. A recovery from before its attempt changes nothing, nor one of another provider.
func TestRecoveryEndsDelay(t *testing.T) {
	t.Parallel()
	none := control.NewRules()
	down := waiting{class: models.Unavailable, retries: 3, lane: models.Bulk}
	at := func(from, until time.Duration) Recovery { return Recovery{From: noon.Add(from), At: noon.Add(until)} }
	for name, c := range map[string]struct {
		mail waiting
		seen []Recovery
		want time.Duration // of provider a; b keeps the delay
		b    time.Duration
	}{
		"none":                       {down, nil, bulkDelay, bulkDelay},
		"after a long outage":        {down, []Recovery{at(-time.Hour, 5*time.Second)}, 5 * time.Second, bulkDelay},
		"after a moment":             {down, []Recovery{at(-time.Second, 5*time.Second)}, 9 * time.Second, bulkDelay},
		"begun after the attempt":    {down, []Recovery{at(time.Second, 5*time.Second)}, bulkDelay / 60, bulkDelay},
		"before the attempt":         {down, []Recovery{at(-time.Hour, -time.Second)}, bulkDelay, bulkDelay},
		"by two workers":             {down, []Recovery{at(0, 20*time.Second), at(-time.Hour, 9*time.Second)}, 9 * time.Second, bulkDelay},
		"after the delay":            {down, []Recovery{at(-time.Hour, 2*time.Hour)}, bulkDelay, bulkDelay},
		"urgent while none takes it": {waiting{class: models.Unavailable, retries: 3, lane: models.Urgent}, nil, time.Minute, time.Minute},
		"urgent, a time was named": {
			waiting{class: models.Throttled, retries: 3, lane: models.Urgent, retryAt: 30 * time.Minute}, nil,
			30 * time.Minute, 30 * time.Minute,
		},
		"a time was named": {
			waiting{class: models.Throttled, retries: 3, retryAt: 24 * time.Hour}, []Recovery{at(-time.Hour, 5*time.Second)},
			5 * time.Second, 24 * time.Hour,
		},
		"the sender is refused": {
			waiting{class: models.AccountClass, reason: models.SenderNotVerified, retries: 3},
			[]Recovery{at(-time.Hour, 5*time.Second)}, time.Hour, time.Hour,
		},
	} {
		due := c.mail.due(t, none, c.seen...)
		require.Equal(t, map[string]time.Duration{"a": c.want, "b": c.b}, due, name)
	}
}

// TestCommandEndsDelay: a command after the attempt makes mail due: to probe its provider or bring it online, or to try
// its batch.
func TestCommandEndsDelay(t *testing.T) {
	t.Parallel()
	down := waiting{class: models.Unavailable, retries: 3, batch: models.NewBatchID(noon)}
	for name, c := range map[string]struct {
		command models.Command
		a, b    time.Duration
	}{
		"probe":  {models.Command{Kind: models.ProviderProbe, Provider: "a"}, 5 * time.Second, bulkDelay},
		"online": {models.Command{Kind: models.ProviderOnline, Provider: "b"}, bulkDelay, 5 * time.Second},
		"try":    {models.Command{Kind: models.TryBatch, Batch: down.batch}, 5 * time.Second, 5 * time.Second},
		"other":  {models.Command{Kind: models.TryBatch, Batch: models.NewBatchID(noon.Add(time.Hour))}, bulkDelay, bulkDelay},
	} {
		rules := control.NewRules()
		c.command.Number, c.command.At = 1, noon.Add(5*time.Second)
		require.True(t, rules.Apply(c.command))
		require.Equal(t, map[string]time.Duration{"a": c.a, "b": c.b}, down.due(t, rules), name)
	}
}
