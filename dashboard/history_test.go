package dashboard

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// happened stores the history of a worker: what happened at a provider some time ago.
func (f *rig) happened(worker string, ago time.Duration, provider string, change func(*telemetry.ProviderTally)) {
	f.Helper()
	at := time.Now().UTC().Add(-ago)
	h := telemetry.HistoryHour{}
	change(h.At(provider, at.Minute()))
	require.NoError(
		f,
		f.store.PutTransient(f.Context(), telemetry.HistoryKind(at), worker, h.Encode(), telemetry.HistoryKept),
	)
}

// TestHistoryWithoutScript checks that the ranges are links and that a table has every
// figure.
func TestHistoryWithoutScript(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, nil)
		b := f.byLink(login.LocalUser())
		require.Contains(t, b.get("/providers").text, "No messages were sent in the last hour")
		f.happened("one", 0, "sg", func(t *telemetry.ProviderTally) {
			t.Calls, t.Accepted, t.Refused, t.Delivered = 3, 1111, 222, 1010
			t.Answers.Add(250 * time.Millisecond)
			t.Delivery.Add(8 * time.Second)
		})
		f.happened("two", 5*time.Hour, "mg", func(t *telemetry.ProviderTally) {
			t.Calls, t.Accepted, t.Unknown = 1, 3333, 44
		})
		for back, others := range map[string]bool{
			"": false, "hour": false, "nonsense": false,
			"day": true, "week": true, "month": true,
		} {
			time.Sleep(2 * time.Second)
			text := b.get("/providers?range=" + back).text
			require.Contains(t, text, web.Num(1111), back)
			require.Contains(t, text, web.Num(222), back)
			require.Contains(t, text, web.Num(1010), back)
			require.Equal(t, others, strings.Contains(text, web.Num(3333)), back)
			shown := back
			if back == "" || back == "nonsense" {
				shown = "hour"
			}
			require.Contains(t, text, `href="/providers?range=`+shown+`#history" aria-current="true"`)
			require.Contains(t, text, `sse-connect="/live/providers?range=`+shown+`"`)
			require.Equal(t, 1, strings.Count(text, `aria-current="true"`), back)
		}
	})
}

// TestHistoryIsShared checks that all pages share one history until it changes.
func TestHistoryIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, nil)
		view := func() *providers.HistoryView {
			v, err := f.board.providers.History(t.Context(), client.Day)
			require.NoError(t, err)
			return v
		}
		first := view()
		require.Same(t, first, view())
		time.Sleep(2 * time.Second)
		require.Same(t, first, view(), "an unchanged history was rendered again")
		f.happened("one", time.Minute, "sg", func(t *telemetry.ProviderTally) { t.Calls++ })
		require.Same(t, first, view(), "the history was read again too soon")
		time.Sleep(2 * time.Second)
		require.NotSame(t, first, view())
		f.byLink(login.LocalUser()).live("/live/providers?range=day").until("event: history")
	})
}

// TestRatesOverTime: the history has the shares of delivered and deferred messages of each provider
// by step, with a gap where nothing was reported, and in the table.
func TestRatesOverTime(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	f.happened("one", 0, "sg", func(t *telemetry.ProviderTally) {
		t.Calls, t.Accepted, t.Delivered, t.Failed, t.Deferred = 1, 8, 6, 2, 12
	})
	f.happened("two", 0, "mg", func(t *telemetry.ProviderTally) { t.Calls, t.Accepted, t.Failed = 1, 5, 5 })
	v, err := f.board.providers.History(t.Context(), client.Hour)
	require.NoError(t, err)
	values := func(c *chart.Chart, provider string) []float64 {
		i := slices.IndexFunc(c.Series, func(s chart.Series) bool { return strings.HasSuffix(s.Label, " "+provider) })
		return slices.DeleteFunc(slices.Clone(c.Series[i].Values), func(n float64) bool { return n == -1 })
	}
	require.Len(t, v.Delivered.Series[0].Values, 60)
	require.Equal(t, []float64{75}, values(&v.Delivered, "sg"))
	require.Equal(t, []float64{150}, values(&v.Deferred, "sg"))
	require.Equal(t, []float64{0}, values(&v.Delivered, "mg"), "nothing was delivered, which is no gap")
	text := f.byLink(login.LocalUser()).get("/providers").text
	for _, want := range []string{">75 %<", ">150 %<", ">0 %<"} {
		require.Contains(t, text, want)
	}
}

// TestQueueAge checks that operators see the age of the oldest message of a queue.
func TestQueueAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, nil)
		b := f.byLink(login.LocalUser())
		f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
		synctest.Wait() // until the batch is announced
		require.Contains(t, b.get("/operations").text, ">unknown<")
		f.put(telemetry.QueuesReport, "w", telemetry.QueueTimes{"batch.urgent": time.Now().Add(-3 * time.Hour)})
		require.Contains(t, b.get("/operations").text, "≤ 3 h")
	})
}

// TestOpenCallsAreShown: the page of a batch counts a call without an outcome at its provider before the sums have it.
func TestOpenCallsAreShown(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	to := []service.Recipient{{Email: "ann@example.com"}, {Email: "bob@example.com"}, {Email: "eve@example.com"}}
	id := f.batchOf("local", nil, to...)
	page := "/batches/" + id.String()
	require.Contains(t, b.get(page).text, "Not handed to a provider yet.")
	for n, ends := range []time.Duration{-time.Hour, time.Hour} {
		require.NoError(t, f.store.Append(t.Context(), id, models.Entry{
			Number: n + 1, Token: models.NewToken(), Kind: models.Attempt, At: time.Now().UTC(), Provider: "sg",
			Recipients: []models.Set{models.SetOf(1, 2), models.SetOf(3)}[n], CallEnds: time.Now().Add(ends).UTC(),
		}))
	}
	text := b.get(page).text
	for _, want := range []string{`provider=sg#logs">3<`, `result=unknown#logs">2<`, `result=pending#logs">1<`} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "Not handed to a provider yet.")
	require.Contains(t, text, "The provider has not answered yet.")
}
