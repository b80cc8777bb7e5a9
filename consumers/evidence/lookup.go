package evidence

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// Evidence that is looked up: some providers can be asked for the events that
// they reported, or should have. What they find goes through the inbox like any
// other post, so that it is filed, counted and deduplicated in one way. That
// nothing is found proves nothing.

// The times and sizes of look-ups.
const (
	lookUpPoll    = 2 * time.Second // how often questions are looked through
	lookUpTime    = 10 * time.Minute
	lookUpBatch   = 2000 // events filed together
	lookUpBackoff = 3    // times as long as questions took, nothing is asked
	outagePoll    = 15 * time.Second
	Nearby        = 10 * time.Minute // questions whose times lie so near are asked as one

	// LongSpan is the longest time that is looked through as a whole. For a longer one the
	// recipients are asked about one by one, if they are few.
	LongSpan = 2 * time.Hour
	fewLogs  = 200
)

// QueryDelays is when a question is asked, after the time it is about; the last is
// repeated, twice as late each time.
var QueryDelays = []time.Duration{
	30 * time.Second,
	2 * time.Minute,
	5 * time.Minute,
	15 * time.Minute,
	32 * time.Minute,
}

// Lookups asks providers about chunks whose recipients are unsettled.
//
// Questions are kept in memory: the agenda asks again as long as the answer is
// missing.
type Lookups struct {
	cfg       Config
	log       *slog.Logger
	store     Store
	policy    *policy.Policy
	providers *provider.Set
	dispatch  *dispatch.Dispatcher
	Filed     *lru.Cache[FiledEvent, bool] // events that were looked up lately

	Mu   sync.Mutex
	Open map[Query]*Lookup
}

// Query asks a provider about a chunk.
type Query struct {
	Provider string
	Chunk    models.ID
}

// Lookup is a question and what became of it.
type Lookup struct {
	From, To     time.Time // when what is looked for happened
	asked        int
	Next         time.Time
	Answered     time.Time // when the newest question began all of whose answer is worked off; zero: never
	pendingSince time.Time // when one began whose answer is being worked off; zero: none
	renewed      time.Time
	expedited    time.Time
}

// Record takes in the answer to a question that began then.
func (in *Lookup) Record(began time.Time, f Finding) {
	switch {
	case f == Finding{}:
		in.Answered, in.pendingSince = began, time.Time{}
	case f.Waiting == 0: // what was found before is worked off
		in.Answered, in.pendingSince = models.LaterOf(in.Answered, in.pendingSince), began
	}
}

func (l *Lookups) eventLookup(provider string) models.EventLookup {
	if a := l.providers.Get(provider); a != nil && a.Events == models.EventsWebhook {
		if l, ok := a.Adapter.(models.EventLookup); ok {
			return l
		}
	}
	return nil
}

// Request asks what happened to a chunk at a provider between two times. It
// returns when a question was last answered.
func (l *Lookups) Request(provider string, chunk models.ID, from, to time.Time) time.Time {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	q := Query{provider, chunk}
	in := l.Open[q]
	if in == nil {
		in = &Lookup{From: from, To: to, Next: to.Add(QueryDelays[0])}
		l.Open[q] = in
	}
	in.From, in.renewed = models.EarlierOf(in.From, from), time.Now()
	if to.After(in.To) { // another attempt, or later
		in.To, in.asked, in.Next = to, 0, models.EarlierOf(to.Add(QueryDelays[0]), time.Now().Add(QueryDelays[0]))
	}
	return in.Answered
}

// Run asks what is due, until ctx ends: each provider by itself, so that one that
// hangs keeps nobody else's evidence waiting.
func (l *Lookups) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, a := range l.providers.All() {
		if l.eventLookup(a.Name) == nil {
			continue
		}
		wg.Go(func() {
			l.every(ctx, min(lookUpPoll, 10*l.cfg.Poll), func() {
				for _, group := range GroupByTime(l.Due(a.Name, time.Now())) {
					l.Query(ctx, a.Name, group)
				}
			})
		})
	}
	wg.Go(func() {
		l.every(ctx, min(outagePoll, 50*l.cfg.Poll), func() {
			if err := l.lookUpOutages(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn("cannot look up outages of the webhook receiver yet, will retry", "err", err)
			}
		})
	})
	wg.Wait()
}

// every asks again and again, and rests after what took long: each question goes
// through all that was reported in its time, and those that come due meanwhile
// are asked as one.
func (l *Lookups) every(ctx context.Context, pause time.Duration, ask func()) {
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

// DueQuery is a question with its inquiry, copied.
type DueQuery struct {
	Query
	Lookup
}

// Due lists the questions to be asked a provider now, and forgets those that
// nobody asks any more.
func (l *Lookups) Due(provider string, now time.Time) (out []DueQuery) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for q, in := range l.Open {
		switch {
		case q.Provider != provider:
		case now.Sub(in.renewed) > time.Hour:
			delete(l.Open, q)
		case !now.Before(in.Next):
			out = append(out, DueQuery{q, *in})
		}
	}
	return out
}

// long reports whether too much has happened in its time to look through all.
func (a *DueQuery) long() bool { return a.To.Sub(a.From) > LongSpan }

// GroupByTime groups questions whose times are near each other.
func GroupByTime(qs []DueQuery) [][]DueQuery {
	slices.SortFunc(qs, func(a, b DueQuery) int { return a.From.Compare(b.From) })
	var out [][]DueQuery
	var end time.Time
	for _, q := range qs {
		if len(out) == 0 || q.From.After(end.Add(Nearby)) || q.To.Sub(out[len(out)-1][0].From) > LongSpan ||
			out[len(out)-1][0].long() {
			out = append(out, nil)
			end = q.To
		}
		out[len(out)-1] = append(out[len(out)-1], q)
		end = models.LaterOf(end, q.To)
	}
	return out
}

// Query puts the questions of a group to their provider as one.
func (l *Lookups) Query(ctx context.Context, provider string, group []DueQuery) {
	looker := l.eventLookup(provider)
	if looker == nil {
		return
	}
	began := time.Now()
	from, to := group[0].From, group[0].To
	chunks := map[models.ID]bool{}
	for _, q := range group {
		from, to = models.EarlierOf(from, q.From), models.LaterOf(to, q.To)
		chunks[q.Chunk] = true
	}
	to = models.LaterOf(to, models.EarlierOf(began, to.Add(Nearby)))
	found := Findings{}
	var err error
	if group[0].long() {
		err = l.lookUpEach(ctx, provider, looker, from, to, group[0].Chunk, found)
	} else {
		err = l.LookUp(ctx, provider, looker, from, to, "", chunks, found)
	}
	if err != nil && ctx.Err() == nil {
		l.log.Warn("events could not be looked up; they will be again", "provider", provider, "err", err)
	} else if n := found.Total(); n > 0 {
		l.log.Info("events looked up", "provider", provider, "found", n, "chunks", len(chunks))
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for _, q := range group {
		in := l.Open[q.Query]
		if in == nil {
			continue
		}
		news := found[q.Chunk] != Finding{}
		if err == nil {
			in.Record(began, found[q.Chunk])
		}
		in.asked++
		after := QueryDelays[min(in.asked, len(QueryDelays)-1)]
		if more := in.asked - len(QueryDelays) + 1; more > 0 {
			after <<= min(more, 6)
		}
		in.Next = models.LaterOf(in.To.Add(after), began.Add(l.cfg.LookUpPause))
		if err != nil || news {
			in.Next = began.Add(l.cfg.LookUpPause)
		}
	}
}

// Findings is how many events were found that are no facts yet, by chunk.
type Findings map[models.ID]Finding

// Finding counts what a look-up found about a chunk.
type Finding struct {
	News    int // put into the inbox
	Waiting int // that were there, and wait to be worked off
}

// Total returns how many events were found.
func (f Findings) Total() (n int) {
	for _, k := range f {
		n += k.News + k.Waiting
	}
	return n
}

// LookUp asks a provider for its events and files those that are news of somebody unsettled;
// of these chunks only, if any are named. It adds them to found.
func (l *Lookups) LookUp(
	ctx context.Context,
	provider string,
	looker models.EventLookup,
	from, to time.Time,
	recipient string,
	only map[models.ID]bool,
	found Findings,
) error {
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
			if worked, _ := l.Filed.Get(FiledEvent{provider, ev.ID}); worked {
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
func (l *Lookups) lookUpEach(
	ctx context.Context,
	provider string,
	looker models.EventLookup,
	from, to time.Time,
	chunk models.ID,
	found Findings,
) error {
	only := map[models.ID]bool{chunk: true}
	c, err := l.dispatch.Load(ctx, chunk)
	if err == nil {
		err = l.dispatch.LoadRecipients(ctx, c)
	}
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		_, err = l.dispatch.SkipCorrupt(chunk, err)
		return err
	}
	if err != nil { // its addresses are gone
		return l.LookUp(ctx, provider, looker, from, to, "", only, found)
	}
	who := c.View.Where(
		func(r int, s *models.Status) bool { return s.State != models.Success && c.MayHave(provider, r, 0) },
	)
	if who.Len() > fewLogs {
		return l.LookUp(ctx, provider, looker, from, to, "", only, found)
	}
	for r := range who.All() {
		if err := l.LookUp(ctx, provider, looker, from, to, c.Recipients[r-1].Email, only, found); err != nil {
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

// FiledEvent is an event that a look-up found. It is kept whether it is a fact by now,
// which need not be looked at again, or was put into the inbox.
type FiledEvent struct{ Provider, ID string }

// file puts events into the inbox whose attempts are unsettled, and
// counts what was found. One that is there already, and waits to be worked off,
// counts, but is not put there again: else every question would make a long queue
// longer.
func (l *Lookups) file(ctx context.Context, provider string, byChunk map[models.ID][]foundEvent, found Findings) error {
	var news []models.Post
	var ids []FiledEvent
	for chunk, events := range byChunk {
		c, err := l.dispatch.Load(ctx, chunk)
		if errors.Is(err, models.ErrNotFound) {
			continue // another installation's
		}
		if err != nil {
			if _, err = l.dispatch.SkipCorrupt(chunk, err); err != nil {
				return err
			}
			continue
		}
		seen, of := c.EventIDs(), found[chunk]
		for _, ev := range events {
			id := FiledEvent{provider, ev.id}
			if seen[ev.id] {
				l.Filed.Add(id, true)
				continue
			}
			if ev.recipient > c.Size || !c.MayHave(provider, ev.recipient, ev.attempt) {
				continue
			}
			if _, ok := l.Filed.Get(id); ok {
				of.Waiting++
				continue
			}
			of.News++
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
		l.Filed.Add(id, false)
	}
	l.dispatch.Publish(ctx, wake...)
	return nil
}

// Answered reports whether every provider that may have what a step is about was
// asked late enough, or cannot be.
func (l *Lookups) Answered(c *dispatch.Chunk, st *policy.Step, now time.Time) bool {
	all := true
	c.View.EachTry(st.Who.First(), func(t *models.Try) {
		if !t.Verdict.Settled() && (t.Verdict == models.VerdictAccepted) == (st.Reason == models.NoFinalEvent) {
			all = l.answeredOf(c, t, now) && all
		}
	})
	return all
}

// answeredOf is answered for one attempt.
func (l *Lookups) answeredOf(c *dispatch.Chunk, t *models.Try, now time.Time) bool {
	looker := l.eventLookup(t.Provider)
	if looker == nil {
		return true
	}
	entry := c.View.Entry(t.Attempt)
	begin, over := entry.At, entry.CallEnds.Add(l.policy.EvidenceWindow(t.Provider))
	late := models.EarlierOf(over, entry.CallEnds.Add(looker.LookupLag()))
	if t.Verdict == models.VerdictAccepted {
		over = t.At.Add(l.cfg.FinalEventWait)
		late = over.Add(-min(time.Hour, l.cfg.FinalEventWait/4))
	}
	if now.After(over.Add(24 * time.Hour)) {
		return true
	}
	answered := l.Request(t.Provider, c.ID, begin.Add(-time.Minute), over)
	if !answered.Before(late) {
		return true
	}
	l.expedite(t.Provider, c.ID, now)
	return false
}

// expedite asks a question now that waited for its time, if it was not hurried just
// before.
func (l *Lookups) expedite(provider string, chunk models.ID, now time.Time) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if in := l.Open[Query{provider, chunk}]; in != nil && now.Sub(in.expedited) > l.cfg.LookUpPause {
		in.expedited, in.Next = now, now
	}
}

// MayEndSoon reports whether a wait may end before its time: by the answer to a call
// that runs, of which only its worker tells, or by evidence that a provider is asked
// for.
func (l *Lookups) MayEndSoon(c *dispatch.Chunk, st *policy.Step, now time.Time) bool {
	s := c.View.Status(st.Who.First())
	if !s.Unsettled() || s.Last.Verdict == models.VerdictAccepted {
		return false
	}
	entry := c.View.Entry(s.Last.Attempt)
	if s.Last.Verdict == models.VerdictPending && now.Before(entry.CallEnds) {
		return true
	}
	if l.eventLookup(s.Last.Provider) == nil || !now.Before(entry.CallEnds.Add(l.policy.EvidenceWindow(s.Last.Provider))) {
		return false
	}
	l.Request(s.Last.Provider, c.ID, entry.At.Add(-time.Minute), entry.CallEnds)
	return true
}
