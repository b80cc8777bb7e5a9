package consumers

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite"
)

// TestPromises drives an engine on the embedded backends at random: batches,
// answers of providers, their events, orders, purged queues, kills. A model that
// knows only what was promised looks at what providers took.
func TestPromises(t *testing.T) {
	t.Parallel()
	checks := flag.Lookup("rapid.checks")
	if checks.Value.String() == checks.DefValue { // each takes a good part of a second
		if err := flag.Set("rapid.checks", "8"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		m := newPromises(t)
		t.Repeat(map[string]func(*rapid.T){
			"post": m.post, "answers": m.answers, "report": func(t *rapid.T) { m.report(t, rapid.IntRange(1, 30).Draw(t, "events")) }, "forge": m.forge,
			"stop": m.stop, "resume": m.resume, "cancel": m.cancel, "purge": m.purge, "kill": m.kill, "work": m.work, "": m.balanced,
		})
		m.finish(t)
	})
}

// behaviours of a simulated provider.
var behaviours = []string{
	"takes",
	"takes",
	"refuses",
	"throttles",
	"is away",
	"refuses the provider",
	"takes and does not say",
	"takes and does not say",
	"neither takes nor says",
}

// happening is an event that a provider has yet to report.
type happening struct {
	provider string
	models.ParsedEvent
}

type modelled struct {
	*models.Batch
	stopped, cancelled bool
}

// promises is the model, and what it is held against.
type promises struct {
	store  *sqlite.Store
	broker *inproc.Broker
	end    func()
	engine *Engine
	user   string

	batches []*modelled
	kills   int

	mu        sync.Mutex
	behaviour map[string]string
	delivered map[models.ID]int  // copies that reached somebody, by log
	taken     map[models.ID]int  // copies, by log
	doubtful  map[models.ID]bool // logs of calls that were not answered
	outbox    []happening
	past      []happening
}

var modelProviders = []string{"sg", "mg"}

func newPromises(t *rapid.T) *promises {
	dir, err := os.MkdirTemp("", "promises-")
	must(t, err)
	m := &promises{
		user:      models.NewUserID(),
		behaviour: map[string]string{"sg": "takes", "mg": "takes"},
		delivered: map[models.ID]int{},
		taken:     map[models.ID]int{},
		doubtful:  map[models.ID]bool{},
	}
	m.store, err = sqlite.Open(dir, sqlite.Options{})
	must(t, err)
	m.begin(t)
	t.Cleanup(func() {
		m.end()
		_ = m.store.Close()
		_ = os.RemoveAll(dir)
	})
	return m
}

func must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin starts an engine with a broker that holds nothing.
func (m *promises) begin(t *rapid.T) {
	var err error
	m.broker, err = inproc.New(modelProviders, nil)
	must(t, err)
	var providers []provider.Spec
	for _, name := range modelProviders {
		providers = append(
			providers,
			provider.Spec{
				Adapter: newScripted(name, func(ctx context.Context, c *models.Call) []models.Part { return m.answer(name, c) }),
				Provider: models.Provider{
					Name:        name,
					Weight:      1,
					Concurrency: 4,
					ChunkLimit:  7,
					Timeout:     time.Second,
					Events:      models.EventsWebhook,
				},
			},
		)
	}
	cfg := fast()
	cfg.Sole, cfg.EvidenceWindow, cfg.StartBy = true, 100*time.Millisecond, 200*time.Millisecond
	m.engine, err = New(m.store, m.broker, providers, cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	engine, broker := m.engine, m.broker
	go func() { done <- engine.Run(ctx, time.Millisecond) }()
	m.end = func() {
		cancel()
		<-done
		_ = broker.Close()
	}
}

// answer is what a provider does with a call.
func (m *promises) answer(name string, c *models.Call) []models.Part {
	m.mu.Lock()
	defer m.mu.Unlock()
	take := func() {
		for i := range c.Recipients {
			log := c.Recipients[i].Log
			m.taken[log]++
			ev := models.Event{ID: fmt.Sprint(log, name, c.Attempt), Attempt: c.Attempt, Kind: models.Delivered, At: time.Now()}
			switch n := log.Recipient() % 9; {
			case n == 4:
				ev.Kind, ev.Reason = models.Bounced, models.MailboxInvalid
			case n == 7 && name == "sg":
				ev.Kind, ev.Reason = models.Blocked, models.PolicyReputation
			default:
				m.delivered[log]++
			}
			m.outbox = append(m.outbox, happening{name, models.ParsedEvent{Log: log, Event: ev}})
		}
	}
	doubt := func() {
		for i := range c.Recipients {
			m.doubtful[c.Recipients[i].Log] = true
		}
	}
	switch m.behaviour[name] {
	case "refuses":
		return part(models.RejectedHereClass, c)
	case "throttles":
		return part(models.Throttled, c)
	case "is away":
		return part(models.Unavailable, c)
	case "refuses the provider":
		return part(models.AccountClass, c)
	case "takes and does not say":
		take()
		doubt()
		return part(models.Unknown, c)
	case "neither takes nor says":
		doubt()
		return part(models.Unknown, c)
	}
	take()
	return part(models.Accepted, c)
}

func (m *promises) post(t *rapid.T) {
	now := time.Now()
	n := rapid.IntRange(1, 30).Draw(t, "recipients")
	b := &models.Batch{
		ID:      models.NewBatchID(now),
		User:    m.user,
		Content: models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
		Lane: rapid.SampledFrom(
			[]models.Lane{models.Bulk, models.Urgent},
		).Draw(
			t,
			"lane",
		),
		Recipients: n,
		Chunks:     1,
		Deadline:   now.Add(time.Hour),
		OnUnknown:  rapid.SampledFrom([]models.UnknownPolicy{models.Hold, models.Hold, models.Resend}).Draw(t, "on unknown"),
	}
	rs := make([]models.Recipient, n)
	for i := range rs {
		rs[i].Email = fmt.Sprintf("u%d@x.test", i+1)
	}
	ctx := context.Background()
	must(
		t,
		m.store.Schedule(
			ctx,
			models.AgendaEntry{
				Due:    now.Add(100 * time.Millisecond),
				Kind:   models.LookAtBatch,
				ID:     b.ID,
				User:   b.User,
				Chunks: 1,
			},
		),
	)
	must(t, m.store.PutBatch(ctx, *b, models.Chunk{ID: b.ID, Recipients: rs}))
	m.batches = append(m.batches, &modelled{Batch: b})
	if rapid.Bool().Draw(t, "announced") {
		must(t, m.broker.Publish(ctx, models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}))
		m.work(t)
	}
}

func (m *promises) answers(t *rapid.T) {
	name, how := rapid.SampledFrom(modelProviders).Draw(t, "provider"), rapid.SampledFrom(behaviours).Draw(t, "behaviour")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behaviour[name] = how
}

// report posts events that have happened, in any order, and some of them again.
func (m *promises) report(t *rapid.T, most int) {
	m.mu.Lock()
	now := m.outbox[:min(most, len(m.outbox))]
	m.outbox = slices.Clone(m.outbox[len(now):])
	m.past = append(m.past, now...)
	now = slices.Clone(now)
	if len(m.past) > 0 {
		now = append(now, m.past[rapid.IntRange(0, len(m.past)-1).Draw(t, "again")])
	}
	m.mu.Unlock()
	if len(now) > 1 {
		now = rapid.Permutation(now).Draw(t, "order")
	}
	for _, ev := range now {
		m.file(t, ev)
	}
}

// file is the door for webhooks.
func (m *promises) file(t *rapid.T, ev happening) {
	ctx := context.Background()
	body, err := json.Marshal([]models.ParsedEvent{ev.ParsedEvent})
	must(t, err)
	in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: ev.provider, Posts: []models.Post{{Body: body}}}
	must(t, m.store.PutInbox(ctx, in))
	must(t, m.broker.Publish(ctx, models.Message{Kind: models.EventMessage, Provider: ev.provider, ID: in.ID}))
}

// forge reports a bounce of an attempt that never was.
func (m *promises) forge(t *rapid.T) {
	b := m.any(t)
	m.file(
		t,
		happening{
			"sg",
			models.ParsedEvent{
				Log: b.ID.Log(1),
				Event: models.Event{
					ID:      "forged",
					Attempt: 999,
					Kind:    models.Bounced,
					Reason:  models.MailboxInvalid,
					At:      time.Now(),
				},
			},
		},
	)
}

func (m *promises) any(t *rapid.T) *modelled {
	if len(m.batches) == 0 {
		t.Skip("no batch yet")
	}
	return rapid.SampledFrom(m.batches).Draw(t, "batch")
}

func (m *promises) order(t *rapid.T, c models.Command) {
	c.By = "model"
	_, err := m.engine.follower.Append(context.Background(), &c, nil)
	must(t, err)
}

func (m *promises) stop(t *rapid.T) {
	b := m.any(t)
	b.stopped = true
	m.order(t, models.Command{Kind: models.StopBatch, Batch: b.ID})
}

func (m *promises) resume(t *rapid.T) {
	b := m.any(t)
	b.stopped = false
	m.order(t, models.Command{Kind: models.ResumeBatch, Batch: b.ID})
}

func (m *promises) cancel(t *rapid.T) {
	b := m.any(t)
	b.cancelled = true
	m.order(t, models.Command{Kind: models.CancelBatch, Batch: b.ID})
}

func (m *promises) purge(t *rapid.T) { must(t, m.broker.Purge(context.Background())) }

// kill ends the engine with its calls in the air, and starts another.
func (m *promises) kill(t *rapid.T) {
	m.kills++
	m.end()
	m.begin(t)
}

// inflightKey waits until a call was made, or there is nothing to do.
func (m *promises) work(*rapid.T) {
	calls := func() (n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, k := range m.taken {
			n += k
		}
		return n
	}
	before := calls()
	for end := time.Now().Add(30 * time.Millisecond); calls() == before && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // between questions
	}
}

func (m *promises) view(t *rapid.T, b *modelled) *models.View {
	entries, facts, err := m.store.Record(context.Background(), b.ID)
	must(t, err)
	return models.Resolve(b.Recipients, entries, facts)
}

// balanced: the sums add up at every moment.
func (m *promises) balanced(t *rapid.T) {
	for _, b := range m.batches {
		if s := m.view(t, b).Summary(); !s.Balanced() {
			t.Fatalf("the sums of %s do not add up: %+v", b.ID, s)
		}
	}
}

// finish has everything work again and holds all logs against the model.
func (m *promises) finish(t *rapid.T) {
	m.mu.Lock()
	for _, name := range modelProviders {
		m.behaviour[name] = "takes"
	}
	m.mu.Unlock()
	for _, b := range m.batches {
		if b.stopped {
			m.order(t, models.Command{Kind: models.ResumeBatch, Batch: b.ID})
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // between questions
		m.report(t, 1_000_000)
		if m.settled(t) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("not every log ends")
		}
	}
	for _, b := range m.batches {
		v := m.view(t, b)
		for r := 1; r <= b.Recipients; r++ {
			m.kept(t, b, b.ID.Log(r), v.Status(r))
		}
	}
}

// settled reports whether every log has ended and every event that happened has
// been read.
func (m *promises) settled(t *rapid.T) bool {
	m.mu.Lock()
	left := len(m.outbox)
	m.mu.Unlock()
	if left > 0 {
		return false
	}
	for _, b := range m.batches {
		v := m.view(t, b)
		for r := 1; r <= b.Recipients; r++ {
			s := v.Status(r)
			m.mu.Lock()
			unread := m.delivered[b.ID.Log(r)] > 0 && s.State != models.Success
			m.mu.Unlock()
			if s.State == models.Queued || unread {
				return false
			}
		}
	}
	return true
}

// kept holds one log against what was promised.
func (m *promises) kept(t *rapid.T, b *modelled, log models.ID, s *models.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wrong := func(what string) {
		t.Fatalf(
			"%s: %s is %s %s, with %d copies, %d delivered, kills %d",
			what,
			log,
			s.State,
			s.Reason,
			m.taken[log],
			m.delivered[log],
			m.kills,
		)
	}
	doubt := m.doubtful[log] || m.kills > 0
	switch {
	case m.delivered[log] > 1 && b.OnUnknown == models.Hold:
		wrong("doubled")
	case m.delivered[log] > 1 && !doubt:
		wrong("doubled without a doubt")
	case s.State == models.Success && m.delivered[log] == 0:
		wrong("lost")
	case s.State == models.Cancelled && !b.cancelled:
		wrong("cancelled by nobody")
	case s.State == models.Failed && s.Reason == "":
		wrong("failed without a reason")
	case s.Reason == models.OutcomeUnknown && s.State == models.Failed && !doubt:
		wrong("nothing was unknown")
	}
}
