package consumers

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// TestPromises drives an engine on the embedded backends at random: batches, answers and events of
// providers, commands, suppressions, purged queues and kills. A model compares the logs with what the providers
// have accepted and delivered.
func TestPromises(t *testing.T) {
	t.Parallel()
	fewChecks()
	rapid.Check(t, func(model *rapid.T) {
		var stopped any // how rapid ends a run that failed or was skipped
		synctest.Test(t, func(*testing.T) {
			defer func() { stopped = recover() }()
			promise(model)
		})
		if stopped != nil {
			panic(stopped)
		}
	})
}

// promise is one run of TestPromises.
func promise(t *rapid.T) {
	m := newPromises(t)
	defer m.close()
	t.Repeat(map[string]func(*rapid.T){
		"post":     m.post,
		"answers":  m.answers,
		"report":   func(t *rapid.T) { m.report(t, rapid.IntRange(1, 30).Draw(t, "events")) },
		"forge":    m.forge,
		"stop":     m.stop,
		"resume":   m.resume,
		"cancel":   m.cancel,
		"move":     m.move,
		"suppress": m.suppress,
		"purge":    m.purge,
		"kill":     m.kill,
		"work":     m.work,
		"":         m.balanced,
	})
	m.finish(t)
}

// fewChecks makes rapid check less often than it does by default: a check of an engine takes up to a second.
var fewChecks = sync.OnceFunc(func() {
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = flag.Set("rapid.checks", "8") // never an error
	}
})

// modelEvent is an event that a provider has not reported yet.
type modelEvent struct {
	provider string
	models.ParsedEvent
}

func (m *promises) post(t *rapid.T) {
	now := time.Now()
	n := rapid.IntRange(1, 30).Draw(t, "recipients")
	b := &models.Batch{
		ID:         models.NewBatchID(now),
		User:       m.user,
		Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
		Lane:       rapid.SampledFrom([]models.Lane{models.Bulk, models.Urgent}).Draw(t, "lane"),
		Recipients: n,
		Chunks:     1,
		ExpiresAt:  now.Add(time.Hour),
		OnUnknown: rapid.SampledFrom([]models.UnknownPolicy{models.Hold, models.Hold, models.Resend}).
			Draw(t, "on unknown"),
	}
	if rapid.Bool().Draw(t, "envelope") {
		n = min(n, 7) // as many as a call may have
		b.Recipients, b.Envelope = n, &models.Envelope{CC: n / 2, BCC: n - 1 - n/2}
		m.mu.Lock()
		m.envelopes[b.ID] = n
		m.mu.Unlock()
	}
	if rapid.Bool().Draw(t, "scheduled") {
		b.DeliverAt = m.soon(t, now)
		m.mu.Lock()
		m.due[b.ID] = b.DeliverAt
		m.mu.Unlock()
	}
	if b.Envelope == nil {
		m.addOwnTimes(t, b, now)
	}
	m.put(t, b)
	if rapid.Bool().Draw(t, "announced") {
		for k := range b.Chunks {
			one := models.Message{Kind: models.BatchMessage, ID: b.ID.Chunk(k), Lane: b.Lane}
			must(t, m.broker.Publish(context.Background(), one))
		}
		m.work(t)
	}
}

// put stores a batch, as acceptance does.
func (m *promises) put(t *rapid.T, b *models.Batch) {
	ctx := context.Background()
	must(
		t,
		m.store.Schedule(
			ctx,
			models.AgendaEntry{
				Due:    b.Created().Add(100 * time.Millisecond),
				Kind:   models.LookAtBatch,
				ID:     b.ID,
				User:   b.User,
				Chunks: b.Chunks,
			},
		),
	)
	commands := new(given)
	for k := b.Chunks - 1; k >= 0; k-- { // the batch is stored with its first chunk, at last
		c := models.Chunk{ID: b.ID.Chunk(k), Recipients: make([]models.Recipient, b.ChunkSize(k))}
		for i := range c.Recipients {
			c.Recipients[i].Email = fmt.Sprintf("u%d@x.test", i+1)
		}
		m.batches = append(m.batches, &modelled{b, commands, c.ID, len(c.Recipients)})
		if k > 0 {
			must(t, m.store.PutChunk(ctx, c))
		} else {
			must(t, m.store.PutBatch(ctx, *b, c))
		}
	}
}

func (m *promises) answers(t *rapid.T) {
	name, how := rapid.SampledFrom(modelProviders).
		Draw(t, "provider"),
		rapid.SampledFrom(behaviours).
			Draw(t, "behaviour")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behaviour[name] = how
}

// report reports up to most events in any order, and repeats an old one.
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

// file stores and announces a post, as the webhook receiver does.
func (m *promises) file(t *rapid.T, ev modelEvent) {
	ctx := context.Background()
	body, err := json.Marshal([]models.ParsedEvent{ev.ParsedEvent})
	must(t, err)
	in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: ev.provider, Posts: []models.Post{{Body: body}}}
	must(t, m.store.PutInbox(ctx, in))
	must(t, m.broker.Publish(ctx, models.Message{Kind: models.EventMessage, Provider: ev.provider, ID: in.ID}))
}

// forge reports a bounce of an attempt that does not exist.
func (m *promises) forge(t *rapid.T) {
	b := m.any(t)
	m.file(
		t,
		modelEvent{
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

// any returns one of the batches.
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

// suppress adds an address to the list of the user. From then on no attempt may begin that
// contains it.
func (m *promises) suppress(t *rapid.T) {
	address := fmt.Sprintf("u%d@x.test", rapid.IntRange(1, 30).Draw(t, "recipient"))
	e := models.NewSuppression(address, models.Manual, models.FromAPI, time.Now())
	must(t, m.engine.suppressions.Add(context.Background(), m.user, e))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.suppressed[address].IsZero() {
		m.suppressed[address] = time.Now()
	}
}

func (m *promises) purge(t *rapid.T) { must(t, m.broker.Purge(context.Background())) }

// kill stops the engine during its calls, and starts another.
func (m *promises) kill(t *rapid.T) {
	m.kills++
	m.end()
	m.begin(t)
}

// work waits until a call was accepted, or 30 ms. What happens after the call goes on meanwhile.
func (m *promises) work(*rapid.T) {
	m.mu.Lock()
	m.accepted = make(chan struct{})
	accepted := m.accepted
	m.mu.Unlock()
	select {
	case <-accepted:
	case <-time.After(30 * time.Millisecond):
	}
}

// balanced checks that the sums add up.
func (m *promises) balanced(t *rapid.T) {
	for _, b := range m.batches {
		if s := m.view(t, b).Summary(); !s.Balanced() {
			t.Fatalf("the sums of %s do not add up: %+v", b.ID, s)
		}
	}
}

// finish lets everything work again, and compares all logs with the model.
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
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
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
		for r := 1; r <= b.size; r++ {
			m.kept(t, b, b.chunk.Log(r), v.Status(r))
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		must(t, m.engine.Flush(context.Background()))
		wrong := m.fed(t)
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(wrong)
		}
	}
}

// fed compares the feed of updates with a recount of all logs, and says how they differ; "" if
// they do not. A chunk is marked a moment after its facts were stored; after a kill, by the agenda.
func (m *promises) fed(t *rapid.T) (wrong string) {
	published, seen := map[models.ID]models.Published{}, map[string]bool{}
	done := map[models.ID]bool{} // batches that have ended, and were not opened again
	n, at := 0, time.Time{}
	for p, more := feed.Begin, true; more; {
		page, err := feed.Read(context.Background(), m.store, m.user, feed.Query{After: p, Limit: 7})
		must(t, err)
		for _, u := range page.Updates {
			if u.Suppression != nil {
				continue // it is about a list
			}
			key := fmt.Sprint(u.Log, u.Event != "")
			hole := u.Number > 1 && !seen[fmt.Sprint(key, u.Number-1)]
			if hole || seen[fmt.Sprint(key, u.Number)] || u.At.Before(at) {
				t.Fatalf("update %d of %s follows another one, or is older than the one before", u.Number, u.Log)
			}
			at = u.At
			once := fmt.Sprint(u.Log, u.Event, u.Provider)
			if u.Event != "" && u.Event != models.BatchEnded && seen[once] {
				t.Fatalf("%s is published twice", once)
			}
			seen[fmt.Sprint(key, u.Number)], seen[once] = true, true
			n++
			batch := u.Log.Batch()
			if done[batch] = u.Event == models.BatchEnded ||
				done[batch] && u.State != models.Queued; u.Event == models.BatchEnded {
				continue
			}
			c := published[u.Log.ChunkID()]
			c.Chunk = u.Log.ChunkID()
			c.Apply(
				&models.FeedEntry{Number: n, Chunks: []models.FeedChunk{{Chunk: c.Chunk, Changes: []models.FeedChange{{
					State: u.State, Event: u.Event, Reason: u.Reason, Provider: u.Provider, Number: u.Number,
					Recipients: models.SetOf(u.Log.Recipient())}}}}},
			)
			published[u.Log.ChunkID()] = c
		}
		p, more = page.Next, page.More
	}
	queued := map[models.ID]int64{}
	for _, b := range m.batches {
		c, v := published[b.chunk], m.view(t, b).ForFeed()
		if !c.Matches(&v) {
			return fmt.Sprintf("the feed says %+v of %s, and a recount %+v, kills %d", c, b.chunk, v, m.kills)
		}
		queued[b.ID] += open(m.view(t, b))
	}
	for id, n := range queued {
		if ended := n == 0; ended != done[id] {
			return fmt.Sprintf("the feed says %t of the end of %s, and a recount %t", done[id], id, ended)
		}
	}
	return ""
}

// settled reports whether every log is final and every event was processed.
func (m *promises) settled(t *rapid.T) bool {
	m.mu.Lock()
	left := len(m.outbox)
	m.mu.Unlock()
	if left > 0 {
		return false
	}
	for _, b := range m.batches {
		v := m.view(t, b)
		for r := 1; r <= b.size; r++ {
			s := v.Status(r)
			m.mu.Lock()
			unread := m.delivered[b.chunk.Log(r)] > 0 && s.State != models.Success
			m.mu.Unlock()
			if s.State.Open() || unread {
				return false
			}
		}
	}
	return true
}

// kept compares one log with what is promised.
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
	case !m.early.IsZero():
		wrong(m.early.String() + " was called too early")
	case m.divided != "":
		wrong(m.divided)
	case m.called[log] != "":
		wrong("called although " + m.called[log] + " was suppressed")
	case m.delivered[log] > 1 && b.OnUnknown == models.Hold:
		wrong("doubled")
	case m.delivered[log] > 1 && !doubt:
		wrong("doubled although every outcome was known")
	case s.State == models.Success && m.delivered[log] == 0:
		wrong("lost")
	case s.State == models.Cancelled && !b.cancelled:
		wrong("cancelled without a command")
	case s.State == models.Failed && s.Reason == "":
		wrong("failed without a reason")
	case s.Reason == models.OutcomeUnknown && s.State == models.Failed && !doubt:
		wrong("unknown although every call was answered")
	}
}
