package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/simulator"
)

// TestModel drives the whole product at random, as its users, its operators and
// its providers do: requests of the API, also repeated and broken off; faults of
// the simulated providers, through the real SDKs; orders; forged posts; kill -9. A
// model that knows only what was promised holds the logs against the copies.
func TestModel(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		checks := flag.Lookup("rapid.checks")
		if before := checks.Value.String(); before == checks.DefValue { // each takes ten seconds and more
			n := 3
			if b.real {
				n = 2
			}
			if long() {
				n *= 10
			}
			require.NoError(t, checks.Value.Set(strconv.Itoa(n)))
			t.Cleanup(func() { _ = checks.Value.Set(before) })
		}
		rapid.Check(t, func(rt *rapid.T) {
			m := newModel(t, rt, b)
			rt.Repeat(map[string]func(*rapid.T){
				"post": m.post, "repeat": m.repeat, "break off": m.breakOff, "fault": m.fault, "mend": m.mend, "steer": m.steer, "retry": m.retry,
				"block": m.block, "unblock": m.unblock, "switch": m.switchProvider, "forge": m.forge, "kill": m.kill, "": m.look,
			})
			m.finish(rt)
		})
	})
}

// asked is a batch as its sender knows it.
type asked struct {
	id     models.ID
	key    string
	body   []byte
	n      int
	hold   bool
	byHand bool // released: what was in doubt may come twice

	stopped, cancelled bool
}

type model struct {
	*rig
	server  *child
	batches []*asked
	blocks  []string
	keys    int
}

func newModel(t *testing.T, rt *rapid.T, b backend) *model {
	m := &model{rig: newRig(t, b, simulator.Options{Seed: rapid.Uint64().Draw(rt, "seed")},
		"SAFEDELIVR_TIMES_START_BY=1s", "SAFEDELIVR_TIMES_EVIDENCE_WINDOW=2s", "SAFEDELIVR_TIMES_HOLD=500ms",
		"SAFEDELIVR_PROVIDERS_SG_TIMEOUT=1s", "SAFEDELIVR_PROVIDERS_MG_TIMEOUT=1s", "SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=7", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=7")}
	m.client.key = strings.TrimSpace(m.command("key", "add", "tester", "--scope", "send,read,operate"))
	m.server = m.start(m.addr, nil, "serve")
	rt.Cleanup(func() {
		m.server.kill()
		m.sim.Close()
	})
	return m
}

// ask makes a request and returns what was answered; 0: nothing was.
func (m *model) ask(t *rapid.T, method, path, key string, body []byte) (status int, answer []byte, replayed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, m.client.base+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+m.client.key)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, false
	}
	defer func() { _ = resp.Body.Close() }()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, false
	}
	return resp.StatusCode, answer, resp.Header.Get("Idempotency-Replayed") == "true"
}

// must makes a request that may be answered in one of these ways only.
func (m *model) must(t *rapid.T, method, path, key string, body []byte, statuses ...int) (int, []byte, bool) {
	status, answer, replayed := m.ask(t, method, path, key, body)
	for _, s := range statuses {
		if status == s {
			return status, answer, replayed
		}
	}
	t.Fatalf("%s %s was answered %d: %s", method, path, status, answer)
	return 0, nil, false
}

// kinds of recipients: what becomes of their mail.
var kinds = []string{"deliver", "deliver", "deliver", "hardbounce", "blocked-sg", "blocked-mg", "open"}

func (m *model) letter(t *rapid.T) *asked {
	b := &asked{n: rapid.IntRange(1, 20).Draw(t, "recipients"), hold: rapid.IntRange(0, 3).Draw(t, "on unknown") > 0}
	m.keys++
	b.key = fmt.Sprintf("request-%d", m.keys)
	letter := map[string]any{"from": "a@model.test", "subject": "s", "text": "t", "on_unknown": "resend"}
	if b.hold {
		letter["on_unknown"] = "hold"
	}
	if rapid.Bool().Draw(t, "in order") {
		letter["providers"] = rapid.Permutation([]string{"sg", "mg"}).Draw(t, "providers")
	}
	to := make([]string, b.n)
	for i := range to {
		to[i] = fmt.Sprintf("%s+%d@model.test", rapid.SampledFrom(kinds).Draw(t, "kind"), i)
	}
	letter["to"] = to
	var err error
	if b.body, err = json.Marshal(letter); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *asked) accepted(t *rapid.T, answer []byte) {
	var v struct {
		ID         models.ID `json:"id"`
		Recipients int       `json:"recipients"`
	}
	if err := json.Unmarshal(answer, &v); err != nil || v.Recipients != b.n {
		t.Fatalf("a batch of %d was accepted so: %s", b.n, answer)
	}
	if !b.id.IsZero() && b.id != v.ID {
		t.Fatalf("one request, and two batches: %s and %s", b.id, v.ID)
	}
	b.id = v.ID
}

func (m *model) post(t *rapid.T) {
	b := m.letter(t)
	_, answer, replayed := m.must(t, http.MethodPost, "/v1/batches", b.key, b.body, http.StatusAccepted)
	if replayed {
		t.Fatal("a first answer says that it is repeated")
	}
	b.accepted(t, answer)
	m.batches = append(m.batches, b)
}

func (m *model) any(t *rapid.T) *asked {
	if len(m.batches) == 0 {
		t.Skip("no batch yet")
	}
	return rapid.SampledFrom(m.batches).Draw(t, "batch")
}

// repeat asks again what was asked before, or something else under its key.
func (m *model) repeat(t *rapid.T) {
	b := m.any(t)
	if rapid.Bool().Draw(t, "another") {
		m.must(t, http.MethodPost, "/v1/batches", b.key, []byte(`{"from":"a@model.test","subject":"another","text":"t","to":["x@model.test"]}`), http.StatusUnprocessableEntity)
		return
	}
	_, answer, replayed := m.must(t, http.MethodPost, "/v1/batches", b.key, b.body, http.StatusAccepted)
	if !replayed {
		t.Fatal("a repeated answer does not say so")
	}
	b.accepted(t, answer)
}

// breakOff kills the process while it works off a request, which its sender then
// repeats until it is answered.
func (m *model) breakOff(t *rapid.T) {
	b := m.letter(t)
	kill := time.AfterFunc(time.Duration(rapid.IntRange(0, 20).Draw(t, "after ms"))*time.Millisecond, func() { _ = m.server.cmd.Process.Kill() })
	status, answer, _ := m.ask(t, http.MethodPost, "/v1/batches", b.key, b.body)
	kill.Stop()
	if status == http.StatusAccepted {
		b.accepted(t, answer)
	}
	m.kill(t)
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // between questions
		status, answer, _ = m.ask(t, http.MethodPost, "/v1/batches", b.key, b.body)
		if status == http.StatusAccepted {
			break
		}
		if status != http.StatusConflict && status < 500 || time.Now().After(end) {
			t.Fatalf("a request that was broken off is answered %d: %s", status, answer)
		}
	}
	b.accepted(t, answer)
	m.batches = append(m.batches, b)
}

// kill is kill -9, and a new start.
func (m *model) kill(*rapid.T) {
	m.server.kill()
	m.server = m.start(m.addr, nil, "serve")
}

// troubles are what befalls the providers.
var troubles = []simulator.Fault{
	{Mode: simulator.ModeStatus, Status: 503}, {Mode: simulator.ModeStatus, Status: 500}, {Mode: simulator.ModeStatus, Status: 502, Store: true},
	{Mode: simulator.ModeHang}, {Mode: simulator.ModeHangAfterBody}, {Mode: simulator.ModeAcceptThenClose}, {Mode: simulator.ModeTruncate},
	{Mode: simulator.ModeRate, RetryAfter: 300 * time.Millisecond}, {Mode: simulator.ModeCredits}, {Mode: simulator.ModeUnverified}, {Mode: simulator.ModeTooLarge},
	{Mode: simulator.ModeCloseUnread}, {Mode: simulator.ModeGarbage},
	{Mode: simulator.ModeEventsDuplicate}, {Mode: simulator.ModeEventsShuffle}, {Mode: simulator.ModeEventsDelay, Delay: 500 * time.Millisecond},
}

func (m *model) fault(t *rapid.T) {
	f := rapid.SampledFrom(troubles).Draw(t, "fault")
	f.Account = rapid.SampledFrom([]string{"sg", "mg", ""}).Draw(t, "provider")
	f.Times = rapid.IntRange(0, 4).Draw(t, "times")
	m.sim.Inject(f)
}

func (m *model) mend(*rapid.T) { m.sim.ClearAll("") }

// steer stops, resumes or cancels a batch, with one request or the same twice.
func (m *model) steer(t *rapid.T) {
	b, do := m.any(t), rapid.SampledFrom([]string{"stop", "stop", "resume", "resume", "cancel"}).Draw(t, "order")
	m.keys++
	path, key := "/v1/batches/"+b.id.String()+"/"+do, fmt.Sprintf("order-%d", m.keys)
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		status, _, _ := m.must(t, http.MethodPost, path, key, []byte(`{"why":"the model"}`), http.StatusOK, http.StatusConflict)
		if status == http.StatusConflict { // not of a batch that was cancelled
			if !b.cancelled || do == "cancel" {
				t.Fatalf("%s was refused", do)
			}
			return
		}
	}
	switch do {
	case "cancel":
		b.cancelled = true
	default:
		b.stopped = do == "stop"
	}
}

// retry sends again what failed, or is held.
func (m *model) retry(t *rapid.T) {
	b, do := m.any(t), rapid.SampledFrom([]string{"retry", "release"}).Draw(t, "how")
	status, _, _ := m.must(t, http.MethodPost, "/v1/batches/"+b.id.String()+"/"+do, "", []byte(`{}`), http.StatusOK, http.StatusConflict)
	b.byHand = b.byHand || do == "release" && status == http.StatusOK
}

func (m *model) block(t *rapid.T) {
	rule := rapid.SampledFrom([]string{`{"provider":"sg"}`, `{"sender":"@model.test"}`, `{"domain":"model.test"}`}).Draw(t, "rule")
	_, answer, _ := m.must(t, http.MethodPost, "/v1/blocks", "", []byte(rule), http.StatusOK, http.StatusCreated)
	var v struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(answer, &v); err != nil || v.ID == "" {
		t.Fatalf("a block was answered %s", answer)
	}
	m.blocks = append(m.blocks, v.ID)
}

func (m *model) unblock(t *rapid.T) {
	for _, id := range m.blocks {
		m.must(t, http.MethodDelete, "/v1/blocks/"+id, "", nil, http.StatusNoContent, http.StatusNotFound)
	}
	m.blocks = nil
}

func (m *model) switchProvider(t *rapid.T) {
	provider, do := rapid.SampledFrom([]string{"sg", "mg"}).Draw(t, "provider"), rapid.SampledFrom([]string{"offline", "online", "drain", "probe"}).Draw(t, "position")
	fine := []int{http.StatusOK}
	if do == "probe" {
		fine = append(fine, http.StatusConflict) // it is offline
	}
	m.must(t, http.MethodPost, "/v1/providers/"+provider+"/"+do, "", []byte(`{}`), fine...)
}

// forge posts a bounce with a signature that is none.
func (m *model) forge(t *rapid.T) {
	b := m.any(t)
	body := fmt.Sprintf(`[{"event":"bounce","type":"bounce","status":"5.1.1","email":"x@model.test","timestamp":%d,"sg_event_id":"forged","sd_log":%q,"sd_attempt":"1"}]`,
		time.Now().Unix(), b.id.Log(1))
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, m.client.base+"/webhooks/sg", strings.NewReader(body))
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

// look reads a batch: its sums add up at every moment.
func (m *model) look(t *rapid.T) {
	for _, b := range m.batches {
		if v := m.read(t, b); !v.Counts.balanced() || v.Counts.Accepted != int64(b.n) {
			t.Fatalf("the sums of a batch of %d do not add up: %+v", b.n, v.Counts)
		}
	}
}

func (m *model) read(t *rapid.T, b *asked) (v demoBatch) {
	if err := m.client.do(context.Background(), http.MethodGet, "/v1/batches/"+b.id.String(), nil, http.StatusOK, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// finish lifts everything, waits until every log has ended, and holds all of them
// against the copies.
func (m *model) finish(t *rapid.T) {
	m.sim.ClearAll("")
	m.unblock(t)
	for _, provider := range []string{"sg", "mg"} {
		m.must(t, http.MethodPost, "/v1/providers/"+provider+"/online", "", []byte(`{}`), http.StatusOK)
	}
	for _, b := range m.batches {
		if b.stopped && !b.cancelled {
			m.must(t, http.MethodPost, "/v1/batches/"+b.id.String()+"/resume", "", []byte(`{}`), http.StatusOK)
		}
	}
	var list struct {
		Batches []demoBatch `json:"batches"`
	}
	if m.get("/v1/batches?limit=200", &list); len(list.Batches) != len(m.batches) {
		t.Fatalf("%d requests were accepted, and there are %d batches", len(m.batches), len(list.Batches))
	}
	var wrong error
	for end := time.Now().Add(patience / 2); ; time.Sleep(50 * time.Millisecond) { // between questions
		if wrong = m.held(t); wrong == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(wrong)
		}
	}
	ids := make([]models.ID, len(m.batches))
	for i, b := range m.batches {
		ids[i] = b.id
	}
	m.statsAgree(ids...)
	m.server.kill()
	var check telemetry.Recount
	if out := m.command("check", "--json"); json.Unmarshal([]byte(out), &check) != nil || check.Differences > 0 || check.Batches != len(m.batches) {
		t.Fatalf("a check says %s", out)
	}
}

// held holds every log against what was promised. What has not happened yet is an
// error, too: the caller waits.
func (m *model) held(t *rapid.T) error {
	if err := m.sim.Settle(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, b := range m.batches {
		v := m.read(t, b)
		if v.State != models.BatchDone {
			return fmt.Errorf("batch %s does not end: %+v", b.id, v.Counts)
		}
		logs := m.logs(b.id, "")
		if len(logs) != b.n {
			return fmt.Errorf("a batch of %d has %d logs", b.n, len(logs))
		}
		for i := range logs {
			if err := m.log(b, &logs[i]); err != nil {
				return fmt.Errorf("%w: %+v of %+v, copies %+v", err, logs[i], *b, m.sim.Copies(logs[i].ID.String()))
			}
		}
	}
	return nil
}

// log holds one log against the copies of its mail.
func (m *model) log(b *asked, l *logLine) error {
	copies, delivered, bounced := m.sim.Copies(l.ID.String()), 0, strings.HasPrefix(l.Email, "hardbounce")
	for i := range copies {
		if o := copies[i].Outcome; o == "deliver" || o == "open" {
			delivered++
		}
	}
	wanted := l.MayDouble && (b.byHand || !b.hold) // it was in doubt, and its sender or an operator wanted it all the same
	switch {
	case delivered > 1 && !wanted:
		return errors.New("doubled")
	case bounced && len(copies) > 1 && !wanted:
		return errors.New("a hard bounce was routed around")
	case delivered > 0 && l.State != models.Success:
		return errors.New("delivered, and it does not say so")
	}
	switch l.State {
	case models.Success:
		if delivered == 0 {
			return errors.New("success, and nothing was delivered")
		}
	case models.Cancelled:
		if !b.cancelled {
			return errors.New("cancelled by nobody")
		}
	case models.Failed:
		if l.Reason == "" {
			return errors.New("failed without a reason")
		}
		if l.Reason == models.Expired || l.Reason == models.NoFinalEvent || l.Reason == models.BlockedByRule {
			return errors.New("ended by what was not asked for")
		}
	case models.Queued:
		return errors.New("queued in a batch that is done")
	}
	return nil
}
