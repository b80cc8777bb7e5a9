//go:build browser

package dashboard

import (
	"slices"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// BenchmarkFirstPaint opens pages of the program, with a batch of 2,000 recipients, in
// a browser with its cache disabled:
//
//	go test -tags browser -run '^$' -bench FirstPaint -benchtime 20x ./dashboard
//
// paint-ms is the median time from the last byte of the response to the first
// contentful paint, answer-ms from the request to that byte. kB is the total
// transfer size.
func BenchmarkFirstPaint(b *testing.B) {
	p := startDemo(b, 2000)
	tab := openTab(b, p.base)
	tab.do(chromedp.EmulateViewport(1280, 900))
	tab.open(p.link)
	tab.sees("Overview")
	tab.open("/batches/" + p.batch)
	tab.until(`document.querySelector(".state.is-done")`)
	_, err := chromedp.Call(tab.ctx, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true})
	require.NoError(b, err)
	for _, page := range []struct{ name, path string }{
		{"overview", "/"},
		{"batch", "/batches/" + p.batch},
		{"log", "/logs/" + logOf(p.batch)},
		{"providers", "/providers"},
		{"operations", "/operations"},
	} {
		b.Run(page.name, func(b *testing.B) {
			tab := tab.in(b)
			var paint, answer, last []float64
			sum := 0.0
			for b.Loop() {
				tab.open(page.path)
				tab.until(`document.readyState === "complete" && performance.getEntriesByName("first-contentful-paint").length`)
				v := eval[[]float64](tab, `(() => {
					const n = performance.getEntriesByType("navigation")[0];
					const loaded = performance.getEntriesByType("resource").filter((r) => !r.name.includes("/live/"));
					const all = [n, ...loaded];
					const paint = performance.getEntriesByName("first-contentful-paint")[0].startTime;
					return [paint - n.responseEnd, n.responseEnd - n.requestStart,
						all.reduce((sum, r) => sum + r.transferSize, 0), n.loadEventEnd - n.responseEnd];
				})()`)
				paint, answer, last, sum = append(paint, v[0]), append(answer, v[1]), append(last, v[3]), v[2]
			}
			middle := func(all []float64) float64 {
				slices.Sort(all)
				return all[len(all)/2]
			}
			b.ReportMetric(middle(paint), "paint-ms")
			b.ReportMetric(paint[len(paint)*9/10], "paint-p90-ms")
			b.ReportMetric(middle(answer), "answer-ms")
			b.ReportMetric(middle(last), "load-ms")
			b.ReportMetric(sum/1000, "kB")
			b.ReportMetric(0, "ns/op")
		})
	}
}
