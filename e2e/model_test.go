//go:build full

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// TestModel drives the whole product at random, as its users, its operators and its providers do. It makes requests of
// the API, also repeated and broken off, faults of the simulated providers, through the real SDKs, commands, forged
// posts and kill -9. A model that knows only what the documentation promises compares the logs with the copies.
func TestModel(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	byFlag := checks.Value.String() != checks.DefValue
	if !byFlag { // each takes ten seconds and more
		require.NoError(t, checks.Value.Set("1"))
		t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
	}
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		n := 1
		if !byFlag {
			n = 3
			if b.Real {
				n = 2
			}
			if testkit.Long() {
				n *= 10
			}
		}
		for range n {
			checkModel(t, b)
		}
	})
}

// checkModel runs the model once for each check of the flag.
func checkModel(t *testing.T, b testkit.Backend) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, rt, b)
		rt.Repeat(map[string]func(*rapid.T){
			"post":      m.post,
			"put":       m.put,
			"repeat":    m.repeat,
			"break off": m.breakOff,
			"fault":     m.fault,
			"heal":      m.heal,
			"control":   m.control,
			"retry":     m.retry,
			"block":     m.block,
			"unblock":   m.unblock,
			"switch":    m.switchProvider,
			"forge":     m.forge,
			"kill":      m.kill,

			"suppress":       m.suppress,
			"suppress first": m.suppressFirst,
			"unsuppress":     m.unsuppress,
			"unsubscribe":    m.unsubscribe,

			"": m.checkSums,
		})
		m.finish(rt)
	})
}

// asked is a batch as its sender knows it.
type asked struct {
	id       models.ID
	key      string
	batch    client.NewBatch
	n        int
	at       time.Time // when it was first sent to the API
	hold     bool
	released bool // what was in doubt may arrive twice

	suppressed int // recipients, by the answer

	stopped, cancelled bool
}

type model struct {
	*rig
	server  *process
	batches []*asked
	blocks  []string
	listed  []listed
	keys    int

	messages map[string]*asked // by the id of the model's own: the version that was answered last
}

func newModel(t *testing.T, rt *rapid.T, b testkit.Backend) *model {
	m := &model{messages: map[string]*asked{}, rig: newRig(t, b,
		simulator.Options{Seed: rapid.Uint64().Draw(rt, "seed"), KeepContent: true}, "SAFEDELIVR_TIMES_START_BY=1s",
		"SAFEDELIVR_TIMES_EVIDENCE_WINDOW=2s",
		"SAFEDELIVR_TIMES_HOLD=500ms",
		"SAFEDELIVR_PROVIDERS_SG_TIMEOUT=1s",
		"SAFEDELIVR_PROVIDERS_MG_TIMEOUT=1s",
		"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=7",
		"SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=7")}
	m.env = append(m.env, "SAFEDELIVR_PUBLIC_URL=http://"+m.addr) // for the links to unsubscribe
	m.client = m.clientWith(strings.TrimSpace(m.command("key", "add", "tester", "--scope", "send,read,operate")))
	m.server = m.start(m.addr, nil, "serve")
	rt.Cleanup(func() {
		m.server.kill()
		m.sim.Close()
	})
	return m
}

// request makes one request with options.
type request func(ctx context.Context, options ...client.CallOption) error

// ask makes a request, which has a key unless it is empty. The status of the answer is 0 if none arrived.
func (m *model) ask(key string, do request) client.Response {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var r client.Response
	options := []client.CallOption{client.Into(&r)}
	if key != "" {
		options = append(options, client.IdempotencyKey(key))
	}
	err := do(ctx, options...)
	var refused *client.Error
	if err != nil && !errors.As(err, &refused) {
		return client.Response{} // it may have been cut off
	}
	return r
}

// must makes a request that must be answered with one of some statuses.
func (m *model) must(t *rapid.T, key string, do request, statuses ...int) client.Response {
	r := m.ask(key, do)
	if !slices.Contains(statuses, r.Status) {
		t.Fatalf("a request was answered %d, not %v", r.Status, statuses)
	}
	return r
}

// create returns the request that has b accepted, and notes its answer.
func (m *model) create(t *rapid.T, b *asked) request {
	return func(ctx context.Context, options ...client.CallOption) error {
		accepted, err := m.client.CreateBatch(ctx, b.batch, options...)
		if err == nil {
			b.accepted(t, &accepted)
		}
		return err
	}
}

// kinds are the results of the mail to a recipient.
var kinds = []string{"deliver", "deliver", "deliver", "hardbounce", "blocked-sg", "blocked-mg", "open",
	"complain", "unsubscribe"}

// newKey returns an idempotency key.
func (m *model) newKey(kind string) string {
	m.keys++
	return fmt.Sprintf("%s-%d", kind, m.keys)
}

func (m *model) newBatch(t *rapid.T) *asked {
	b := &asked{
		n:    rapid.IntRange(1, 20).Draw(t, "recipients"),
		hold: rapid.IntRange(0, 3).Draw(t, "on unknown") > 0,
	}
	b.at, b.key = time.Now(), m.newKey("request")
	b.batch = client.NewBatch{From: "a@model.test", Subject: "s", Text: "t", OnUnknown: client.Resend}
	if b.hold {
		b.batch.OnUnknown = client.Hold
	}
	if rapid.IntRange(0, 3).Draw(t, "scheduled") == 0 {
		after := time.Duration(rapid.IntRange(0, 3000).Draw(t, "due in ms")) * time.Millisecond
		b.batch.DeliverAt = b.at.Add(after).Truncate(time.Millisecond)
	}
	if rapid.Bool().Draw(t, "in order") {
		b.batch.Providers = rapid.Permutation([]string{"sg", "mg"}).Draw(t, "providers")
	}
	if b.batch.Category = rapid.SampledFrom(categories).Draw(t, "category"); b.batch.Category != "" {
		b.batch.Lane = client.Bulk // whose recipients can unsubscribe
	}
	for i := range b.n {
		email := fmt.Sprintf("%s+%d@model.test", rapid.SampledFrom(kinds).Draw(t, "kind"), i)
		b.batch.To = append(b.batch.To, client.Recipient{Email: email})
	}
	return b
}

func (b *asked) accepted(t *rapid.T, a *client.Accepted) {
	id, err := models.ParseBatchID(a.ID)
	if err != nil || a.Recipients != b.n {
		t.Fatalf("a batch of %d was accepted as %+v", b.n, a)
	}
	if !b.id.IsZero() && b.id != id {
		t.Fatalf("one request, and two batches: %s and %s", b.id, id)
	}
	if !b.id.IsZero() && b.suppressed != a.Suppressed {
		t.Fatalf("one request, and two answers: %d and %d recipients are suppressed", b.suppressed, a.Suppressed)
	}
	b.id, b.suppressed = id, a.Suppressed
}

func (m *model) post(t *rapid.T) {
	b := m.newBatch(t)
	if m.must(t, b.key, m.create(t, b), http.StatusAccepted).Replayed {
		t.Fatal("a first answer says that it is repeated")
	}
	m.batches = append(m.batches, b)
}

// put creates, changes or cancels a message by an id of the model's own. Each version is a batch of one.
func (m *model) put(t *rapid.T) {
	id := fmt.Sprint("m-", rapid.IntRange(0, 4).Draw(t, "message"))
	actions := []client.Action{client.NewMessage, client.UpdateMessage, client.CancelMessage}
	c := client.MessageChange{
		ID:        id,
		Action:    rapid.SampledFrom(actions).Draw(t, "action"),
		From:      "a@model.test",
		To:        rapid.SampledFrom(kinds).Draw(t, "kind") + "+0@model.test",
		Subject:   m.newKey("version"),
		Text:      "t",
		OnUnknown: client.Hold,
	}
	b := &asked{n: 1, hold: true, at: time.Now()}
	b.batch = client.NewBatch{From: c.From, To: []client.Recipient{{Email: c.To}}}
	var results []client.ChangeResult
	m.must(t, "", func(ctx context.Context, options ...client.CallOption) (err error) {
		results, err = m.client.PutMessages(ctx, slices.Values([]client.MessageChange{c}), options...)
		return err
	}, http.StatusOK)
	r, old := results[0], m.messages[id]
	switch {
	case r.Status == "rejected":
		return
	case old == nil && r.Status != "accepted", old != nil && r.Status == "accepted":
		t.Fatalf("message %s of %+v: %+v", id, old, r)
	}
	if old != nil && r.Status != "unchanged" {
		old.cancelled = true // also if it is replaced
	}
	if c.Action == client.CancelMessage {
		return
	}
	log, err := models.ParseID(r.Log)
	if err != nil {
		t.Fatal(err)
	}
	b.id = log.Batch()
	m.batches, m.messages[id] = append(m.batches, b), b
}

func (m *model) any(t *rapid.T) *asked {
	if len(m.batches) == 0 {
		t.Skip("no batch yet")
	}
	return rapid.SampledFrom(m.batches).Draw(t, "batch")
}

// repeat repeats a request, or sends another one with its key.
func (m *model) repeat(t *rapid.T) {
	b := m.any(t)
	if b.key == "" {
		t.Skip("a message by its id")
	}
	if rapid.Bool().Draw(t, "another") {
		another := b.batch
		another.Subject = "another"
		m.must(t, b.key, func(ctx context.Context, options ...client.CallOption) error {
			_, err := m.client.CreateBatch(ctx, another, options...)
			return err
		}, http.StatusUnprocessableEntity)
		return
	}
	if !m.must(t, b.key, m.create(t, b), http.StatusAccepted).Replayed {
		t.Fatal("a repeated answer does not say so")
	}
}

// breakOff kills the process while it handles a request for a batch.
func (m *model) breakOff(t *rapid.T) {
	b := m.newBatch(t)
	m.cutOff(t, func() int { return m.ask(b.key, m.create(t, b)).Status }, http.StatusAccepted)
	m.batches = append(m.batches, b)
}

// cutOff kills the process while it handles a request, which is then repeated until it is answered with a status.
func (m *model) cutOff(t *rapid.T, ask func() int, want int) {
	after := time.Duration(rapid.IntRange(0, 20).Draw(t, "after ms")) * time.Millisecond
	victim := m.server.cmd.Process
	kill := time.AfterFunc(after, func() { _ = victim.Kill() })
	ask()
	kill.Stop()
	m.kill(t)
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(50 * time.Millisecond) { // between requests
		status := ask()
		if status == want {
			return
		}
		again := status == 0 || status == http.StatusConflict || status >= 500
		if !again || time.Now().After(end) {
			t.Fatalf("a request that was broken off is answered %d", status)
		}
	}
}

// kill kills the process as kill -9 does, and starts it again.
func (m *model) kill(*rapid.T) {
	m.server.kill()
	m.server = m.start(m.addr, nil, "serve")
}

// faults are those of the providers.
var faults = []simulator.Fault{
	{Mode: simulator.ModeStatus, Status: 503},
	{Mode: simulator.ModeStatus, Status: 500},
	{Mode: simulator.ModeStatus, Status: 502, Store: true},
	{Mode: simulator.ModeHang},
	{Mode: simulator.ModeHangAfterBody},
	{Mode: simulator.ModeAcceptThenClose},
	{Mode: simulator.ModeTruncate},
	{Mode: simulator.ModeRate, RetryAfter: 300 * time.Millisecond},
	{Mode: simulator.ModeCredits},
	{Mode: simulator.ModeUnverified},
	{Mode: simulator.ModeTooLarge},
	{Mode: simulator.ModeCloseUnread},
	{Mode: simulator.ModeGarbage},
	{Mode: simulator.ModeEventsDuplicate},
	{Mode: simulator.ModeEventsShuffle},
	{Mode: simulator.ModeEventsDelay, Delay: 500 * time.Millisecond},
}

func (m *model) fault(t *rapid.T) {
	f := rapid.SampledFrom(faults).Draw(t, "fault")
	f.Account = rapid.SampledFrom([]string{"sg", "mg", ""}).Draw(t, "provider")
	f.Times = rapid.IntRange(0, 4).Draw(t, "times")
	m.sim.Inject(f)
}

func (m *model) heal(*rapid.T) { m.sim.ClearAll("") }

// forge posts a bounce with a wrong signature.
func (m *model) forge(t *rapid.T) {
	b := m.any(t)
	body := fmt.Sprintf(`[{"event":"bounce","type":"bounce","status":"5.1.1","email":"x@model.test","timestamp":%d,`+
		`"sg_event_id":"forged","sd_log":%q,"sd_attempt":"1"}]`, time.Now().Unix(), b.id.Log(1))
	to := m.client.URL("/webhooks/sg")
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", strconv.FormatInt(time.Now().Unix(), 10))
	r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", "MEUCIQDforged")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode < 400 {
		t.Fatalf("a forged post was answered %d", resp.StatusCode)
	}
}

// checkSums requires that the sums of every batch add up at every moment.
func (m *model) checkSums(t *rapid.T) {
	for _, b := range m.batches {
		if v := m.read(t, b); !balanced(&v.Counts) || v.Counts.Accepted != int64(b.n) {
			t.Fatalf("the sums of a batch of %d do not add up: %+v", b.n, v.Counts)
		}
	}
}

func (m *model) read(t *rapid.T, b *asked) client.Batch {
	v, err := m.client.Batch(context.Background(), b.id.String())
	if err != nil {
		t.Fatal(err)
	}
	return v
}
