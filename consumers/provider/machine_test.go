package provider

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestTransitions has a row for each row of the table of machine.
func TestTransitions(t *testing.T) {
	t.Parallel()
	const hold = time.Hour
	type event = func(t *testing.T, m *machine, now time.Time)
	fails := func(t *testing.T, m *machine, now time.Time) {
		m.results(t, now, failedUnknown, failedUnknown, failedUnknown)
	}
	ends := func(source string) event {
		return func(_ *testing.T, m *machine, now time.Time) {
			m.suspend(suspension{source: source, why: "so it is", until: now.Add(hold)}, now)
		}
	}
	peer := func(f Finding) event {
		return func(_ *testing.T, m *machine, now time.Time) { m.merge("w", &f, f.trustFor(testConfig()), now) }
	}
	suspended := func(source string) Finding {
		return Finding{State: telemetry.Suspended, Source: source, Why: "so it is", Left: hold}
	}
	result := func(says callSays) event {
		return func(t *testing.T, m *machine, now time.Time) { m.results(t, now, says) }
	}
	probe := func(_ *testing.T, m *machine, now time.Time) { m.probeNow(m.command+1, now) }
	wait := event(nil) // until the suspension ends

	for name, c := range map[string]struct {
		events []event
		state  string
		source string
	}{
		"nothing happened":                 {nil, telemetry.Healthy, ""},
		"calls fail":                       {[]event{fails}, telemetry.Suspended, telemetry.CallsFailed},
		"a pause ends":                     {[]event{fails, wait}, telemetry.Probing, telemetry.CallsFailed},
		"a probe fails":                    {[]event{fails, wait, result(failedUnknown)}, telemetry.Suspended, telemetry.CallsFailed},
		"a probe is answered":              {[]event{fails, wait, result(answered)}, telemetry.Healthy, ""},
		"key rejected":                     {[]event{ends(telemetry.Rejected)}, telemetry.Suspended, telemetry.Rejected},
		"key tried again":                  {[]event{ends(telemetry.Rejected), wait}, telemetry.Probing, telemetry.Rejected},
		"asked to wait":                    {[]event{ends(telemetry.RetryAfter)}, telemetry.Suspended, telemetry.RetryAfter},
		"waited as asked":                  {[]event{ends(telemetry.RetryAfter), wait}, telemetry.Healthy, ""},
		"silent":                           {[]event{ends(telemetry.Silence)}, telemetry.Suspended, telemetry.Silence},
		"silent, tried again":              {[]event{ends(telemetry.Silence), wait}, telemetry.Probing, telemetry.Silence},
		"silent, answers again":            {[]event{ends(telemetry.Silence), wait, result(answered)}, telemetry.Probation, telemetry.Silence},
		"a peer's calls fail":              {[]event{peer(suspended(telemetry.CallsFailed))}, telemetry.Suspended, telemetry.CallsFailed},
		"a peer is trusted no longer":      {[]event{peer(suspended(telemetry.CallsFailed)), wait}, telemetry.Probing, telemetry.CallsFailed},
		"a peer was asked to wait":         {[]event{peer(suspended(telemetry.RetryAfter))}, telemetry.Suspended, telemetry.RetryAfter},
		"a peer waited as asked":           {[]event{peer(suspended(telemetry.RetryAfter)), wait}, telemetry.Healthy, ""},
		"a peer probes":                    {[]event{peer(Finding{State: telemetry.Probing, Source: telemetry.Rejected})}, telemetry.Probing, telemetry.Rejected},
		"a probe is commanded":             {[]event{ends(telemetry.Rejected), probe}, telemetry.Probing, telemetry.Rejected},
		"a probe is commanded, all well":   {[]event{probe}, telemetry.Healthy, ""},
		"the suspension that ends last":    {[]event{fails, ends(telemetry.RetryAfter)}, telemetry.Suspended, telemetry.RetryAfter},
		"that of a peer may end last":      {[]event{fails, peer(suspended(telemetry.RetryAfter))}, telemetry.Suspended, telemetry.RetryAfter},
		"a wait leaves probing in effect":  {[]event{fails, ends(telemetry.RetryAfter), wait}, telemetry.Probing, telemetry.CallsFailed},
		"a peer reports it healthy":        {[]event{peer(suspended(telemetry.CallsFailed)), func(_ *testing.T, m *machine, now time.Time) { m.retract("w", now) }}, telemetry.Healthy, ""},
		"a peer leaves":                    {[]event{peer(suspended(telemetry.CallsFailed)), func(_ *testing.T, m *machine, now time.Time) { m.forget("w", now) }}, telemetry.Probing, telemetry.CallsFailed},
		"silent, answers and reports then": {[]event{ends(telemetry.Silence), wait, result(answered), func(_ *testing.T, m *machine, now time.Time) { m.report(now) }}, telemetry.Healthy, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, now := testMachine(time.Second)
			for _, e := range c.events {
				if e == nil {
					now = m.health(now).Until
				} else {
					e(t, m, now)
				}
			}
			got := m.health(now)
			require.Equal(t, c.state, got.State)
			require.Equal(t, c.source, got.Source)
			if c.state == telemetry.Suspended {
				require.NotEmpty(t, got.Why)
				require.True(t, got.Until.After(now))
			}
		})
	}
}

// Queries change nothing, whatever time they ask about.
func TestQueriesChangeNothing(t *testing.T) {
	t.Parallel()
	for _, f := range []Finding{
		{State: telemetry.Suspended, Source: telemetry.CallsFailed, Left: 5 * time.Second},
		{State: telemetry.Suspended, Source: telemetry.RetryAfter, Left: time.Hour},
		{State: telemetry.Suspended, Source: telemetry.Silence, Left: time.Hour},
	} {
		m, now := testMachine(time.Second)
		m.merge("w", &f, f.trustFor(defaultConfig()), now)
		is, later := m.health(now), now.Add(24*time.Hour)
		ok, _ := m.usable(later, false)
		require.True(t, ok, "it is over by then")
		require.NotEqual(t, telemetry.Suspended, m.health(later).State)
		m.callSize(1000, time.Minute, later)
		require.Equal(t, is, m.health(now))
		ok, _ = m.usable(now, false)
		require.False(t, ok)
	}
}
