package consumers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/memory"
)

// behaviours are what a simulated provider may do with a call.
var behaviours = []string{
	"takes",
	"takes",
	"refuses",
	"throttles",
	"is unavailable",
	"refuses the provider",
	"takes and does not say",
	"takes and does not say",
	"neither takes nor says",
}

// modelled is a chunk of a batch with the commands that were given for the batch.
type modelled struct {
	*models.Batch
	*given
	chunk models.ID
	size  int
}

// given says which commands were given for a batch.
type given struct{ stopped, cancelled bool }

// promises is the model, and the engine that it is compared with.
type promises struct {
	store  *memory.Store
	broker *inproc.Broker
	end    func() // stops the engine
	close  func() // stops all
	engine *Engine
	user   string

	batches []*modelled
	kills   int

	mu        sync.Mutex
	behaviour map[string]string
	delivered map[models.ID]int  // delivered copies by log
	taken     map[models.ID]int  // accepted copies by log
	envelopes map[models.ID]int  // addresses of the batches that are envelopes
	doubtful  map[models.ID]bool // logs with a call that was not answered
	outbox    []modelEvent
	accepted  chan struct{} // closed when a call is accepted; nil: no test waits

	divided string // what is wrong with a call of an envelope; "": nothing

	suppressed map[string]time.Time // when it was answered, by address
	called     map[models.ID]string // suppressed addresses that were called afterwards, by log

	due   map[models.ID]time.Time // before which no call may begin, by chunk
	early models.ID               // a log that was called before; zero: none

	past []modelEvent
}

// modelStartBy is the time from the beginning of an attempt to the latest time of its call.
const modelStartBy = 200 * time.Millisecond

var modelProviders = []string{"sg", "mg"}

// newPromises returns a model with a running engine.
func newPromises(t *rapid.T) *promises {
	m := &promises{
		store:     memory.New(store.Options{}),
		user:      models.NewUserID(),
		behaviour: map[string]string{"sg": "takes", "mg": "takes"},
		delivered: map[models.ID]int{},
		taken:     map[models.ID]int{},
		envelopes: map[models.ID]int{},
		doubtful:  map[models.ID]bool{},

		suppressed: map[string]time.Time{},
		called:     map[models.ID]string{},
		due:        map[models.ID]time.Time{},
	}
	m.begin(t)
	m.close = func() {
		m.end()
		_ = m.store.Close()
	}
	return m
}

// must stops the test if err is not nil.
func must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin starts an engine with an empty broker.
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
					Carries:     models.Capabilities{Copies: true, Variables: true},
					Timeout:     time.Second,
					Events:      models.EventsWebhook,
				},
			},
		)
	}
	cfg := fast()
	cfg.Sole, cfg.EvidenceWindow, cfg.StartBy = true, 100*time.Millisecond, modelStartBy
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

// answer returns a provider's answer to a call.
func (m *promises) answer(name string, c *models.Call) []models.Part {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := c.StartBy.Add(-modelStartBy)
	for i := range c.Recipients {
		r := &c.Recipients[i]
		if at, ok := m.suppressed[r.Email]; ok && began.After(at) {
			m.called[r.Log] = r.Email
		}
		if began.Before(m.due[r.Log.ChunkID()]) {
			m.early = r.Log
		}
	}
	m.together(c)
	take := func() {
		if m.accepted != nil {
			close(m.accepted)
			m.accepted = nil
		}
		for i := range c.Recipients {
			log := c.Recipients[i].Log
			m.taken[log]++
			ev := models.Event{ID: fmt.Sprint(log, name, c.Attempt), Attempt: c.Attempt, Kind: models.Delivered, At: time.Now()}
			named := log
			if c.Together() { // the provider knows only the log of the address in To
				named = c.Recipients[0].Log
			}
			switch n := log.Recipient() % 9; {
			case n == 4:
				ev.Kind, ev.Reason = models.Bounced, models.MailboxInvalid
			case n == 7 && name == "sg":
				ev.Kind, ev.Reason = models.Blocked, models.PolicyReputation
			default:
				m.delivered[log]++
			}
			parsed := models.ParsedEvent{Log: named, Address: c.Recipients[i].Email, Event: ev}
			m.outbox = append(m.outbox, modelEvent{name, parsed})
			if ev.Kind == models.Delivered && log.Recipient()%2 == 0 {
				parsed.Event.ID, parsed.Event.Kind = ev.ID+" opened", models.Opened
				m.outbox = append(m.outbox, modelEvent{name, parsed})
			}
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
	case "is unavailable":
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

// together notes a call of an envelope that is not as it must be: one mail to all until a provider has taken it, then
// mail to single addresses. An address that has it may get it again only if an outcome was unknown.
func (m *promises) together(c *models.Call) {
	size := m.envelopes[c.Batch]
	if size == 0 {
		return
	}
	taken := false
	for n := 1; n <= size; n++ {
		taken = taken || m.taken[c.Batch.Log(n)] > 0
	}
	first := c.Recipients[0].Log.Recipient() == 1
	switch {
	case c.Together() && !first:
		m.divided = "one mail without the address in To"
	case !c.Together() && !taken && !m.doubtful[c.Batch.Log(1)]:
		m.divided = "a call for single addresses although no provider had the mail"
	case c.Together() && taken && !m.doubtful[c.Batch.Log(1)] && m.kills == 0:
		m.divided = "a second mail to all"
	}
}

func (m *promises) view(t *rapid.T, b *modelled) *models.View {
	entries, facts, err := m.store.Record(context.Background(), b.chunk)
	must(t, err)
	return models.Resolve(b.size, entries, facts)
}
