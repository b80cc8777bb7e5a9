package notices

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestNoticesOfConditions: operators are notified of what keeps the installation from working, once, and when it is
// over. A worker that takes over repeats nothing.
func TestNoticesOfConditions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin, end  func(*fixture)
		began, over models.NoticeKind
		provider    string
		why         []string
	}{
		"no provider": {
			begin: func(f *fixture) { f.reports("a", f.is(telemetry.Failing, 0), f.is(telemetry.Suspended, 0)) },
			end:   func(f *fixture) { f.reports("a", f.is(telemetry.Healthy, 0), f.is(telemetry.Suspended, 0)) },
			began: models.SendingStopped, over: models.SendingResumed,
		},
		"webhooks": {
			begin: func(f *fixture) {
				f.put(telemetry.RefusedReport, "w/sg", telemetry.Refused{
					Provider: "sg", Code: "bad_signature", Posts: 1913, Since: f.now, Last: f.now,
				})
			},
			end:   func(f *fixture) { f.put(telemetry.RefusedReport, "w/sg", telemetry.Refused{Provider: "sg"}) },
			began: models.WebhooksRefused, over: models.WebhooksAccepted, provider: "sg",
			why: []string{"1913 posts", "SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY"},
		},
		"disk": {
			begin: func(f *fixture) {
				f.put(telemetry.DiskReport, "w", telemetry.Disk{Folder: "/data", Free: 5 << 20, Reserve: 1 << 30, Since: f.now})
			},
			end:   func(f *fixture) { f.put(telemetry.DiskReport, "w", telemetry.Disk{}) },
			began: models.AcceptanceStopped, over: models.AcceptanceResumed,
			why: []string{"/data has 5.0 MiB free", "reserve is 1.0 GiB"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.reports("a", f.is(telemetry.Healthy, 0), f.is(telemetry.Healthy, 0))
			a, b := f.watch(f.store), f.watch(f.store)
			f.rounds(a, 2)
			c.begin(f)
			of := func(kind models.NoticeKind) (out []models.Notice) {
				for _, n := range f.published() {
					if n.Kind == kind {
						out = append(out, n)
					}
				}
				return out
			}
			f.rounds(a, 3)
			require.Empty(t, of(c.began), "it may be for a moment")
			f.rounds(a, 10)
			f.rounds(b, 10)
			require.Len(t, of(c.began), 1)
			require.Equal(t, c.provider, of(c.began)[0].Provider)
			for _, part := range c.why {
				require.Contains(t, of(c.began)[0].Text(), part)
			}
			c.end(f)
			f.rounds(b, 1)
			require.Empty(t, of(c.over), "it may come back")
			f.rounds(b, 10)
			f.rounds(a, 10)
			require.Len(t, of(c.over), 1)
			require.Len(t, of(c.began), 1)
		})
	}
}

// TestRefusedByOneReceiver: posts that one receiver refuses are a condition although another accepts some, for a while.
func TestRefusedByOneReceiver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reports("a", f.is(telemetry.Healthy, 0), f.is(telemetry.Healthy, 0))
	w := f.watch(f.store)
	f.put(telemetry.RefusedReport, "w/sg", telemetry.Refused{Provider: "sg", Posts: 3, Since: f.now, Last: f.now})
	f.put(telemetry.LastReceived, "sg", f.now.Add(time.Second))
	f.rounds(w, 2)
	require.Len(t, w.conditions, 2)
	require.Equal(t, condition.WebhooksRefused, w.conditions[0].Kind)
	require.Equal(t, condition.NoNotices, w.conditions[1].Kind, "there is no endpoint")
	f.now = f.now.Add(time.Hour)
	f.rounds(w, 1)
	require.Len(t, w.conditions, 1)
	require.Equal(t, condition.NoNotices, w.conditions[0].Kind)
}
