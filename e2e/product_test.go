package e2e

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// TestKilledDuringABatch kills the process while it sends many mails and starts it again: each must have exactly one
// copy, or say that its outcome is unknown.
func TestKilledDuringABatch(t *testing.T) {
	n := testkit.Mails(3_000, 30_000)
	if testkit.Long() {
		n = 100_000
	}
	chunk := strconv.Itoa(n / 100)
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{Latency: 60 * time.Millisecond, EventDelay: 50 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT="+chunk, "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT="+chunk,
			"SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1") // it posts its events one by one
		first := r.start(r.addr, nil, "serve")
		id := r.post(mail{n: n})
		r.waitAccepted(n / 4)
		first.kill()
		r.start(r.addr, nil, "serve")
		r.waitAccepted(n / 2)
		// Mailgun never repeats a delivered event: what it posted while no process
		// listened is looked up.
		end := r.done(id)
		unknown := r.exactlyOnce(id, n)
		t.Logf("success %d, outcome unknown %d, rerouted %d; %d events were posted in vain",
			end.Counts.Delivered, unknown, end.Counts.Rerouted, r.sim.Stats("mg").EventsGivenUp)
		require.EqualValues(t, n, end.Counts.Delivered+end.Counts.FailedReasons[string(models.OutcomeUnknown)])
		require.Greater(t, end.Counts.Delivered, int64(n/2))
		r.statsAgree(id)
	})
}

// waitAccepted waits until the providers have accepted n mails together.
func (r *rig) waitAccepted(n int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		return r.sim.Stats("sg").Accepted+r.sim.Stats("mg").Accepted >= int64(n)
	}, testkit.Patience, 2*time.Millisecond)
}

// TestQueuesPurged empties every queue while mail is being sent: everything must still be sent, once.
func TestQueuesPurged(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		n := testkit.Mails(3_000, 10_000)
		chunk := strconv.Itoa(n / 40)
		r := newRig(t, b, simulator.Options{Latency: 40 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=1", "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1",
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT="+chunk, "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT="+chunk)
		r.serveHere()
		id := r.post(mail{n: n})
		for _, part := range []int{n / 10, n / 3, n / 2} {
			r.waitAccepted(part)
			require.NoError(t, r.app.Broker().Purge(context.Background()))
		}
		done := r.done(id)
		require.EqualValues(t, n, done.Counts.Delivered)
		require.Zero(t, r.exactlyOnce(id, n))
		r.statsAgree(id)
	})
}

// TestProviderFailsAndRecovers has a provider answer 503 to everything, then hang after the body, then work again: mail
// must be sent through the other one, and the logs must say why.
func TestProviderFailsAndRecovers(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		n := testkit.Mails(1_500, 3_000)
		r := newRig(t, b, simulator.Options{Latency: 10 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=100", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=100")
		r.serveHere()
		down := r.sim.Inject(simulator.Fault{
			Account: "sg",
			Mode:    simulator.ModeStatus,
			Status:  http.StatusServiceUnavailable,
		})
		one := r.post(mail{n: n})
		done := r.done(one)
		require.EqualValues(t, n, done.Counts.Delivered)
		require.Zero(t, r.sim.Stats("sg").Accepted)
		r.sim.Clear(down)
		r.whyRerouted(one, "sg returned 503")

		hang := r.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeHangAfterBody})
		two := r.post(mail{n: n})
		done = r.done(two)
		require.EqualValues(t, n, done.Counts.Delivered, "what hung was accepted, as its events prove")
		r.sim.Clear(hang)

		before := r.sim.Stats("sg").Accepted
		var all []models.ID
		require.Eventually(t, func() bool {
			all = append(all, r.post(mail{n: 100}))
			r.done(all[len(all)-1])
			return r.sim.Stats("sg").Accepted > before
		}, testkit.Patience, 200*time.Millisecond, "sendgrid gets mail again")
		for _, id := range []models.ID{one, two} {
			require.Zero(t, r.exactlyOnceOf(id, n))
		}
		r.statsAgree(append(all, one, two)...)
	})
}

// exactlyOnceOf is exactlyOnce if other batches have copies, too.
func (r *rig) exactlyOnceOf(id models.ID, recipients int) int {
	r.t.Helper()
	all, delivered := r.copies()
	logs := r.logs(id, "")
	require.Len(r.t, logs, recipients)
	for _, l := range logs {
		require.LessOrEqual(r.t, delivered[l.ID], 1, "doubled: %+v", l)
		require.GreaterOrEqual(r.t, all[l.ID], 1, "lost: %+v", l)
	}
	return 0
}

// whyRerouted requires that a rerouted log has a sentence that says why.
func (r *rig) whyRerouted(id models.ID, sentence string) {
	r.t.Helper()
	for _, l := range r.logs(id, "delivered") {
		if len(l.Providers) < 2 {
			continue
		}
		story, err := r.client.Log(context.Background(), l.ID)
		require.NoError(r.t, err)
		for _, m := range story.Timeline {
			if strings.Contains(m.Because, sentence) {
				require.Equal(r.t, map[string]bool{"sg": false, "mg": true}, l.Providers)
				return
			}
		}
		require.Fail(r.t, "the timeline does not say why", "%+v", story.Timeline)
	}
	require.Fail(r.t, "no log was rerouted")
}

// TestEventsInDisorder sends many events, shuffled, each twice, some late, some forged: stats must equal a recount, and
// the forged ones must change nothing.
func TestEventsInDisorder(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		n := testkit.Mails(2_500, 50_000)   // through SendGrid, with two events each: processed and the end
		others := testkit.Mails(500, 1_000) // through Mailgun, with one
		r := newRig(t, b, simulator.Options{EventDelay: 20 * time.Millisecond})
		r.serveHere()
		for _, f := range []simulator.Fault{
			{Mode: simulator.ModeEventsDuplicate}, {Mode: simulator.ModeEventsShuffle},
			{Mode: simulator.ModeEventsDelay, Delay: 3 * time.Second, Pattern: "*7@demo.test"},
		} {
			r.sim.Inject(f)
		}
		forgers := make(chan int)
		mg := r.post(mail{n: others, providers: []string{"mg"}})
		id := r.post(mail{n: n, providers: []string{"sg"}, address: func(i int) string {
			if i%50 == 0 {
				return fmt.Sprintf("hardbounce+%d@demo.test", i)
			}
			return plainAddress(i)
		}})
		go func() { forgers <- r.forge(id) }()
		done := r.done(id)
		require.EqualValues(t, n/50, done.Counts.Failed, "only real bounces count: %+v", done.Counts)
		require.EqualValues(t, n-n/50, done.Counts.Delivered)
		require.NoError(t, r.sim.Settle(context.Background()))
		require.Equal(t, 40, <-forgers)
		require.Eventually(t, func() bool {
			_, forged, _, _ := r.app.Engine().EventCounts()
			return forged >= 20
		}, testkit.Patience, 20*time.Millisecond, "signed events that belong to no attempt are refused by the consumer")
		_, refused := r.app.Webhooks().Counts()
		require.GreaterOrEqual(t, refused["bad_signature"], int64(20))
		require.EqualValues(t, others, r.done(mg).Counts.Delivered)
		require.GreaterOrEqual(t, r.sim.Stats("sg").EventsSent, int64(2*2*n), "two events of each mail, each twice")
		for _, l := range r.logs(id, "failed") {
			require.EqualValues(t, models.MailboxInvalid, l.Reason)
			require.True(t, strings.HasPrefix(l.Email, "hardbounce+"))
		}
		r.statsAgree(id, mg)
	})
}

// forge posts Mailgun events of hard bounces: half with a wrong signature, half signed and for logs and attempts that
// Mailgun never had. It returns how many were answered as they should be.
func (r *rig) forge(id models.ID) int {
	answered := 0
	for i := range 40 {
		key := simulated.MailgunKey
		log := models.NewBatchID(time.Now()).Log(1) // which does not exist
		attempt := 1
		if i%4 == 0 {
			log, attempt = id.Log(1+i), 999 // of a batch of ours, without such an attempt
		}
		if i%2 == 1 {
			key = "not the key"
		}
		now := strconv.FormatInt(time.Now().Unix(), 10)
		token := fmt.Sprintf("forged-%048d", i)
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(now + token))
		signature := hex.EncodeToString(mac.Sum(nil))
		body := fmt.Sprintf(`{"signature":{"timestamp":%q,"token":%q,"signature":%q},`+
			`"event-data":{"event":"failed","severity":"permanent","reason":"bounce","id":"forged%d","timestamp":%s.5,`+
			`"recipient":"x@demo.test","user-variables":{"sd_log":%q,"sd_attempt":"%d"},`+
			`"delivery-status":{"code":550,"message":"5.1.1 no such user"}}}`, now, token, signature, i, now, log, attempt)
		resp, err := http.Post("http://"+r.addr+"/webhooks/mg", "application/json", strings.NewReader(body))
		if err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if want := map[bool]int{true: http.StatusUnauthorized, false: http.StatusOK}[i%2 == 1]; resp.StatusCode == want {
			answered++
		}
	}
	return answered
}

// TestEventsReroute requires that mail that one provider accepts and then blocks is sent through the other one. A hard
// bounce is not. One bad address among many is found, and the rest is sent.
func TestEventsReroute(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		const n = 1_000
		r := newRig(t, b, simulator.Options{EventDelay: 10 * time.Millisecond})
		r.serveHere()
		id := r.post(mail{n: n, providers: []string{"sg", "mg"}, address: func(i int) string {
			switch {
			case i == 500:
				return "refused@demo.test" // refused by both providers
			case i%10 == 1:
				return fmt.Sprintf("blocked-sg+%d@demo.test", i)
			case i%10 == 2:
				return fmt.Sprintf("hardbounce+%d@demo.test", i)
			}
			return plainAddress(i)
		}})
		done := r.done(id)
		require.EqualValues(t, 101, done.Counts.Failed, "%+v", done.Counts)
		require.EqualValues(t, n-101, done.Counts.Delivered)
		require.EqualValues(t, 100, done.Counts.Rerouted)
		require.Equal(t, map[string]int64{string(models.MailboxInvalid): 101}, done.Counts.FailedReasons)
		for _, l := range r.logs(id, "delivered") {
			if strings.HasPrefix(l.Email, "blocked-sg") {
				require.Equal(t, map[string]bool{"sg": false, "mg": true}, l.Providers)
			}
		}
		for _, l := range r.logs(id, "failed") {
			require.Len(t, l.Providers, 1, "a hard bounce is not sent again: %+v", l)
		}
		calls := r.sim.Stats("sg").Calls
		require.LessOrEqual(t, calls, int64(25), "finding one bad address is bounded")
		r.statsAgree(id)
	})
}

// TestPrivacyAndSubstitution requires that each recipient sees only itself and its own values.
func TestPrivacyAndSubstitution(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{KeepContent: true})
		r.serveHere()
		for _, provider := range []string{"sg", "mg"} {
			accepted, err := r.client.CreateBatch(t.Context(), client.NewBatch{
				From:      "Shop <shop@demo.test>",
				Subject:   "For {{who}}",
				Text:      "T {{who}}",
				HTML:      "<i>{{who}}</i>",
				Providers: []string{provider},
				To: []client.Recipient{
					{Email: "ann@demo.test", Vars: map[string]any{"who": "<Ann & Bo>"}},
					{Email: "bob@demo.test", Vars: map[string]any{"who": "Bob"}},
				},
			})
			require.NoError(t, err)
			id := r.id(accepted.ID)
			require.EqualValues(t, 2, r.done(id).Counts.Delivered)
			ann := r.sim.Copies(id.Log(1).String())
			require.Len(t, ann, 1)
			require.Empty(t, ann[0].Visible, "no recipient sees another one")
			require.Equal(t, "For <Ann & Bo>", ann[0].Subject)
			require.Equal(t, "T <Ann & Bo>", ann[0].Text)
			require.Equal(t, "<i>&lt;Ann &amp; Bo&gt;</i>", ann[0].HTML)
			bob := r.sim.Copies(id.Log(2).String())
			require.Len(t, bob, 1)
			require.Equal(t, "For Bob", bob[0].Subject)
		}
	})
}

// TestProviderWithoutEvents requires that mail that a provider without events accepts is an unconfirmed success.
func TestProviderWithoutEvents(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_PROVIDERS_SG_EVENTS=none")
		r.serveHere()
		id := r.post(mail{n: 10, providers: []string{"sg"}})
		require.EqualValues(t, 10, r.done(id).Counts.Delivered)
		require.EqualValues(t, models.Unconfirmed, r.logs(id, "delivered")[0].Reason)
	})
}

// TestProviderWithoutWebhookKey requires that a provider whose webhooks cannot be verified is named at the start, and
// that its posts are answered 503, so that the provider repeats them. A provider without events needs no key.
func TestProviderWithoutWebhookKey(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY=", "SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY=",
			"SAFEDELIVR_PROVIDERS_SG_EVENTS=none", "SAFEDELIVR_LOG=warn")
		c := r.start(r.addr, nil, "serve")
		require.Contains(t, c.out.String(), "no webhook key")
		require.Contains(t, c.out.String(), "provider=mg")
		require.NotContains(t, c.out.String(), "provider=sg")
		resp, err := http.Post("http://"+r.addr+"/webhooks/mg", "application/json", strings.NewReader(`{"signature":{}}`))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		id := r.post(mail{n: 5, providers: []string{"sg"}})
		require.EqualValues(t, 5, r.done(id).Counts.Delivered)
	})
}

// TestRolesApart runs the API, the webhook receiver and two workers in processes of their own, and kills one worker
// while mail is being sent.
func TestRolesApart(t *testing.T) {
	t.Parallel()
	b := testkit.Servers()
	t.Run(b.Name, func(t *testing.T) {
		n := testkit.Mails(3_000, 6_000)
		chunk := strconv.Itoa(n / 30)
		r := newRig(t, b, simulator.Options{Latency: 50 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT="+chunk, "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT="+chunk,
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=2", "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=2")
		hooks := freeAddr(t)
		for _, a := range []string{"sg", "mg"} {
			r.sim.SetWebhookURL(a, "http://"+hooks+"/webhooks/"+a)
		}
		r.start(r.addr, nil, "serve", "--roles", "api")
		r.start(hooks, nil, "serve", "--roles", "webhooks")
		victim := r.start(freeAddr(t), []string{"SAFEDELIVR_WORKER=victim"}, "serve", "--roles", "worker")
		r.start(freeAddr(t), []string{"SAFEDELIVR_WORKER=other"}, "serve", "--roles", "worker")
		id := r.post(mail{n: n})
		r.waitAccepted(n / 4)
		victim.kill()
		done := r.done(id)
		unknown := r.exactlyOnce(id, n)
		require.EqualValues(t, n, done.Counts.Delivered+int64(unknown))
		r.statsAgree(id)
		list, err := r.client.ListProviders(t.Context())
		providers := list.Providers
		require.NoError(t, err)
		require.Len(t, providers, 2)
		require.NotNil(t, providers[0].Health, "the API shows what the workers report")
	})
}

// TestManagedWhileServing manages users and keys while the product runs. A second server on the same data folder must
// get a clear error.
func TestManagedWhileServing(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{})
		r.start(r.addr, nil, "serve")
		r.command("user", "add", "ann")
		secret := strings.TrimSpace(r.command("key", "add", "ann", "--name", "laptop"))
		ann := r.clientWith(secret)
		batches := func() (err error) {
			for _, err = range ann.Batches(t.Context(), client.ListOptions{}) {
				break
			}
			return err
		}
		require.NoError(t, batches())
		list := r.command("key", "list", "ann")
		require.Contains(t, list, "laptop")
		require.NotContains(t, list, secret, "shown once")
		fields := strings.Fields(strings.Split(list, "\n")[1])
		r.command("key", "revoke", "ann", fields[0])
		require.Eventually(t, func() bool {
			return client.ErrorCode(batches()) == "revoked_key"
		}, testkit.Patience, 50*time.Millisecond, "revoked")
		require.Contains(t, r.commandFails("key", "revoke", "ann", "nokey"), "nokey")
		if !b.Real {
			require.Contains(t, r.commandFails("serve"), "in use")
		}
	})
}
