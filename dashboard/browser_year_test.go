//go:build browser

package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// seedYear stores a year of mail: a batch of tens of thousands on each working day, a small one at
// weekends, with the tags and reasons of a shop. The last one is not done.
func (f *rig) seedYear(now time.Time) {
	f.Helper()
	for ago := range 365 {
		at := models.DayOf(now).AddDate(0, 0, -ago).Add(time.Duration(ago*7%600) * time.Minute)
		if at.After(now) {
			at = now
		}
		n := 20_000 + int64(ago*7919%13_000)
		if day := at.Weekday(); day == time.Saturday || day == time.Sunday {
			n /= 20
		}
		tag := []string{"invoice", "newsletter", "reminder"}[ago%3]
		b := models.Batch{ID: models.NewBatchID(at), User: "local", Lane: models.Bulk, Recipients: int(n), Chunks: 1,
			Groups: []models.Group{{Kind: models.BySender, Name: "example.com"}, {Kind: models.ByTag, Name: tag}},
			Content: models.Content{From: models.Address{Name: "Shop", Email: "shop@example.com"}, Tags: []string{tag},
				Subject: fmt.Sprintf("The %s of %s", tag, at.Format("2 January")), Text: "t"}}
		require.NoError(f, f.store.PutBatch(f.Context(), b, models.Chunk{ID: b.ID,
			Recipients: []models.Recipient{{Email: "ann@example.org"}}}))
		failed, rerouted, queued := n/70, n/int64(9+ago%40), int64(0)
		if ago == 0 {
			queued = n / 3
		}
		sum := models.Summary{Version: 1, Batches: 1, Accepted: n, Success: n - failed - queued, Failed: failed,
			Queued: queued, Untried: queued, Rerouted: rerouted, In: b.Groups,
			Reasons: map[models.Reason]int64{
				models.MailboxInvalid: failed * 2 / 3,
				models.PolicyContent:  failed - failed*2/3,
			},
			Events: map[models.EventKind]int64{
				models.Delivered: n - failed - queued,
				models.Bounced:   failed,
				models.Opened:    n / 3,
			},
			Providers: map[string]models.ProviderCounts{
				"sg": {Tried: n - queued, Delivered: n - failed - queued - rerouted, Refused: rerouted, Failed: failed},
				"mg": {Tried: rerouted, Delivered: rerouted},
			}}
		require.NoError(
			f,
			f.store.PutSummaries(f.Context(), models.ChunkSummary{User: "local", Chunk: b.ID, Summary: sum}),
		)
		for _, level := range models.Levels {
			err := f.store.RollUp(f.Context(), models.SpanOf("local", level, at))
			require.NoError(f, err)
		}
	}
}

// TestBrowserYear looks at the pages of a user who has sent mail for a year.
func TestBrowserYear(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	now := time.Now()
	f.seedYear(now)
	b := f.logIn(f.url)
	year := now.UTC().AddDate(-1, 0, 1).Format(time.DateOnly)
	for name, path := range map[string]string{
		"year-overview":   "/",
		"year-batches":    "/batches?size=100",
		"year-statistics": "/statistics?by=tag&from=" + year,
		"year-tag":        "/statistics?by=tag&name=invoice&from=" + year,
	} {
		b.lookAround(name, path)
	}
	b.emulate(1440, "light")
	b.open("/statistics?from=" + year)
	b.sees(fmt.Sprintf(", %s –", year[:4])) // the days of another year have it
	b.until(`document.querySelector("[data-chart] canvas")`)
	b.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, eval[float64](b, `(() => {
		const over = document.querySelector("[data-chart] .u-over").getBoundingClientRect();
		window.middle = over.top + over.height / 2;
		return over.left + over.width / 2;
	})()`), eval[float64](b, "window.middle")))
	b.until(`!document.querySelector(".chart-tip").hidden`)
	tip := eval[string](b, `document.querySelector(".chart-tip").innerText`)
	require.Regexp(t, `^Mon, .+ – Sun, .+\n`, tip, "a bar is a week where a day has no room")
	require.Empty(t, b.complaints())
}
