//go:build browser

package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// tabWait limits the wait for a state. It does not assert speed.
const tabWait = 3 * time.Minute

// browserTab is a browser with one page.
type browserTab struct {
	testing.TB
	ctx  context.Context
	base string
	axe  string

	mu       sync.Mutex
	troubles []string // errors in the console and violations of the policy
}

func openTab(t testing.TB, base string) *browserTab {
	t.Helper()
	path := os.Getenv("SAFEDELIVR_TEST_CHROMIUM")
	if path == "" {
		var err error
		if path, err = exec.LookPath("chromium"); err != nil {
			t.Skip("needs Chromium: apt-get install chromium, or SAFEDELIVR_TEST_CHROMIUM")
		}
	}
	axe, err := os.ReadFile(os.Getenv("SAFEDELIVR_TEST_AXE"))
	if err != nil {
		t.Skip("needs axe-core's axe.min.js: npm pack axe-core, SAFEDELIVR_TEST_AXE")
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()),
		// A frame of a preview is in the process of its page, so that tests can read it.
		chromedp.Flag("disable-features", "Translate,BlinkGenPropertyTrees,IsolateSandboxedIframes"))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser's end
		cancel()
	})
	require.NoError(t, chromedp.Do(ctx))
	b := &browserTab{TB: t, ctx: ctx, base: base, axe: string(axe)}
	console := chromedp.Console(ctx)
	go func() {
		for m, err := range console {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleException ||
				strings.Contains(m.Text, "Content Security Policy") {
				b.mu.Lock()
				b.troubles = append(b.troubles, m.Text)
				b.mu.Unlock()
			}
		}
	}()
	return b
}

// complaints returns the troubles since its last call.
func (b *browserTab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.troubles
	b.troubles = nil
	return out
}

func (b *browserTab) in(t testing.TB) *browserTab {
	return &browserTab{TB: t, ctx: b.ctx, base: b.base, axe: b.axe}
}

func (b *browserTab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, tabWait)
	defer cancel()
	require.NoError(b, chromedp.Do(ctx, steps...))
}

func (b *browserTab) open(path string) {
	b.Helper()
	if strings.HasPrefix(path, "/") {
		path = b.base + path
	}
	b.do(chromedp.Navigate(path))
}

func eval[T any](b *browserTab, script string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, tabWait)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	require.NoError(b, err, script)
	return v
}

// until waits for a condition in the page. The browser may navigate meanwhile.
func (b *browserTab) until(condition string) {
	b.Helper()
	if b.within(tabWait, condition) {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText"))
	b.Fatalf("not within %v: %s\n%s", tabWait, condition, text)
}

// within reports whether a condition becomes true within a time.
func (b *browserTab) within(wait time.Duration, condition string) bool {
	for end := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithDeadline(b.ctx, end)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+condition+")"))
		cancel()
		if err == nil && ok {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func (b *browserTab) sees(text string) {
	b.Helper()
	b.until("document.body.innerText.includes(" + quoteJS(text) + ")")
}

func (b *browserTab) at(path string) {
	b.Helper()
	b.until(isAt(path))
}

// isAt is the condition that a page whose path begins with path is complete.
func isAt(path string) string {
	return "document.readyState === 'complete' && (location.pathname + location.search).startsWith(" + quoteJS(path) + ")"
}

func quoteJS(s string) string {
	raw, _ := json.Marshal(s) // a string always encodes
	return string(raw)
}

// press clicks the visible button or link whose label begins with text. A live page may replace
// it at any time.
func (b *browserTab) press(text string) {
	b.Helper()
	b.until(`((e) => e && (e.click(), true))([...document.querySelectorAll("button, a, summary")].find((e) =>
		e.checkVisibility() && e.innerText.trim().startsWith(` + quoteJS(text) + `)))`)
}

func (b *browserTab) fill(id, value string) {
	b.Helper()
	b.do(chromedp.SetValue(chromedp.ID(id), value))
}

// typeInto changes a field as a person does, so that scripts notice it.
func (b *browserTab) typeInto(id, text string) {
	b.Helper()
	b.until(`document.getElementById(` + quoteJS(id) + `)`)
	eval[bool](
		b,
		`((e) => { e.value = `+quoteJS(text)+`; return e.dispatchEvent(new Event("input", { bubbles: true })); })(
		document.getElementById(`+quoteJS(id)+`))`,
	)
}

// look opens a page and checks its layout and its accessibility.
func (b *browserTab) look(name, path string, width int64, scheme string) {
	b.Helper()
	b.emulate(width, scheme)
	b.open(path)
	b.check(name, width, scheme)
}

// lookAround looks at a page, or at the present one if path is empty: at one width light and at another dark. Before a
// release, and for screenshots, it looks at four widths, each light and dark.
func (b *browserTab) lookAround(name, path string) {
	b.Helper()
	type view struct {
		width  int64
		scheme string
	}
	views := []view{{1440, "light"}, {390, "dark"}}
	if testkit.Full() || os.Getenv("SAFEDELIVR_TEST_SHOTS") != "" {
		views = nil
		for _, width := range []int64{1920, 1440, 1024, 390} {
			views = append(views, view{width, "light"}, view{width, "dark"})
		}
	}
	for _, v := range views {
		b.emulate(v.width, v.scheme)
		if path != "" {
			b.open(path)
		}
		b.check(name, v.width, v.scheme)
	}
}

func (b *browserTab) emulate(width int64, scheme string) {
	b.Helper()
	_, err := chromedp.Call(
		b.ctx,
		emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}},
	)
	require.NoError(b, err)
	b.do(chromedp.EmulateViewport(width, 900))
}

// fits requires that the page need not be scrolled from left to right.
func (b *browserTab) fits(width int64) {
	b.Helper()
	// A chart has its new size after the next frame.
	found := eval[int64](b, `new Promise((found) => requestAnimationFrame(() => requestAnimationFrame(() =>
		found(document.documentElement.scrollWidth))))`)
	require.LessOrEqual(b, found, width, "the page scrolls horizontally")
}

// check checks the layout and the accessibility of the present page.
func (b *browserTab) check(name string, width int64, scheme string) {
	b.Helper()
	b.until(
		`document.readyState === "complete" &&
			!(document.querySelector("[data-chart] data") && !document.querySelector("[data-chart] canvas"))`,
	)
	if width == 390 {
		b.do(chromedp.EmulateViewport(360, 900)) // the narrowest phones
		b.fits(360)
		b.do(chromedp.EmulateViewport(width, 900))
	}
	b.fits(width)
	eval[bool](b, b.axe+";true")
	found := eval[[]string](
		b,
		`axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then((r) =>
		r.violations.flatMap((v) => v.nodes.map((n) =>
			v.id + ": " + n.html.slice(0, 160) + " — " + (n.any[0] ?? n.all[0] ?? n.none[0])?.message)))`,
	)
	require.Empty(b, found)
	if folder := os.Getenv("SAFEDELIVR_TEST_SHOTS"); folder != "" {
		shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		require.NoError(b, err)
		require.NoError(b, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), shot, 0o644))
	}
}

// answer presses the main button of a confirmation: in the dialog, or on its own page
// if the script was not loaded yet.
func (b *browserTab) answer() {
	b.Helper()
	b.until(`[...document.querySelectorAll(".ask button.main")].find((e) => e.checkVisibility())`)
	eval[bool](b, `(document.querySelector(".ask button.main").click(), true)`)
}

// liveSource is the live connection of the present page.
const liveSource = `document.querySelector("[sse-connect]")["htmx-internal-data"]?.sseEventSource`

// countSilence has the page count for how many tenths of a second its live connection has been silent when it says that
// the connection is lost. It counts by a timer of its own: while the page stands still, it does not count.
func (b *browserTab) countSilence() {
	b.Helper()
	eval[bool](b, `(() => {
		const live = `+liveSource+`, lost = document.getElementById("lost");
		let tenths = 0, heard = live.heard;
		setInterval(() => {
			tenths = live.heard === heard ? tenths + 1 : 0;
			heard = live.heard;
		}, 100);
		new MutationObserver(() => { if (!lost.hidden) window.silent = tenths; }).observe(lost, { attributes: true });
		return true;
	})()`)
}

// losesConnection waits until the page says that its connection is lost, which it does within three seconds.
func (b *browserTab) losesConnection() {
	b.Helper()
	b.until(`window.silent && !document.getElementById("lost").hidden`)
	require.Less(b, eval[int](b, "window.silent"), 30)
}
