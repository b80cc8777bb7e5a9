//go:build browser

package dashboard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/encoding/unicode"

	"github.com/safedelivr/safedelivr/dashboard/login"
)

// These tests drive a real browser: scripts/test runs them with
//
//	SAFEDELIVR_TEST_CHROMIUM   the browser; default: chromium in the path
//	SAFEDELIVR_TEST_AXE        axe.min.js of axe-core
//	SAFEDELIVR_TEST_SHOTS      a folder for screenshots of every page; may be empty

// product is the program, running its demo.
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
		for target, pattern := range map[*string]string{
			&p.link:      `(http://\S+/login/link\S+)`,
			&p.base:      `^Safedelivr +(http://\S+)`,
			&p.simulator: `on (http://\S+)$`,
			&p.batch:     `batch (\S{36}) accepted`,
		} {
			if m := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text()); m != nil && *target == "" {
				*target = m[1]
			}
		}
		if p.batch != "" {
			break
		}
	}
	require.NotEmpty(t, p.batch, "the demo did not start")
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p
}

// TestBrowser uses every page of the demo in a browser. It takes longest, and begins first by the name of its file.
func TestBrowser(t *testing.T) {
	p := startDemo(t, 2000)
	b := openTab(t, p.base)
	b.open(p.link)
	b.sees("Overview")
	t.Run("batch page updates during a failover", func(t *testing.T) { watchFailover(b.in(t), p) })
	t.Run("log of a rerouted message", func(t *testing.T) { readRerouted(b.in(t), p.batch) })
	t.Run("compose with a file", func(t *testing.T) { composeWithFile(b.in(t)) })
	t.Run("double click sends once", func(t *testing.T) { doubleClick(b.in(t)) })
	t.Run("form keeps bad input", func(t *testing.T) { badInput(b.in(t)) })
	t.Run("keys", func(t *testing.T) { useKey(b.in(t)) })
	t.Run("probe of a provider", func(t *testing.T) { probe(b.in(t), p) })
	t.Run("lost connection reconnects", func(t *testing.T) { reconnect(b.in(t)) })
	b.complaints()
	lookAtAll(t, b, p)
	t.Run("log out", func(t *testing.T) { logOut(b.in(t)) })
}

// watchFailover opens the batch of the demo and waits for the outage and the end.
func watchFailover(b *browserTab, p *product) {
	b.open("/batches")
	b.until(`document.querySelector(".batch-row")`)
	eval[bool](b, `(document.querySelector(".batch-row .title").click(), true)`)
	b.at("/batches/" + p.batch)
	eval[bool](b, `(window.untouched = true)`)
	b.sees("SendGrid (sg) was failing for")
	b.until(`document.querySelector(".state.is-done")`)
	require.True(b, eval[bool](b, `window.untouched`), "the page was reloaded")
	b.open("/batches/" + p.batch + "?state=failed#logs")
	b.until(`document.querySelector("[data-tabs] [aria-current]").textContent.startsWith("Recipients")`)
}

// readRerouted opens the log of a message that SendGrid refused and Mailgun delivered.
func readRerouted(b *browserTab, batch string) {
	log := ""
	for line := range strings.Lines(eval[string](b, `fetch("/batches/`+batch+`/export.csv").then((r) => r.text())`)) {
		if strings.Contains(line, ",sg mg,mg,") && !strings.Contains(line, "blocked") {
			log, _, _ = strings.Cut(line, ",")
		}
	}
	require.NotEmpty(b, log, "no message was rerouted to Mailgun because SendGrid was down")
	b.open("/logs/" + log)
	b.sees("Routed to Mailgun (mg)")
	b.sees("Reason: sg returned 503 (service unavailable)")
	b.sees("Delivered by Mailgun (mg)")
	b.lookAround("rerouted", "")
	b.emulate(1280, "light")
}

func doubleClick(b *browserTab) {
	b.open("/compose")
	require.Equal(b, 1, eval[int](b, `(() => {
		let sent = 0;
		document.addEventListener("submit", (e) => {
			if (e.submitter?.value !== "send") return;
			if (!e.defaultPrevented) sent++;
			e.preventDefault();
		});
		for (let i = 0; i < 2; i++) document.querySelector("button[value=send]").click();
		return sent;
	})()`))
}

func badInput(b *browserTab) {
	b.open("/compose")
	b.fill("from", "invalid")
	b.fill("to", "ann@example.com\nbob@d")
	b.press("Send to all")
	b.sees("Not sent. Fix the highlighted fields and try again.")
	b.sees("Line 2:")
	require.Equal(b, "invalid", eval[string](b, `document.getElementById("from").value`))
}

// reconnect cuts the connection of a live page: the page says so within three seconds, and
// comes back by itself.
func reconnect(b *browserTab) {
	b.open("/")
	b.until(liveSource + `?.readyState === 1`)
	b.until(`document.getElementById("lost").hidden`)
	b.countSilence()
	url := eval[string](b, `(() => {
		const live = `+liveSource+`, url = live.url;
		live.url = "/live/nothing";
		live.source.close();
		return url;
	})()`)
	b.losesConnection()
	eval[string](b, `(() => { const live = `+liveSource+`; return live.url = `+quoteJS(url)+`; })()`)
	b.until(liveSource + `?.readyState === 1 && document.getElementById("lost").hidden`)
}

// lookAtAll looks at all pages at several widths, light and dark.
func lookAtAll(t *testing.T, b *browserTab, p *product) {
	b.open("/operations/users")
	limits := eval[string](b, `document.querySelector("#users a[href$='/limits']").getAttribute("href")`)
	b.open("/batches")
	one := eval[string](
		b,
		`[...document.querySelectorAll(".batch-row")]
			.find((r) => r.querySelector(".under a").textContent.trim() === "1 recipient")
			.querySelector("a.title").getAttribute("href")`,
	)
	pages := map[string]string{
		"one":         one,
		"recipients":  "/logs?state=failed",
		"search":      "/search?q=user1",
		"overview":    "/",
		"statistics":  "/statistics?by=sender",
		"sender":      "/statistics?by=sender&name=demo.test",
		"by-provider": "/statistics?by=provider",
		"of-provider": "/statistics?by=provider&name=sg",
		"batches":     "/batches",
		"batch":       "/batches/" + p.batch,
		"log":         "/logs/" + logOf(p.batch),
		"compose":     "/compose",
		"providers":   "/providers",
		"operations":  "/operations",
		"parked":      "/operations/parked",
		"events":      "/operations/events",
		"rules":       "/operations/blocks",
		"users":       "/operations/users",
		"audit":       "/operations/audit",
		"settings":    "/settings/keys",
		"senders":     "/settings/senders",
		"used":        "/settings/limits",
		"hours":       "/settings/times",
		"hooks":       "/settings/webhooks",
		"account":     "/settings/account",
		"limits":      limits,
		"docs":        "/docs",
		"ask":         "/providers/sg/offline",
		"found":       "/logs?email=user1@demo.test",
	}
	for name, path := range pages {
		t.Run(name, func(t *testing.T) {
			b.in(t).lookAround(name, path)
			require.Empty(t, b.complaints(), "errors in the console")
		})
	}
}

func logOut(b *browserTab) {
	b.do(chromedp.EmulateViewport(1280, 900))
	b.open("/")
	eval[bool](b, `(document.querySelector("form[action='/logout'] button").click(), true)`)
	b.at("/login")
	b.open("/batches")
	b.at("/login")
}

// logOf returns the ID of the first log of a batch.
func logOf(batch string) string { return batch[:35] + "1" }

func composeWithFile(b *browserTab) {
	file := filepath.Join(b.TempDir(), "people.csv")
	table := "email,first\r\nann@demo.test,Ann\r\nbob@demo.test,Bob\r\n"
	utf16, err := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().String(table)
	require.NoError(b, err)
	require.NoError(b, os.WriteFile(file, []byte(utf16), 0o600))
	b.open("/compose")
	b.fill("from", "Shop <shop@demo.test>")
	b.fill("subject", "Hello {{first}} from the browser")
	b.fill("html", "<p>Dear <b>{{first}}</b></p>")
	b.do(chromedp.SetUploadFiles(chromedp.ID("file"), []string{file}))
	b.until(`document.getElementById("to").value.includes("bob@demo.test")`)
	b.press("Send to all")
	b.at("/batches/")
	b.sees("Hello Ann from the browser")
	b.until(`document.querySelector(".state.is-done")`)
	b.sees("2 of 2 finished")
	b.sees("ann@demo.test")
}

func useKey(b *browserTab) {
	b.open("/settings/keys")
	b.fill("name", "browser test")
	b.press("Create key")
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

// giveCommands stops, resumes and cancels a batch while all providers are offline.
func giveCommands(b *browserTab) {
	for _, name := range []string{"sg", "mg"} {
		b.open("/providers")
		eval[bool](b, `(document.querySelector("a[href='/providers/`+name+`/offline']").click(), true)`)
		b.answer()
		b.until(`!document.querySelector("a[href='/providers/` + name + `/offline']")`)
	}
	b.send("Orders", "ann@demo.test")
	command := func(button, sees string) {
		b.press(button)
		b.answer()
		b.sees(sees)
	}
	command("Stop", "Stopped: no new provider call")
	command("Resume", "Resumed. Nothing is sent yet: mg is offline; sg is offline.")
	command("Cancel", "Cancelled: nothing more")
	b.until(`document.querySelector(".state.is-cancelled")`)
	for _, name := range []string{"sg", "mg"} {
		b.open("/providers/" + name + "/online")
		b.press("Bring online")
		b.until(`location.pathname === "/providers" && !document.querySelector("a[href='/providers/` + name + `/online']")`)
	}
}

// probe has both providers reject their keys, and probes them after the fault ends.
func probe(b *browserTab, p *product) {
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
	b.send("Suspended", "ann@demo.test")
	b.open("/providers")
	both := `document.querySelector("a[href='/providers/sg/probe']") &&
		document.querySelector("a[href='/providers/mg/probe']")`
	b.until(both)
	b.lookAround("suspended", "/providers")
	b.emulate(1280, "light")
	fault(http.MethodDelete, "")
	b.open("/providers")
	b.until(both)
	eval[bool](b, `(document.querySelector("a[href='/providers/sg/probe']").click(), true)`)
	b.answer()
	b.until(`document.readyState === "complete" && document.querySelector("a[href='/providers/mg/probe']") &&
		!document.querySelector("a[href=\'/providers/sg/probe\']")`) // the page with the question has neither
	eval[bool](b, `(document.querySelector("a[href='/providers/mg/probe']").click(), true)`)
	b.answer()
	b.until(`document.readyState === "complete" && document.querySelector("h1") && location.pathname === "/providers" &&
		!document.querySelector("a[href=\'/providers/mg/probe\']")`)
	b.open("/batches")
	b.until(`[...document.querySelectorAll(".batch-row")].every((e) => e.querySelector(".state.is-done"))`)
}

// TestBrowserGitHub logs in through the GitHub simulator as a user.
func TestBrowserGitHub(t *testing.T) {
	f := newRig(t, &login.GitHub{Logins: []string{"ann"}, Operators: []string{"bob"}}, ann, bob)
	b := openTab(t, f.url)
	b.open("/compose")
	b.at("/login")
	b.lookAround("login", "/login")
	b.open("/compose")
	b.press("Continue with GitHub")
	b.press("Ann")
	b.at("/compose")
	require.False(t, eval[bool](b, `document.body.innerText.includes("Operations")`))
	b.open("/operations")
	b.sees("This page does not exist")
	b.complaints()
	b.lookAround("empty", "/")
	require.Empty(t, b.complaints())
}
