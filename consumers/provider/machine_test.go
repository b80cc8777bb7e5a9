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

	retract := func(_ *testing.T, m *machine, now time.Time) { m.retract("w", now) }
	leave := func(_ *testing.T, m *machine, now time.Time) { m.forget("w", now) }
	report := func(_ *testing.T, m *machine, now time.Time) { m.report(now) }
	var (
		rejected   = ends(telemetry.Rejected)
		asksToWait = ends(telemetry.RetryAfter)
		isSilent   = ends(telemetry.Silence)
		peerFails  = peer(suspended(telemetry.CallsFailed))
		peerWaits  = peer(suspended(telemetry.RetryAfter))
		peerProbes = peer(Finding{State: telemetry.Probing, Source: telemetry.Rejected})
		fails1     = result(failedWhole)
		answers    = result(answered)
		failsAgain = result(failedUnknown)
	)

	for name, c := range map[string]struct {
		events []event
		state  string
		source string
	}{
		"nothing happened":              {nil, telemetry.Healthy, ""},
		"a call fails":                  {[]event{fails1}, telemetry.Failing, telemetry.CallsFailed},
		"a call succeeds again":         {[]event{fails1, answers}, telemetry.Healthy, ""},
		"calls fail":                    {[]event{fails}, telemetry.Suspended, telemetry.CallsFailed},
		"a pause ends":                  {[]event{fails, wait}, telemetry.Probing, telemetry.CallsFailed},
		"a probe fails":                 {[]event{fails, wait, failsAgain}, telemetry.Suspended, telemetry.CallsFailed},
		"a probe is answered":           {[]event{fails, wait, answers}, telemetry.Healthy, ""},
		"key rejected":                  {[]event{rejected}, telemetry.Suspended, telemetry.Rejected},
		"key tried again":               {[]event{rejected, wait}, telemetry.Probing, telemetry.Rejected},
		"asked to wait":                 {[]event{asksToWait}, telemetry.Suspended, telemetry.RetryAfter},
		"waited as asked":               {[]event{asksToWait, wait}, telemetry.Healthy, ""},
		"silent":                        {[]event{isSilent}, telemetry.Suspended, telemetry.Silence},
		"silent, tried again":           {[]event{isSilent, wait}, telemetry.Probing, telemetry.Silence},
		"silent, answers":               {[]event{isSilent, wait, answers}, telemetry.Probation, telemetry.Silence},
		"silent, answers and reports":   {[]event{isSilent, wait, answers, report}, telemetry.Healthy, ""},
		"a peer's calls fail":           {[]event{peerFails}, telemetry.Suspended, telemetry.CallsFailed},
		"a peer is trusted no longer":   {[]event{peerFails, wait}, telemetry.Probing, telemetry.CallsFailed},
		"a peer was asked to wait":      {[]event{peerWaits}, telemetry.Suspended, telemetry.RetryAfter},
		"a peer waited as asked":        {[]event{peerWaits, wait}, telemetry.Healthy, ""},
		"a peer probes":                 {[]event{peerProbes}, telemetry.Probing, telemetry.Rejected},
		"a peer reports it healthy":     {[]event{peerFails, retract}, telemetry.Healthy, ""},
		"a peer leaves":                 {[]event{peerFails, leave}, telemetry.Probing, telemetry.CallsFailed},
		"a probe is commanded":          {[]event{rejected, probe}, telemetry.Probing, telemetry.Rejected},
		"a probe of a healthy provider": {[]event{probe}, telemetry.Healthy, ""},
		"the later end counts":          {[]event{fails, asksToWait}, telemetry.Suspended, telemetry.RetryAfter},
		"the later end of a peer":       {[]event{fails, peerWaits}, telemetry.Suspended, telemetry.RetryAfter},
		"a wait keeps the probe":        {[]event{fails, asksToWait, wait}, telemetry.Probing, telemetry.CallsFailed},
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

// Queries change nothing, also those about another time.
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
