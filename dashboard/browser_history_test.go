//go:build browser

package dashboard

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// seedHistory stores a month of history of two providers, with an outage of one of
// them in the last hour.
func (f *rig) seedHistory(now time.Time) {
	f.Helper()
	for ago := range 30 * 24 {
		start := now.UTC().Truncate(time.Hour).Add(-time.Duration(ago) * time.Hour)
		h := telemetry.HistoryHour{}
		for minute := range 60 {
			at := start.Add(time.Duration(minute) * time.Minute)
			if at.After(now) || ago > 25 && minute%10 != 0 {
				continue
			}
			wave := 1.2 + math.Sin(float64(at.Unix())/86400*2*math.Pi-1.5) + .06*math.Sin(float64(at.Unix())/2100)
			for i, name := range []string{"mg", "sg"} {
				t, n := h.At(name, minute), int64(400*wave)/int64(i+1)
				t.Calls, t.Accepted = n/100+1, n
				down := name == "sg" && now.Sub(at) > 22*time.Minute && now.Sub(at) < 34*time.Minute
				if down {
					t.Accepted, t.Refused, t.Unknown = n/20, n*19/20, n/50
				}
				t.Delivered, t.Deferred, t.Failed = t.Accepted*97/100, n/25, t.Accepted/60
				answer := time.Duration(90+60*i)*time.Millisecond + time.Duration(20*wave)*time.Millisecond
				if down {
					answer *= 9
				}
				for k := range 5 {
					t.Answers.Add(answer * time.Duration(k+8) / 10)
					t.Delivery.Add(answer * time.Duration(12+7*k))
				}
			}
		}
		require.NoError(
			f,
			f.store.PutTransient(f.Context(), telemetry.HistoryKind(start), "w/1", h.Encode(), telemetry.HistoryKept),
		)
	}
}

// TestBrowserHistory opens the history in every range and checks that it updates by
// itself.
func TestBrowserHistory(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	now := time.Now()
	f.seedHistory(now)
	f.board.SetVerified("mg", true)
	for i, name := range []string{"mg", "sg"} {
		f.put(telemetry.LastReceived, name, now.UTC())
		f.providers(func(a *telemetry.ProviderState) {
			if a.Name == name {
				a.Health = telemetry.Health{State: telemetry.Healthy, Since: now.Add(-21 * time.Minute)}
				a.Answers, a.Reported = time.Duration(112+60*i)*time.Millisecond, time.Duration(4+4*i)*time.Second
			}
		})
	}
	link, err := f.board.LoginLink(t.Context(), login.LocalUser())
	require.NoError(t, err)
	b := openTab(t, f.url)
	b.open(link)
	b.sees("Overview")
	charts := `document.querySelectorAll("#history canvas").length === 8`
	b.lookAround("history", "/providers?range=day")
	b.until(charts)
	for _, back := range []string{"Hour", "Month"} {
		b.press(back)
		b.at("/providers?range=" + strings.ToLower(back))
		b.until(charts)
	}
	b.open("/providers")
	b.until(charts)
	b.press("Week")
	b.at("/providers?range=week")
	b.until(charts)
	b.press("As a table")
	b.until(
		`document.querySelector("#history details").open && document.querySelectorAll("#history tbody tr").length > 10`,
	)
	eval[bool](b, `(window.untouched = true)`)
	h := telemetry.HistoryHour{}
	h.At("mg", time.Now().UTC().Minute()).Unknown = 31337 // a value that is nowhere else
	require.NoError(
		t,
		f.store.PutTransient(t.Context(), telemetry.HistoryKind(time.Now()), "w/2", h.Encode(), telemetry.HistoryKept),
	)
	b.until(`[...document.querySelectorAll("#history td")].some((e) => e.innerText.includes("31,337"))`)
	b.until(charts)
	require.True(
		t,
		eval[bool](b, `window.untouched && document.querySelector("#history details").open`),
		"the page was reloaded, or the table was closed",
	)
	require.Empty(t, b.complaints())
}

// TestBrowserHourOfUser: in an outage the page of one user has the last hour by minute above the days, and updates it.
func TestBrowserHourOfUser(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	f.summed(f.mixed("local", 13))
	b := f.logIn(f.url)
	b.emulate(1280, "light")
	b.press("Mine")
	b.until(`document.querySelector("#hour canvas") &&
		document.querySelector("#hour").innerText.includes("by the minute in which mail was accepted")`)
	legend := func() string {
		return eval[string](b, `[...document.querySelectorAll("#hour .legend li")].map((e) => e.textContent).join()`)
	}
	require.Equal(t, "delivered 3,failed 6,sent 0,queued 2,cancelled 2", legend())
	require.True(t, eval[bool](b, `document.querySelector("#hour").getBoundingClientRect().bottom <
		document.querySelector("#days-title").getBoundingClientRect().top`))
	b.lookAround("overview-outage", "")
	b.emulate(1280, "light")
	f.summed(f.mixed("local", 7))
	b.until(`document.querySelector("#hour .legend").textContent.includes("delivered 5")`)
	require.Empty(t, b.complaints())
}
