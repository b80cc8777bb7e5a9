//go:build browser

package dashboard

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestBrowserSend logs in by link, composes a batch from a file, watches it while a
// provider fails, reads the log of a rerouted message, and stops, resumes, cancels and
// retries batches. It runs on the embedded backends, and on RabbitMQ and Cassandra if
// they are running.
func TestBrowserSend(t *testing.T) {
	t.Parallel()
	bin := buildProduct(t)
	t.Run("embedded", func(t *testing.T) { sendThroughOutage(t, bin) })
	t.Run("rabbitmq+cassandra", func(t *testing.T) {
		amqp, hosts := os.Getenv("SAFEDELIVR_TEST_AMQP_URL"), os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS")
		if amqp == "" || hosts == "" {
			t.Skip("needs RabbitMQ and Cassandra: start them with scripts/services up and load the environment it prints")
		}
		id := models.NewUserID()
		sendThroughOutage(
			t,
			bin,
			"SAFEDELIVR_AMQP_URL="+amqp,
			"SAFEDELIVR_AMQP_PREFIX=t"+id,
			"SAFEDELIVR_CASSANDRA_HOSTS="+hosts,
			"SAFEDELIVR_CASSANDRA_KEYSPACE=t"+id,
		)
	})
}

func buildProduct(t testing.TB) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "safedelivr")
	build, err := exec.Command("go", "build", "-o", bin, "../cmd/safedelivr").CombinedOutput()
	require.NoError(t, err, string(build))
	return bin
}

const sentMessages = 1500

// sendThroughOutage sends a batch through simulated providers, and has SendGrid fail
// meanwhile.
func sendThroughOutage(t *testing.T, bin string, settings ...string) {
	sim, base, link := serveSimulated(t, bin, settings)
	b := openTab(t, base)
	b.open(link)
	b.sees("Overview")
	fault := sim.Inject(simulator.Fault{Account: "sg", Mode: "status:503", After: 3})
	batch := composeMany(b)
	eval[bool](b, `(window.untouched = true)`)
	b.sees("SendGrid (sg) has been failing since") // while it lasts
	b.sees("rerouted to Mailgun (mg)")
	require.Positive(t, sim.Stats("sg").Accepted, "SendGrid accepted mail before")
	sim.Clear(fault)
	b.until(`document.querySelector(".state.is-done")`)
	b.sees("finished · 100%")
	require.True(t, eval[bool](b, `window.untouched`), "the page was reloaded")
	readRerouted(b, batch)
	copies := map[string]int{}
	sim.EachCopy(func(id string, per map[string]int) {
		for _, n := range per {
			copies[id] += n
		}
	})
	require.Len(t, copies, sentMessages, "lost messages")
	for id, n := range copies {
		require.Equal(t, 1, n, "doubled: %s", id)
	}
	giveCommands(b)
	retryFailed(b, sim)
	require.Empty(t, b.complaints(), "errors in the console")
}

// serveSimulated starts two simulated providers and the product with them. It returns the
// product's URL and a login link.
func serveSimulated(t *testing.T, bin string, settings []string) (sim *simulator.Simulator, base, link string) {
	sim = simulator.New(simulator.Options{
		RecipientKey: "sd_log", KeepContent: true, TimeScale: 60, Latency: 120 * time.Millisecond,
	})
	providers := httptest.NewServer(sim)
	t.Cleanup(providers.Close)
	t.Cleanup(sim.Close) // before the server: Close ends hanging calls
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	base = "http://" + addr
	for _, a := range []simulator.Account{
		{Name: "sg", Kind: simulator.SendGrid, Key: "k", WebhookURL: base + "/webhooks/sg"},
		{
			Name:       "mg",
			Kind:       simulator.Mailgun,
			Key:        "k",
			Domain:     "mail.demo.test",
			SigningKey: "s",
			WebhookURL: base + "/webhooks/mg",
		},
	} {
		require.NoError(t, sim.AddAccount(a))
	}
	env := append(serverEnv(t, addr, providers.URL, sim.PublicKey("sg")), settings...)
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(bin, args...)
		cmd.Env = env
		return cmd
	}
	out, err := command("migrate").CombinedOutput()
	require.NoError(t, err, string(out))
	serving := command("serve")
	serving.Stdout, serving.Stderr = os.Stderr, os.Stderr
	require.NoError(t, serving.Start())
	t.Cleanup(func() {
		_ = serving.Process.Signal(os.Interrupt)
		require.NoError(t, serving.Wait())
	})
	require.Eventually(t, func() bool { return ready(base) }, tabWait, 20*time.Millisecond)
	out, err = command("login").CombinedOutput()
	require.NoError(t, err, string(out))
	link = regexp.MustCompile(`http://\S+/login/link\S+`).FindString(string(out))
	require.NotEmpty(t, link, string(out))
	return sim, base, link
}

// serverEnv returns the environment of a server with two simulated providers.
func serverEnv(t *testing.T, addr, providers, publicKey string) []string {
	env := []string{
		"SAFEDELIVR_DATA_DIR=" + t.TempDir(),
		"SAFEDELIVR_LISTEN=" + addr,
		"SAFEDELIVR_METRICS_LISTEN=off",
		"SAFEDELIVR_LOG=error",
		"SAFEDELIVR_TIMES_BREAKER_OPEN=1s",
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY=k",
		"SAFEDELIVR_PROVIDERS_SG_BASE_URL=" + providers + "/sg",
		"SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY=" + publicKey,
		"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=2",
		"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=10",
		"SAFEDELIVR_PROVIDERS_MG_KIND=mailgun",
		"SAFEDELIVR_PROVIDERS_MG_API_KEY=k",
		"SAFEDELIVR_PROVIDERS_MG_BASE_URL=" + providers + "/mg/v3",
		"SAFEDELIVR_PROVIDERS_MG_DOMAIN=mail.demo.test",
		"SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY=s",
		"SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=2",
		"SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=10",
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + t.TempDir(),
	}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "SAFEDELIVR_TEST_RUN=") {
			env = append(env, v) // scripts/test finds leftover processes by it
		}
	}
	return env
}

// ready reports whether a server is ready.
func ready(base string) bool {
	resp, err := http.Get(base + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// composeMany sends a batch to a file of recipients and returns its ID.
func composeMany(b *browserTab) string {
	file := filepath.Join(b.TempDir(), "people.csv")
	var list strings.Builder
	list.WriteString("email,first\n")
	for i := range sentMessages {
		fmt.Fprintf(&list, "user%d@demo.test,P%d\n", i, i)
	}
	require.NoError(b, os.WriteFile(file, []byte(list.String()), 0o600))
	b.open("/compose")
	b.fill("from", "Shop <shop@demo.test>")
	b.fill("subject", "Hello {{first}}")
	b.fill("text", "Dear {{first}}")
	b.do(chromedp.SetUploadFiles(chromedp.ID("file"), []string{file}))
	b.until(fmt.Sprintf(`document.getElementById("to").value.includes("user%d@demo.test")`, sentMessages-1))
	b.press("Send to all")
	b.sees("Send to 1,500 recipients?")
	b.lookAround("compose-sure", "")
	b.press("Send to 1,500")
	b.at("/batches/")
	return strings.TrimPrefix(eval[string](b, "location.pathname"), "/batches/")
}

// send composes a batch and sends it.
func (b *browserTab) send(subject, to string) {
	b.open("/compose")
	b.fill("from", "shop@demo.test")
	b.fill("subject", subject)
	b.fill("text", "Hello")
	b.fill("to", to)
	b.press("Send to all")
	b.at("/batches/")
}

// retryFailed sends to two recipients that block all providers, and retries after the
// block ends.
func retryFailed(b *browserTab, sim *simulator.Simulator) {
	blocked := sim.Inject(simulator.Fault{Mode: "outcome:blocked"})
	b.send("Again", "eve@demo.test, kim@demo.test")
	b.until(`document.querySelectorAll(".log-row .state.is-failed").length === 2`)
	sim.Clear(blocked)
	b.press("Retry failed")
	b.answer()
	b.sees("2 failed messages are queued again.")
	b.until(
		`document.querySelectorAll(".log-row .state.is-delivered").length === 2 && document.querySelector(".state.is-done")`,
	)
}

// TestBrowserQuestionLocale: numbers, shares and money of the question before a message is sent to many are in the
// format of the reader's language.
func TestBrowserQuestionLocale(t *testing.T) {
	t.Parallel()
	f := newRigOf(t, service.Config{Currency: "EUR", Prices: map[string]float64{"sg": 1_000_000, "mg": 1_000_000}}, nil)
	b := f.logIn(f.url)
	to := ""
	for n := range 1234 {
		to += fmt.Sprintf("r%d@example.com\n", n)
	}
	for _, c := range []struct{ locale, number, share, money string }{
		{"en-US", "1,234 messages are sent now", "mg gets 50%", "EUR\u00a01,234,000.00"},
		{"de-DE", "1.234 messages are sent now", "mg gets 50\u00a0%", "1.234.000,00\u00a0EUR"},
	} {
		_, err := chromedp.Call(b.ctx, emulation.SetLocaleOverride, emulation.SetLocaleOverrideParams{Locale: c.locale})
		require.NoError(t, err)
		b.open("/compose")
		b.fill("from", "shop@example.com")
		b.fill("subject", "Hello")
		b.fill("text", "Hello")
		eval[bool](b, `(document.getElementById("to").value = `+quoteJS(to)+`, true)`)
		b.press("Send to all")
		b.sees("Send to")
		for _, want := range []string{c.number, c.share, c.money} {
			b.until(`document.getElementById("sure")?.innerText.includes(` + quoteJS(want) + `)`)
		}
	}
	require.Empty(t, b.complaints())
}
