//go:build browser

package unsubscribe

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// TestBrowserUnsubscribe unsubscribes and undoes it in a browser without JavaScript, as wide as a
// telephone, in light and in dark colours. See dashboard's browser tests for the variables.
func TestBrowserUnsubscribe(t *testing.T) {
	r := newRig(t)
	axe, err := os.ReadFile(os.Getenv("SAFEDELIVR_TEST_AXE"))
	require.NoError(t, err, "SAFEDELIVR_TEST_AXE must name axe.min.js of axe-core")
	path := cmp.Or(os.Getenv("SAFEDELIVR_TEST_CHROMIUM"), "chromium")
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser's end
		cancel()
	})
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(390, 700)))
	scripts(ctx, t, false)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(r.link(1, "ann@example.com"))))
	look(ctx, t, string(axe), "ask", "Unsubscribe?")
	require.Empty(t, r.entries("ann@example.com"))
	press(ctx, t)
	look(ctx, t, string(axe), "done", "You are unsubscribed")
	require.Len(t, r.entries("ann@example.com"), 1)
	press(ctx, t)
	look(ctx, t, string(axe), "again", "You are subscribed again")
	require.Empty(t, r.entries("ann@example.com"))
}

// look waits for a page with a heading, and checks its layout and its accessibility.
func look(ctx context.Context, t *testing.T, axe, name, heading string) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.querySelector('h1')?.innerText ?? ''"))
		return err == nil && text == heading
	}, 3*time.Minute, 20*time.Millisecond, heading)
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	require.NoError(t, err)
	require.Contains(t, text, "mail of the kind “news” from shop@example.com")
	width, err := chromedp.Run(ctx, chromedp.Evaluate[int64]("document.documentElement.scrollWidth"))
	require.NoError(t, err)
	require.LessOrEqual(t, width, int64(390), "the page scrolls horizontally")
	scripts(ctx, t, true) // axe-core waits for timers
	defer scripts(ctx, t, false)
	for _, scheme := range []string{"light", "dark"} {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		require.NoError(t, err)
		_, err = chromedp.Run(ctx, chromedp.Evaluate[bool](axe+";true"))
		require.NoError(t, err)
		wrong, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](
			`axe.run().then((r) => r.violations.map((v) => v.id + ": " + v.help))`, chromedp.EvalAwaitPromise))
		require.NoError(t, err)
		require.Empty(t, wrong, "%s, %s", name, scheme)
		if folder := os.Getenv("SAFEDELIVR_TEST_SHOTS"); folder != "" {
			shot, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
			require.NoError(t, err)
			file := filepath.Join(folder, fmt.Sprintf("unsubscribe-%s-%s.png", name, scheme))
			require.NoError(t, os.WriteFile(file, shot, 0o600))
		}
	}
}

// scripts lets the browser run scripts of pages, or not.
func scripts(ctx context.Context, t *testing.T, on bool) {
	t.Helper()
	_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: !on})
	require.NoError(t, err)
}

// press presses the button of the page.
func press(ctx context.Context, t *testing.T) {
	t.Helper()
	_, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("(document.querySelector('button').click(), true)"))
	require.NoError(t, err)
}
