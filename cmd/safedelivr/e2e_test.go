package main

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

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// A batch of 100,000 recipients, the process killed in the middle and started
// again: exactly one copy each, or an honest outcome_unknown.
func TestKilledInTheMiddle(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		const n = 100_000
		r := newRig(t, b, simulator.Options{Latency: 60 * time.Millisecond, EventDelay: 50 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=300", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=300",
			"SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1") // it posts its events one by one
		first := r.start(r.addr, nil, "serve")
		id := r.post(batchBody(n, "", plainAddress))
		r.waitAccepted(n / 4)
		first.kill()
		r.start(r.addr, nil, "serve")
		r.waitAccepted(n / 2)
		// Mailgun never repeats a delivered event: what it posted while nobody
		// listened is looked up.
		end := r.done(id)
		unknown := r.exactlyOnce(id, n)
		t.Logf("success %d, outcome unknown %d, rerouted %d; %d events were posted in vain",
			end.Counts.Success, unknown, end.Counts.Rerouted, r.sim.Stats("mg").EventsGivenUp)
		require.EqualValues(t, n, end.Counts.Success+end.Counts.Reasons[models.OutcomeUnknown])
		require.Greater(t, end.Counts.Success, int64(n/2))
		r.statsAgree(id)
	})
}

// waitAccepted waits until the providers took n mails together.
func (r *rig) waitAccepted(n int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		return r.sim.Stats("sg").Accepted+r.sim.Stats("mg").Accepted >= int64(n)
	}, patience, 2*time.Millisecond)
}

// Every queue purged in the middle: everything still goes out, once.
func TestQueuesPurged(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		const n = 10_000
		r := newRig(t, b, simulator.Options{Latency: 40 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=1", "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1",
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=250", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=250")
		r.serveHere()
		id := r.post(batchBody(n, "", plainAddress))
		for _, part := range []int{n / 10, n / 3, n / 2} {
			r.waitAccepted(part)
			require.NoError(t, r.app.broker.Purge(context.Background()))
		}
		done := r.done(id)
		require.EqualValues(t, n, done.Counts.Success)
		require.Zero(t, r.exactlyOnce(id, n))
		r.statsAgree(id)
	})
}

// One provider answers 503 to everything, then hangs after it took the body,
// then comes back: mail flows through the other, and the logs tell why.
func TestOneProviderInTrouble(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		const n = 3_000
		r := newRig(t, b, simulator.Options{Latency: 10 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=100", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=100")
		r.serveHere()
		down := r.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
		one := r.post(batchBody(n, "", plainAddress))
		done := r.done(one)
		require.EqualValues(t, n, done.Counts.Success)
		require.Zero(t, r.sim.Stats("sg").Accepted)
		r.sim.Clear(down)
		r.whyRerouted(one, "sg answered 503")

		hang := r.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeHangAfterBody})
		two := r.post(batchBody(n, "", plainAddress))
		done = r.done(two)
		require.EqualValues(t, n, done.Counts.Success, "what hung was taken, and its events prove it")
		r.sim.Clear(hang)

		before := r.sim.Stats("sg").Accepted
		var all []models.ID
		require.Eventually(t, func() bool {
			all = append(all, r.post(batchBody(100, "", plainAddress)))
			r.done(all[len(all)-1])
			return r.sim.Stats("sg").Accepted > before
		}, patience, 200*time.Millisecond, "sendgrid gets mail again")
		for _, id := range []models.ID{one, two} {
			require.Zero(t, r.exactlyOnceOf(id, n))
		}
		r.statsAgree(append(all, one, two)...)
	})
}

// exactlyOnceOf is exactlyOnce where other batches have copies too.
func (r *rig) exactlyOnceOf(id models.ID, recipients int) int {
	r.t.Helper()
	all, delivered := r.copies()
	logs := r.logs(id, "")
	require.Len(r.t, logs, recipients)
	for _, l := range logs {
		require.LessOrEqual(r.t, delivered[l.ID.String()], 1, "doubled: %+v", l)
		require.GreaterOrEqual(r.t, all[l.ID.String()], 1, "lost: %+v", l)
	}
	return 0
}

// whyRerouted looks at a rerouted log for the sentence that tells why.
func (r *rig) whyRerouted(id models.ID, sentence string) {
	r.t.Helper()
	for _, l := range r.logs(id, "success") {
		if len(l.Providers) < 2 {
			continue
		}
		var story struct {
			Timeline []models.Moment `json:"timeline"`
		}
		r.get("/v1/logs/"+l.ID.String(), &story)
		for _, m := range story.Timeline {
			if strings.Contains(m.Because, sentence) {
				require.Equal(r.t, map[string]bool{"sg": false, "mg": true}, l.Providers)
				return
			}
		}
		require.Fail(r.t, "the timeline does not tell why", "%+v", story.Timeline)
	}
	require.Fail(r.t, "no log was rerouted")
}

// A hundred thousand events, shuffled, each twice, some late, some forged: stats
// equal a recount, and the forged ones changed nothing.
func TestEventsInDisorder(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		const n = 50_000     // through SendGrid, with two events each: processed and the end
		const others = 1_000 // through Mailgun, with one
		r := newRig(t, b, simulator.Options{EventDelay: 20 * time.Millisecond})
		r.serveHere()
		for _, f := range []simulator.Fault{
			{Mode: simulator.ModeEventsDuplicate}, {Mode: simulator.ModeEventsShuffle},
			{Mode: simulator.ModeEventsDelay, Delay: 3 * time.Second, Pattern: "*7@demo.test"},
		} {
			r.sim.Inject(f)
		}
		forgers := make(chan int)
		mg := r.post(batchBody(others, `,"providers":["mg"]`, plainAddress))
		id := r.post(batchBody(n, `,"providers":["sg"]`, func(i int) string {
			if i%50 == 0 {
				return fmt.Sprintf("hardbounce+%d@demo.test", i)
			}
			return plainAddress(i)
		}))
		go func() { forgers <- r.forge(id) }()
		done := r.done(id)
		require.EqualValues(t, n/50, done.Counts.Failed, "only real bounces count: %+v", done.Counts)
		require.EqualValues(t, n-n/50, done.Counts.Success)
		require.NoError(t, r.sim.Settle(context.Background()))
		require.Equal(t, 40, <-forgers)
		require.Eventually(t, func() bool {
			_, forged, _, _ := r.app.engine.EventCounts()
			return forged >= 20
		}, patience, 20*time.Millisecond, "signed events that belong to no attempt are refused by the consumer")
		_, refused := r.app.hooks.Counts()
		require.GreaterOrEqual(t, refused["bad_signature"], int64(20))
		require.EqualValues(t, others, r.done(mg).Counts.Success)
		require.GreaterOrEqual(t, r.sim.Stats("sg").EventsSent, int64(2*2*n), "a hundred thousand events, each twice")
		for _, l := range r.logs(id, "failed") {
			require.Equal(t, models.MailboxInvalid, l.Reason)
			require.True(t, strings.HasPrefix(l.Email, "hardbounce+"))
		}
		r.statsAgree(id, mg)
	})
}

// forge posts Mailgun events of hard bounces: half with a wrong signature, half
// signed and for logs and attempts that Mailgun never had. It returns how many
// were answered at all.
func (r *rig) forge(id models.ID) int {
	answered := 0
	for i := range 40 {
		key := demoSigning
		log := models.NewBatchID(time.Now()).Log(1) // of nobody
		attempt := 1
		if i%4 == 0 {
			log, attempt = id.Log(1+i), 999 // of a batch of ours, no such attempt
		}
		if i%2 == 1 {
			key = "not the key"
		}
		now := strconv.FormatInt(time.Now().Unix(), 10)
		token := fmt.Sprintf("forged-%048d", i)
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(now + token))
		body := fmt.Sprintf(`{"signature":{"timestamp":%q,"token":%q,"signature":%q},"event-data":{"event":"failed","severity":"permanent",`+
			`"reason":"bounce","id":"forged%d","timestamp":%s.5,"recipient":"x@demo.test","user-variables":{"sd_log":%q,"sd_attempt":"%d"},`+
			`"delivery-status":{"code":550,"message":"5.1.1 no such user"}}}`, now, token, hex.EncodeToString(mac.Sum(nil)), i, now, log, attempt)
		resp, err := http.Post("http://"+r.addr+"/webhooks/mg", "application/json", strings.NewReader(body))
		if err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if want := map[bool]int{true: http.StatusNotAcceptable, false: http.StatusOK}[i%2 == 1]; resp.StatusCode == want {
			answered++
		}
	}
	return answered
}

// Mail that one provider accepts and then blocks is cured by the other; a hard
// bounce is not routed around; one bad address among many is found and the rest
// goes.
func TestEventsReroute(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		const n = 1_000
		r := newRig(t, b, simulator.Options{EventDelay: 10 * time.Millisecond})
		r.serveHere()
		id := r.post(batchBody(n, `,"providers":["sg","mg"]`, func(i int) string {
			switch {
			case i == 500:
				return "refused@demo.test" // the provider names or hides it; refused everywhere
			case i%10 == 1:
				return fmt.Sprintf("blocked-sg+%d@demo.test", i)
			case i%10 == 2:
				return fmt.Sprintf("hardbounce+%d@demo.test", i)
			}
			return plainAddress(i)
		}))
		done := r.done(id)
		require.EqualValues(t, 101, done.Counts.Failed, "%+v", done.Counts)
		require.EqualValues(t, n-101, done.Counts.Success)
		require.EqualValues(t, 100, done.Counts.Rerouted)
		require.Equal(t, map[models.Reason]int64{models.MailboxInvalid: 101}, done.Counts.Reasons)
		for _, l := range r.logs(id, "success") {
			if strings.HasPrefix(l.Email, "blocked-sg") {
				require.Equal(t, map[string]bool{"sg": false, "mg": true}, l.Providers)
			}
		}
		for _, l := range r.logs(id, "failed") {
			require.Len(t, l.Providers, 1, "a hard bounce is not routed around: %+v", l)
		}
		calls := r.sim.Stats("sg").Calls
		require.LessOrEqual(t, calls, int64(25), "finding one bad address is bounded")
		r.statsAgree(id)
	})
}

// Each recipient sees only itself, and its own values.
func TestPrivacyAndSubstitution(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := newRig(t, b, simulator.Options{KeepContent: true})
		r.serveHere()
		for _, provider := range []string{"sg", "mg"} {
			body := fmt.Sprintf(`{"from":"Shop <shop@demo.test>","subject":"For {{who}}","text":"T {{who}}","html":"<i>{{who}}</i>","providers":[%q],
				"to":[{"email":"ann@demo.test","vars":{"who":"<Ann & Bo>"}},{"email":"bob@demo.test","vars":{"who":"Bob"}}]}`, provider)
			id := r.post(strings.NewReader(body))
			require.EqualValues(t, 2, r.done(id).Counts.Success)
			ann := r.sim.Copies(id.Log(1).String())
			require.Len(t, ann, 1)
			require.Empty(t, ann[0].Visible, "nobody sees another recipient")
			require.Equal(t, "For <Ann & Bo>", ann[0].Subject)
			require.Equal(t, "T <Ann & Bo>", ann[0].Text)
			require.Equal(t, "<i>&lt;Ann &amp; Bo&gt;</i>", ann[0].HTML)
			bob := r.sim.Copies(id.Log(2).String())
			require.Len(t, bob, 1)
			require.Equal(t, "For Bob", bob[0].Subject)
		}
	})
}

// A provider without events: accepted is success, marked as unconfirmed.
func TestProviderWithoutEvents(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_PROVIDERS_SG_EVENTS=none")
		r.serveHere()
		id := r.post(batchBody(10, `,"providers":["sg"]`, plainAddress))
		require.EqualValues(t, 10, r.done(id).Counts.Success)
		require.Equal(t, models.Unconfirmed, r.logs(id, "success")[0].Reason)
	})
}

// A provider whose webhooks cannot be verified, because no key is configured,
// says so at the start, and its posts are answered 503: the provider repeats
// them, and nothing is believed meanwhile. Without events none is needed.
func TestProviderWithoutWebhookKey(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY=", "SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY=",
			"SAFEDELIVR_PROVIDERS_SG_EVENTS=none", "SAFEDELIVR_LOG=warn")
		c := r.start(r.addr, nil, "serve")
		require.Contains(t, c.out.String(), "no webhook_key")
		require.Contains(t, c.out.String(), "provider=mg")
		require.NotContains(t, c.out.String(), "provider=sg")
		resp, err := http.Post("http://"+r.addr+"/webhooks/mg", "application/json", strings.NewReader(`{"signature":{}}`))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		id := r.post(batchBody(5, `,"providers":["sg"]`, plainAddress))
		require.EqualValues(t, 5, r.done(id).Counts.Success)
	})
}

// Roles apart: one API, one webhook door and two workers as processes of their
// own; one worker is killed in the middle.
func TestRolesApart(t *testing.T) {
	b := backends()[1]
	t.Run(b.name, func(t *testing.T) {
		const n = 20_000
		r := newRig(t, b, simulator.Options{Latency: 50 * time.Millisecond}, "SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=200", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=200",
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=2", "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=2")
		hooks := freeAddr(t)
		for _, a := range []string{"sg", "mg"} {
			r.sim.SetWebhookURL(a, "http://"+hooks+"/webhooks/"+a)
		}
		r.start(r.addr, nil, "serve", "--roles", "api")
		r.start(hooks, nil, "serve", "--roles", "webhooks")
		victim := r.start(freeAddr(t), []string{"SAFEDELIVR_WORKER=victim"}, "serve", "--roles", "worker")
		r.start(freeAddr(t), []string{"SAFEDELIVR_WORKER=other"}, "serve", "--roles", "worker")
		id := r.post(batchBody(n, "", plainAddress))
		r.waitAccepted(n / 4)
		victim.kill()
		done := r.done(id)
		unknown := r.exactlyOnce(id, n)
		require.EqualValues(t, n, done.Counts.Success+int64(unknown))
		r.statsAgree(id)
		var providers struct {
			Providers []struct {
				Name   string
				Health *struct{ State string }
			}
		}
		r.get("/v1/providers", &providers)
		require.Len(t, providers.Providers, 2)
		require.NotNil(t, providers.Providers[0].Health, "the API tells what the workers see")
	})
}

func TestDemo(t *testing.T) {
	r := &strings.Builder{}
	code := run(context.Background(), []string{"demo", "--exit", "--json", "--recipients", "3000", "--data-dir", t.TempDir(), "--listen", freeAddr(t)},
		streams{out: r, err: testLog{t}}, nil)
	require.Zero(t, code, r.String())
	lines := strings.Split(strings.TrimSpace(r.String()), "\n")
	var s demoSummary
	decode(t, []byte(lines[len(lines)-1]), &s)
	require.EqualValues(t, 3000, s.Accepted)
	require.Zero(t, s.Lost)
	require.Zero(t, s.Doubled)
	require.Zero(t, s.Queued)
	require.Positive(t, s.Rerouted)
	require.Positive(t, s.FailoverMS)
	require.EqualValues(t, 30, s.Failed)
}

// Users and keys are managed while the product runs, and a second server on the
// same data folder gets a clear error.
func TestManagedWhileServing(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		r := newRig(t, b, simulator.Options{})
		r.start(r.addr, nil, "serve")
		r.command("user", "add", "ann")
		secret := strings.TrimSpace(r.command("key", "add", "ann", "--name", "laptop"))
		ann := &demoClient{base: r.client.base, key: secret}
		ctx := context.Background()
		var out struct{ Batches []demoBatch }
		require.NoError(t, ann.do(ctx, http.MethodGet, "/v1/batches", nil, http.StatusOK, &out))
		list := r.command("key", "list", "ann")
		require.Contains(t, list, "laptop")
		require.NotContains(t, list, secret, "shown once")
		fields := strings.Fields(strings.Split(list, "\n")[1])
		r.command("key", "revoke", "ann", fields[0])
		require.Eventually(t, func() bool {
			return ann.do(ctx, http.MethodGet, "/v1/batches", nil, http.StatusUnauthorized, &struct{}{}) == nil
		}, patience, 50*time.Millisecond, "revoked")
		var errs strings.Builder
		require.NotZero(t, run(ctx, []string{"key", "revoke", "ann", "nokey"}, streams{out: io.Discard, err: &errs}, r.env))
		require.Contains(t, errs.String(), "nokey")
		if !b.real {
			errs.Reset()
			require.NotZero(t, run(ctx, []string{"serve"}, streams{out: io.Discard, err: &errs}, r.env))
			require.Contains(t, errs.String(), "in use")
		}
	})
}
