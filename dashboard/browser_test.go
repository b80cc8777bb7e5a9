//go:build browser

package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// These tests drive a real browser: scripts/test runs them with
//
//	SAFEDELIVR_TEST_CHROMIUM   the browser; default: chromium in the path
//	SAFEDELIVR_TEST_AXE        axe.min.js of axe-core
//	SAFEDELIVR_TEST_SHOTS      a folder for screenshots of every page; may be empty

// tabWait bounds the wait for a state; it is no assertion about speed.
const tabWait = 60 * time.Second

// browserTab is a browser with one page.
type browserTab struct {
	testing.TB
	ctx  context.Context
	base string
	axe  string

	mu       sync.Mutex
	troubles []string // what the console and the policy complained about
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
		chromedp.NoSandbox, chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()))...)
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

// complaints returns what was complained about since it was called last.
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

// until waits for a condition in the page; it may lead to other pages meanwhile.
func (b *browserTab) until(condition string) {
	b.Helper()
	for end := time.Now().Add(tabWait); ; time.Sleep(50 * time.Millisecond) {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+condition+")"))
		if err == nil && ok {
			return
		}
		if time.Now().After(end) {
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText"))
			b.Fatalf("not within %v: %s\n%s", tabWait, condition, text)
		}
	}
}

func (b *browserTab) sees(text string) {
	b.Helper()
	b.until("document.body.innerText.includes(" + quoteJS(text) + ")")
}

func (b *browserTab) at(path string) {
	b.Helper()
	b.until(
		"document.readyState === 'complete' && (location.pathname + location.search).startsWith(" + quoteJS(path) + ")",
	)
}

func quoteJS(s string) string {
	raw, _ := json.Marshal(s) // a string always encodes
	return string(raw)
}

// press clicks on what has a text, as a person would find it.
func (b *browserTab) press(text string) {
	b.Helper()
	find := `[...document.querySelectorAll("button, a, summary")].find((e) => e.checkVisibility() && e.innerText.trim().startsWith(` + quoteJS(
		text,
	) + `))`
	b.until(find)
	eval[bool](b, "("+find+".click(), true)")
}

func (b *browserTab) fill(id, value string) {
	b.Helper()
	b.do(chromedp.SetValue(chromedp.ID(id), value))
}

// product is the real program, running its demonstration.
type product struct {
	link, base, simulator, batch string
}

func startDemo(t testing.TB, recipients int) *product {
	t.Helper()
	bin := buildProduct(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(
		ctx,
		bin,
		"demo",
		"--recipients",
		fmt.Sprint(recipients),
		"--listen",
		"127.0.0.1:0",
		"--data-dir",
		t.TempDir(),
	)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	p := &product{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		for target, pattern := range map[*string]string{&p.link: `(http://\S+/login/link\S+)`, &p.base: `^Safedelivr +(http://\S+)`, &p.simulator: `on (http://\S+)$`, &p.batch: `batch (\S{36}) accepted`} {
			if m := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text()); m != nil && *target == "" {
				*target = m[1]
			}
		}
		if p.batch != "" {
			break
		}
	}
	require.NotEmpty(t, p.batch, "the demo did not begin")
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p
}

// TestBrowser goes the ways that people go.
func TestBrowser(t *testing.T) {
	p := startDemo(t, 2000)
	b := openTab(t, p.base)
	b.open(p.link)
	b.sees("Overview")

	t.Run("watch a failover without touching anything", func(t *testing.T) {
		b := b.in(t)
		b.open("/batches")
		b.until(`document.querySelector(".batch-row")`)
		eval[bool](b, `(document.querySelector(".batch-row").click(), true)`)
		b.at("/batches/" + p.batch)
		eval[bool](b, `(window.untouched = true)`)
		b.sees("SendGrid (sg) took nothing for")
		b.until(`document.querySelector(".state.is-done")`)
		require.True(t, eval[bool](b, `window.untouched`), "the page was not loaded again")
	})

	t.Run("the story of a rerouted mail", func(t *testing.T) {
		b := b.in(t)
		rows := eval[string](b, `fetch("/batches/`+p.batch+`/export.csv").then((r) => r.text())`)
		log := ""
		for line := range strings.SplitSeq(rows, "\n") {
			if f := strings.Split(line, ","); len(f) > 8 && strings.Contains(line, ",mg sg,mg,") &&
				!strings.Contains(line, "blocked") {
				log = f[0]
			}
		}
		require.NotEmpty(t, log, "no mail went to Mailgun because SendGrid was down")
		b.open("/logs/" + log)
		b.sees("Routed to Mailgun (mg)")
		b.sees("Because sg answered 503")
		b.sees("Delivered by Mailgun (mg)")
	})

	t.Run("compose with a file", func(t *testing.T) { composeWithFile(b.in(t)) })
	t.Run("two clicks send once", func(t *testing.T) {
		b := b.in(t)
		b.open("/compose")
		require.Equal(t, 1, eval[int](b, `(() => {
			let sent = 0;
			document.addEventListener("submit", (e) => {
				if (e.submitter?.value !== "send") return;
				if (!e.defaultPrevented) sent++;
				e.preventDefault();
			});
			for (let i = 0; i < 2; i++) document.querySelector("button[value=send]").click();
			return sent;
		})()`))
	})
	t.Run("bad input stays", func(t *testing.T) {
		b := b.in(t)
		b.open("/compose")
		b.fill("from", "nobody")
		b.fill("to", "ann@example.com\nbob@d")
		b.press("Send to all")
		b.sees("What has to be mended stands beside the fields")
		b.sees("Line 2:")
		require.Equal(t, "nobody", eval[string](b, `document.getElementById("from").value`))
	})
	t.Run("keys", func(t *testing.T) { useKey(b.in(t)) })
	t.Run("a provider is tried again", func(t *testing.T) { tryAgain(b.in(t), p) })
	t.Run("a lost connection comes back", func(t *testing.T) {
		b := b.in(t)
		b.open("/")
		b.until(`document.querySelector("[sse-connect]")["htmx-internal-data"]?.sseEventSource?.readyState === 1`)
		eval[bool](
			b,
			`(window.first = document.querySelector("[sse-connect]")["htmx-internal-data"].sseEventSource, first.close(), first.onerror(new Event("error")), true)`,
		)
		b.until(
			`document.querySelector("[sse-connect]")["htmx-internal-data"].sseEventSource !== first && document.querySelector("[sse-connect]")["htmx-internal-data"].sseEventSource.readyState === 1 && document.getElementById("lost").hidden`,
		)
	})
	b.complaints()

	pages := map[string]string{
		"overview":   "/",
		"batches":    "/batches",
		"batch":      "/batches/" + p.batch,
		"log":        "/logs/" + logOf(p.batch),
		"compose":    "/compose",
		"providers":  "/providers",
		"operations": "/operations",
		"settings":   "/settings",
		"docs":       "/docs",
		"ask":        "/providers/sg/offline",
		"found":      "/batches?q=user1@demo.test",
	}
	for _, width := range []int64{1280, 390, 360} {
		for _, scheme := range []string{"light", "dark"} {
			for name, path := range pages {
				t.Run(fmt.Sprintf("%s at %d, %s", name, width, scheme), func(t *testing.T) {
					c := b.in(t)
					c.look(name, path, width, scheme)
					require.Empty(t, b.complaints(), "the console is quiet")
				})
			}
		}
	}

	t.Run("log out", func(t *testing.T) {
		b := b.in(t)
		b.do(chromedp.EmulateViewport(1280, 900))
		b.open("/")
		eval[bool](b, `(document.querySelector("form[action='/logout'] button").click(), true)`)
		b.at("/login")
		b.open("/batches")
		b.at("/login")
	})
}

// logOf is the first log of a batch.
func logOf(batch string) string { return batch[:35] + "1" }

// look opens a page and checks what can be checked of its looks.
func (b *browserTab) look(name, path string, width int64, scheme string) {
	_, err := chromedp.Call(
		b.ctx,
		emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}},
	)
	require.NoError(b, err)
	b.do(chromedp.EmulateViewport(width, 900))
	b.open(path)
	b.until(
		`document.readyState === "complete" && !(document.querySelector("[data-chart] data") && !document.querySelector("[data-chart] canvas"))`,
	)
	require.LessOrEqual(
		b,
		eval[int64](b, "document.documentElement.scrollWidth"),
		width,
		"nothing has to be scrolled sideways",
	)
	eval[bool](b, b.axe+";true")
	found := eval[[]string](
		b,
		`axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then((r) =>
		r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.html.slice(0, 160) + " — " + (n.any[0] ?? n.all[0] ?? n.none[0])?.message)))`,
	)
	require.Empty(b, found)
	if folder := os.Getenv("SAFEDELIVR_TEST_SHOTS"); folder != "" && width != 360 {
		shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		require.NoError(b, err)
		require.NoError(b, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), shot, 0o644))
	}
}

func composeWithFile(b *browserTab) {
	file := filepath.Join(b.TempDir(), "people.csv")
	require.NoError(
		b,
		os.WriteFile(file, []byte("\ufeffemail,first\r\nann@demo.test,Ann\r\nbob@demo.test,Bob\r\n"), 0o600),
	)
	b.open("/compose")
	b.fill("from", "Shop <shop@demo.test>")
	b.fill("subject", "Hello {{first}} from the browser")
	b.fill("html", "<p>Dear <b>{{first}}</b></p>")
	b.do(chromedp.SetUploadFiles(chromedp.ID("file"), []string{file}))
	b.until(`document.getElementById("to").value.includes("bob@demo.test")`)
	b.press("Send to all")
	b.at("/batches/")
	b.sees("Hello {{first}} from the browser")
	b.until(`document.querySelector(".state.is-done")`)
	b.sees("2 of 2 finished")
	b.sees("ann@demo.test")
}

func useKey(b *browserTab) {
	b.open("/settings")
	b.fill("name", "browser test")
	b.press("Make a key")
	b.until(`document.getElementById("new-key")`)
	secret := eval[string](b, `document.getElementById("new-key").textContent`)
	call := func() int {
		r, err := http.NewRequest(http.MethodGet, b.base+"/v1/batches", http.NoBody)
		require.NoError(b, err)
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Close = true
		resp, err := http.DefaultClient.Do(r)
		require.NoError(b, err)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	require.Equal(b, http.StatusOK, call())
	b.press("Revoke")
	b.press("Revoke browser test")
	b.sees("1 revoked key is not listed")
	require.Eventually(b, func() bool { return call() == http.StatusUnauthorized }, tabWait, 50*time.Millisecond)
}

// answer presses the button of a question: in the dialog, or on a page of its own
// where the script did not have the link yet.
func (b *browserTab) answer() {
	b.Helper()
	b.until(`[...document.querySelectorAll(".ask button.main")].find((e) => e.checkVisibility())`)
	eval[bool](b, `(document.querySelector(".ask button.main").click(), true)`)
}

// giveOrders keeps mail from going out, and steers it then.
func giveOrders(b *browserTab) {
	for _, name := range []string{"sg", "mg"} {
		b.open("/providers")
		eval[bool](b, `(document.querySelector("a[href='/providers/`+name+`/offline']").click(), true)`)
		b.answer()
		b.until(`!document.querySelector("a[href='/providers/` + name + `/offline']")`)
	}
	b.send("Orders", "ann@demo.test")
	order := func(button, sees string) {
		b.press(button)
		b.answer()
		b.sees(sees)
	}
	order("Stop", "Stopped: no new call")
	order("Resume", "Resumed. Nothing of it goes out yet: another order keeps it, or providers that are offline.")
	order("Cancel", "Cancelled: nothing more")
	b.until(`document.querySelector(".state.is-cancelled")`)
	for _, name := range []string{"sg", "mg"} {
		b.open("/providers/" + name + "/online")
		b.press("Bring online")
		b.until(`location.pathname === "/providers" && !document.querySelector("a[href='/providers/` + name + `/online']")`)
	}
}

// tryAgain has a provider refuse its provider, and the provider tried when that is mended.
func tryAgain(b *browserTab, p *product) {
	fault := func(method, body string) {
		r, err := http.NewRequest(method, p.simulator+"/control/faults", strings.NewReader(body))
		require.NoError(b, err)
		r.Close = true
		resp, err := http.DefaultClient.Do(r)
		require.NoError(b, err)
		require.NoError(b, resp.Body.Close())
		require.Equal(b, http.StatusOK, resp.StatusCode)
	}
	fault(http.MethodPost, `{"mode": "blocked"}`)
	b.send("Kept away", "ann@demo.test")
	b.open("/providers")
	both := `document.querySelector("a[href='/providers/sg/probe']") && document.querySelector("a[href='/providers/mg/probe']")`
	b.until(both)
	for _, width := range []int64{1280, 390} {
		b.look("kept-away", "/providers", width, "light")
	}
	b.do(chromedp.EmulateViewport(1280, 900))
	fault(http.MethodDelete, "")
	b.open("/providers")
	b.until(both)
	eval[bool](b, `(document.querySelector("a[href='/providers/sg/probe']").click(), true)`)
	b.answer()
	b.until(`!document.querySelector("a[href='/providers/sg/probe']")`)
	eval[bool](b, `(document.querySelector("a[href='/providers/mg/probe']").click(), true)`)
	b.answer()
	b.until(`!document.querySelector("a[href='/providers/mg/probe']")`)
	b.open("/batches")
	b.until(`[...document.querySelectorAll(".batch-row")].every((e) => e.querySelector(".state.is-done"))`)
}

// TestBrowserGitHub logs in through the stand-in, as somebody who is no operator.
func TestBrowserGitHub(t *testing.T) {
	f := newRig(t, &GitHub{Logins: []string{"ann"}, Operators: []string{"bob"}}, ann, bob)
	b := openTab(t, f.url)
	b.open("/compose")
	b.at("/login")
	b.press("Continue with GitHub")
	b.press("Ann")
	b.at("/compose")
	require.False(t, eval[bool](b, `document.body.innerText.includes("Operations")`))
	b.open("/operations")
	b.sees("There is nothing at this address")
	b.complaints()
	b.look("empty", "/", 1280, "light")
	b.look("login", "/login", 390, "dark")
	require.Empty(t, b.complaints())
}
