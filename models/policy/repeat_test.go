package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestRepeat: a call of unknown outcome is made again while its key holds, evidence is waited for, and every recipient
// may still get the mail.
func TestRepeat(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	ends := at.Add(time.Minute)
	first := models.Entry{Number: 1, Kind: models.Attempt, Provider: "a", Recipients: models.SetTo(2), At: at,
		CallEnds: ends}
	again := models.Entry{Number: 2, Kind: models.Repeat, Repeats: 1, Provider: "a", Recipients: models.SetTo(2),
		CallEnds: ends.Add(time.Minute)}
	rules := control.NewFollower(nil).Rules()
	type situation struct {
		entries []models.Entry
		batch   models.Batch
		cmds    Commands
		now     time.Time
	}
	usual := func(now time.Time, entries ...models.Entry) situation {
		return situation{entries, models.Batch{ExpiresAt: at.Add(48 * time.Hour)}, Commands{Rules: rules}, now}
	}
	with := func(change func(*situation)) situation {
		s := usual(ends.Add(time.Hour/2), first)
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		situation
		keys  time.Duration
		until time.Time // of the wait; zero: the call is repeated
	}{
		"the call may run":    {usual(at, first), 24 * time.Hour, ends.Add(2 * time.Second)},
		"soon after it":       {usual(ends.Add(time.Second), first), 24 * time.Hour, ends.Add(2 * time.Second)},
		"then":                {usual(ends.Add(2*time.Second), first), 24 * time.Hour, time.Time{}},
		"the repeat may run":  {usual(ends.Add(time.Minute), first, again), 24 * time.Hour, ends.Add(70 * time.Second)},
		"then again":          {usual(ends.Add(70*time.Second), first, again), 24 * time.Hour, time.Time{}},
		"no keys":             {usual(ends.Add(2*time.Second), first), 0, ends.Add(time.Hour)},
		"the key expired":     {usual(at.Add(13*time.Minute), first), 15 * time.Minute, ends.Add(time.Hour)},
		"the key holds":       {usual(at.Add(13*time.Minute-1), first), 15 * time.Minute, time.Time{}},
		"the window ends":     {usual(ends.Add(time.Hour), first, again), 24 * time.Hour, ends.Add(61 * time.Minute)},
		"stopped":             {with(func(s *situation) { s.cmds.Rule.Waits = &models.Wait{} }), 24 * time.Hour, ends.Add(time.Hour)},
		"cancelled":           {with(func(s *situation) { s.cmds.Rule.Cancel = &models.Command{} }), 24 * time.Hour, ends.Add(time.Hour)},
		"expired":             {with(func(s *situation) { s.batch.ExpiresAt = s.now }), 24 * time.Hour, ends.Add(time.Hour)},
		"its content is gone": {with(func(s *situation) { s.batch.Redacted = true }), 24 * time.Hour, ends.Add(time.Hour)},
		"its time was moved":  {with(func(s *situation) { s.batch.DeliverAt = s.now.Add(1) }), 24 * time.Hour, ends.Add(time.Hour)},
		"a recipient of it was ended": {usual(ends.Add(time.Hour/2), first,
			models.Entry{Number: 2, Kind: models.Ending, Recipients: models.SetOf(2)}), 24 * time.Hour, ends.Add(time.Hour)},
		"a rule blocks another recipient": {with(func(s *situation) {
			s.cmds.Blocks = []models.Block{{Domain: "blocked.test"}}
			s.cmds.Recipients = []models.Recipient{{Email: "a@x.test"}, {Email: "b@blocked.test"}}
		}), 24 * time.Hour, ends.Add(time.Hour)},
		"a rule blocks them elsewhere": {with(func(s *situation) {
			s.cmds.Blocks = []models.Block{{Domain: "x.test", Provider: "b"}}
			s.cmds.Recipients = []models.Recipient{{Email: "a@x.test"}, {Email: "b@x.test"}}
		}), 24 * time.Hour, time.Time{}},
	} {
		p := New(Config{EvidenceWindow: time.Hour, Recheck: time.Minute}, []models.Provider{
			{Name: "a", KeyLifetime: c.keys}, {Name: "b"},
		})
		st := p.Plan(models.Resolve(2, c.entries, nil), &c.batch, &c.cmds, c.now)[0]
		if c.until.IsZero() {
			require.Equal(t, Call, st.Do, name)
			require.Equal(t, 1, st.Repeats, name)
			require.Equal(t, []Option{{Provider: "a"}}, st.Options, name)
			require.True(t, st.ByProvider(), name)
			require.True(t, st.InDoubt(), name)
			require.True(t, st.Until.After(c.now), name)
			continue
		}
		require.Equal(t, Wait, st.Do, name)
		require.Equal(t, models.WaitEvidence, st.Waits.Code, name)
		require.Equal(t, c.until, st.Until, name)
	}
}
