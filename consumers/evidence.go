package consumers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// Evidence that is looked up: some providers can be asked for the events that
// they reported, or should have. What they find goes through the inbox like any
// other post, so that it is filed, counted and deduplicated in one way. That
// nothing is found proves nothing.

const (
	lookUpPoll    = 2 * time.Second // how often questions are looked through
	lookUpTime    = 10 * time.Minute
	lookUpBatch   = 2000 // events filed together
	lookUpBackoff = 3    // times as long as questions took, nothing is asked
	outagePoll    = 15 * time.Second
	nearby        = 10 * time.Minute // questions whose times lie so near are asked as one

	// What may have happened within a longer time than longSpan is asked for
	// recipient by recipient, if they are few.
	longSpan = 2 * time.Hour
	fewLogs  = 200
)

// queryDelays is when a question is asked, after the time it is about; the last is
// repeated, twice as late each time.
var queryDelays = []time.Duration{30 * time.Second, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, 32 * time.Minute}

// lookups asks providers about chunks whose recipients are unsettled.
//
// Questions are kept in memory: the agenda asks again as long as the answer is
// missing.
type lookups struct {
	cfg       evidenceConfig
	log       *slog.Logger
	store     evidenceStore
	policy    *policy.Policy
	providers *provider.Set
	dispatch  *dispatcher
	filed     *lru.Cache[filedEvent, bool] // events that were looked up lately

	mu   sync.Mutex
	open map[query]*lookup
}

type query struct {
	provider string
	chunk    models.ID
}

// lookup is a question and what became of it.
type lookup struct {
	from, to     time.Time // when what is looked for happened
	asked        int
	next         time.Time
	answered     time.Time // when the newest question began all of whose answer is worked off; zero: never
	pendingSince time.Time // when one began whose answer is being worked off; zero: none
	renewed      time.Time
	expedited    time.Time
}

// peerSenders takes in the answer to a question that began then.
func (in *lookup) record(began time.Time, f finding) {
	switch {
	case f == finding{}:
		in.answered, in.pendingSince = began, time.Time{}
	case f.waiting == 0: // what was found before is worked off
		in.answered, in.pendingSince = models.LaterOf(in.answered, in.pendingSince), began
	}
}

func (l *lookups) eventLookup(provider string) models.EventLookup {
	if a := l.providers.Get(provider); a != nil && a.Events == models.EventsWebhook {
		if l, ok := a.Adapter.(models.EventLookup); ok {
			return l
		}
	}
	return nil
}

// request asks what happened to a chunk at a provider between two times. It
// returns when a question was last answered.
func (l *lookups) request(provider string, chunk models.ID, from, to time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := query{provider, chunk}
	in := l.open[q]
	if in == nil {
		in = &lookup{from: from, to: to, next: to.Add(queryDelays[0])}
		l.open[q] = in
	}
	in.from, in.renewed = models.EarlierOf(in.from, from), time.Now()
	if to.After(in.to) { // another attempt, or later
		in.to, in.asked, in.next = to, 0, models.EarlierOf(to.Add(queryDelays[0]), time.Now().Add(queryDelays[0]))
	}
	return in.answered
}

// Run asks what is due, until ctx ends: each provider by itself, so that one that
// hangs keeps nobody else's evidence waiting.
func (l *lookups) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, a := range l.providers.All() {
		if l.eventLookup(a.Name) == nil {
			continue
		}
		wg.Go(func() {
			l.every(ctx, min(lookUpPoll, 10*l.cfg.Poll), func() {
				for _, group := range groupByTime(l.due(a.Name, time.Now())) {
					l.query(ctx, a.Name, group)
				}
			})
		})
	}
	wg.Go(func() {
		l.every(ctx, min(outagePoll, 50*l.cfg.Poll), func() {
			if err := l.lookUpOutages(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn("gaps of the webhooks' door could not be looked up yet", "err", err)
			}
		})
	})
	wg.Wait()
}

// every asks again and again, and rests after what took long: each question goes
// through all that was reported in its time, and those that come due meanwhile
// are asked as one.
func (l *lookups) every(ctx context.Context, pause time.Duration, ask func()) {
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		ask()
		models.Pause(ctx, min(lookUpBackoff*time.Since(began), l.cfg.LookUpPause))
	}
}

// dueQuery is a question with its inquiry, copied.
type dueQuery struct {
	query
	lookup
}

// due lists the questions to be asked a provider now, and forgets those that
// nobody asks any more.
func (l *lookups) due(provider string, now time.Time) (out []dueQuery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q, in := range l.open {
		switch {
		case q.provider != provider:
		case now.Sub(in.renewed) > time.Hour:
			delete(l.open, q)
		case !now.Before(in.next):
			out = append(out, dueQuery{q, *in})
		}
	}
	return out
}

// long reports whether too much has happened in its time to look through all.
func (a *dueQuery) long() bool { return a.to.Sub(a.from) > longSpan }

// groupByTime groups questions whose times are near each other.
func groupByTime(qs []dueQuery) [][]dueQuery {
	slices.SortFunc(qs, func(a, b dueQuery) int { return a.from.Compare(b.from) })
	var out [][]dueQuery
	var end time.Time
	for _, q := range qs {
		if len(out) == 0 || q.from.After(end.Add(nearby)) || q.to.Sub(out[len(out)-1][0].from) > longSpan || out[len(out)-1][0].long() {
			out = append(out, nil)
			end = q.to
		}
		out[len(out)-1] = append(out[len(out)-1], q)
		end = models.LaterOf(end, q.to)
	}
	return out
}

// query puts the questions of a group to their provider as one.
func (l *lookups) query(ctx context.Context, provider string, group []dueQuery) {
	looker := l.eventLookup(provider)
	if looker == nil {
		return
	}
	began := time.Now()
	from, to := group[0].from, group[0].to
	chunks := map[models.ID]bool{}
	for _, q := range group {
		from, to = models.EarlierOf(from, q.from), models.LaterOf(to, q.to)
		chunks[q.chunk] = true
	}
	to = models.LaterOf(to, models.EarlierOf(began, to.Add(nearby)))
	found := findings{}
	var err error
	if group[0].long() {
		err = l.lookUpEach(ctx, provider, looker, from, to, group[0].chunk, found)
	} else {
		err = l.lookUp(ctx, provider, looker, from, to, "", chunks, found)
	}
	if err != nil && ctx.Err() == nil {
		l.log.Warn("events could not be looked up; they will be again", "provider", provider, "err", err)
	} else if n := found.total(); n > 0 {
		l.log.Info("events looked up", "provider", provider, "found", n, "chunks", len(chunks))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range group {
		in := l.open[q.query]
		if in == nil {
			continue
		}
		news := found[q.chunk] != finding{}
		if err == nil {
			in.record(began, found[q.chunk])
		}
		in.asked++
		after := queryDelays[min(in.asked, len(queryDelays)-1)]
		if more := in.asked - len(queryDelays) + 1; more > 0 {
			after <<= min(more, 6)
		}
		in.next = models.LaterOf(in.to.Add(after), began.Add(l.cfg.LookUpPause))
		if err != nil || news {
			in.next = began.Add(l.cfg.LookUpPause)
		}
	}
}

// Findings is how many events were found that are no facts yet, by chunk.
type findings map[models.ID]finding

type finding struct {
	news    int // put into the inbox
	waiting int // that were there, and wait to be worked off
}

func (f findings) total() (n int) {
	for _, k := range f {
		n += k.news + k.waiting
	}
	return n
}

// lookUp asks a provider for its events and files those that are news of somebody unsettled;
// of these chunks only, if any are named. It adds them to found.
func (l *lookups) lookUp(ctx context.Context, provider string, looker models.EventLookup, from, to time.Time, recipient string, only map[models.ID]bool, found findings) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hangs := time.AfterFunc(lookUpTime, cancel) // not while pages come: there may be very many
	defer hangs.Stop()
	parse := l.providers.Get(provider).Adapter.Parse
	waiting := map[models.ID][]foundEvent{}
	n := 0
	file := func() error {
		err := l.file(ctx, provider, waiting, found)
		waiting, n = map[models.ID][]foundEvent{}, 0
		return err
	}
	err := looker.LookUp(ctx, from, to, recipient, func(body []byte) error {
		hangs.Reset(lookUpTime)
		parsed := parse(body)
		for i := range parsed.Events {
			log := parsed.Events[i].Log
			if only != nil && !only[log.ChunkID()] {
				continue
			}
			ev := &parsed.Events[i].Event
			if worked, _ := l.filed.Get(filedEvent{provider, ev.ID}); worked {
				continue
			}
			waiting[log.ChunkID()] = append(waiting[log.ChunkID()], foundEvent{log.Recipient(), ev.Attempt, ev.ID, body})
			if n++; n >= lookUpBatch {
				return file()
			}
		}
		return nil
	})
	if err == nil && n > 0 {
		err = file()
	}
	return err
}

// lookUpEach asks for the unsettled recipients of a chunk one by one, or for all
// together where they are many.
func (l *lookups) lookUpEach(ctx context.Context, provider string, looker models.EventLookup, from, to time.Time, chunk models.ID, found findings) error {
	only := map[models.ID]bool{chunk: true}
	c, err := l.dispatch.load(ctx, chunk)
	if err == nil {
		err = l.dispatch.loadRecipients(ctx, c)
	}
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		_, err = l.dispatch.skipCorrupt(chunk, err)
		return err
	}
	if err != nil { // its addresses are gone
		return l.lookUp(ctx, provider, looker, from, to, "", only, found)
	}
	who := c.view.Where(func(r int, s *models.Status) bool { return s.State != models.Success && c.mayHave(provider, r, 0) })
	if who.Len() > fewLogs {
		return l.lookUp(ctx, provider, looker, from, to, "", only, found)
	}
	for r := range who.All() {
		if err := l.lookUp(ctx, provider, looker, from, to, c.recipients[r-1].Email, only, found); err != nil {
			return err
		}
	}
	return nil
}

// foundEvent is an event that was found.
type foundEvent struct {
	recipient, attempt int
	id                 string
	body               []byte
}

// filedEvent is an event that a look-up found. It is kept whether it is a fact by now,
// which need not be looked at again, or was put into the inbox.
type filedEvent struct{ provider, id string }

// file puts events into the inbox whose attempts are unsettled, and
// counts what was found. One that is there already, and waits to be worked off,
// counts, but is not put there again: else every question would make a long queue
// longer.
func (l *lookups) file(ctx context.Context, provider string, byChunk map[models.ID][]foundEvent, found findings) error {
	var news []models.Post
	var ids []filedEvent
	for chunk, events := range byChunk {
		c, err := l.dispatch.load(ctx, chunk)
		if errors.Is(err, models.ErrNotFound) {
			continue // another installation's
		}
		if err != nil {
			if _, err = l.dispatch.skipCorrupt(chunk, err); err != nil {
				return err
			}
			continue
		}
		seen, of := c.eventIDs(), found[chunk]
		for _, ev := range events {
			id := filedEvent{provider, ev.id}
			if seen[ev.id] {
				l.filed.Add(id, true)
				continue
			}
			if ev.recipient > c.size || !c.mayHave(provider, ev.recipient, ev.attempt) {
				continue
			}
			if _, ok := l.filed.Get(id); ok {
				of.waiting++
				continue
			}
			of.news++
			news, ids = append(news, models.Post{Body: ev.body}), append(ids, id)
		}
		found[chunk] = of
	}
	var wake []models.Message
	for rest := news; len(rest) > 0; {
		in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider}
		in.Posts, rest = models.CutPosts(rest)
		if err := l.store.PutInbox(ctx, in); err != nil {
			return err
		}
		wake = append(wake, models.Message{Kind: models.EventMessage, Provider: provider, ID: in.ID})
	}
	for _, id := range ids {
		l.filed.Add(id, false)
	}
	l.dispatch.publish(ctx, wake...)
	return nil
}

// Answered reports whether every provider that may have what a step is about was
// asked late enough, or cannot be.
func (l *lookups) Answered(c *chunk, st *policy.Step, now time.Time) bool {
	all := true
	c.view.EachTry(st.Who.First(), func(t *models.Try) {
		if !t.Verdict.Settled() && (t.Verdict == models.VerdictAccepted) == (st.Reason == models.NoFinalEvent) {
			all = l.answeredOf(c, t, now) && all
		}
	})
	return all
}

// answeredOf is answered for one attempt.
func (l *lookups) answeredOf(c *chunk, t *models.Try, now time.Time) bool {
	looker := l.eventLookup(t.Provider)
	if looker == nil {
		return true
	}
	entry := c.view.Entry(t.Attempt)
	begin, over := entry.At, entry.CallEnds.Add(l.policy.EvidenceWindow(t.Provider))
	late := models.EarlierOf(over, entry.CallEnds.Add(looker.LookupLag()))
	if t.Verdict == models.VerdictAccepted {
		over = t.At.Add(l.cfg.FinalEventWait)
		late = over.Add(-min(time.Hour, l.cfg.FinalEventWait/4))
	}
	if now.After(over.Add(24 * time.Hour)) {
		return true
	}
	answered := l.request(t.Provider, c.id, begin.Add(-time.Minute), over)
	if !answered.Before(late) {
		return true
	}
	l.expedite(t.Provider, c.id, now)
	return false
}

// expedite asks a question now that waited for its time, if it was not hurried just
// before.
func (l *lookups) expedite(provider string, chunk models.ID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if in := l.open[query{provider, chunk}]; in != nil && now.Sub(in.expedited) > l.cfg.LookUpPause {
		in.expedited, in.next = now, now
	}
}

// MayEndSoon reports whether a wait may end before its time: by the answer to a call
// that runs, of which only its worker tells, or by evidence that a provider is asked
// for.
func (l *lookups) MayEndSoon(c *chunk, st *policy.Step, now time.Time) bool {
	s := c.view.Status(st.Who.First())
	if !s.Unsettled() || s.Last.Verdict == models.VerdictAccepted {
		return false
	}
	entry := c.view.Entry(s.Last.Attempt)
	if s.Last.Verdict == models.VerdictPending && now.Before(entry.CallEnds) {
		return true
	}
	if l.eventLookup(s.Last.Provider) == nil || !now.Before(entry.CallEnds.Add(l.policy.EvidenceWindow(s.Last.Provider))) {
		return false
	}
	l.request(s.Last.Provider, c.id, entry.At.Add(-time.Minute), entry.CallEnds)
	return true
}
