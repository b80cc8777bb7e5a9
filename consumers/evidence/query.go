package evidence

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// The times and sizes of queries.
const (
	queryPoll      = 2 * time.Second // how often due look-ups are queried
	outagePoll     = 15 * time.Second
	pageTimeout    = 10 * time.Minute // longest wait for the next page of a query
	fileSize       = 2000             // events that are filed together
	backoffFactor  = 3                // pause after queries, in times of their duration
	fewRecipients  = 200              // most recipients that are queried one by one
	outageLeaseTTL = 10 * time.Minute
)

// Run queries providers for what is due until ctx ends. Each provider has its own loop, so
// that one whose events API hangs does not delay the others.
func (l *Lookups) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, a := range l.Providers.All() {
		if l.lookupAPI(a.Name) == nil {
			continue
		}
		wg.Go(func() {
			l.every(ctx, min(queryPoll, 10*l.cfg.AgendaPoll), func() {
				for _, group := range groupByTime(l.due(a.Name, time.Now())) {
					l.query(ctx, a.Name, group)
				}
			})
		})
	}
	wg.Go(func() {
		l.every(ctx, min(outagePoll, 50*l.cfg.AgendaPoll), func() {
			if err := l.lookUpOutages(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn("cannot look up outages of the webhook receiver; will retry", "err", err)
			}
		})
	})
	wg.Wait()
}

// every calls f until ctx ends, with a longer pause after a long call. A query reads all events of its span, and
// look-ups that become due meanwhile share the next one.
func (l *Lookups) every(ctx context.Context, pause time.Duration, f func()) {
	for range models.Every(ctx, pause) {
		began := time.Now()
		f()
		models.Pause(ctx, min(backoffFactor*time.Since(began), l.cfg.LookUpPause))
	}
}

// query queries a provider once for a group of look-ups.
func (l *Lookups) query(ctx context.Context, provider string, group []dueLookup) {
	api := l.eventLookup(provider)
	if api == nil {
		return
	}
	began := time.Now()
	from, to, sent := group[0].from, group[0].to, group[0].sent
	chunks, attempts := map[models.ID]bool{}, map[models.ID][]int{}
	for _, d := range group {
		from, to, sent = models.EarlierOf(from, d.from), models.LaterOf(to, d.to), models.LaterOf(sent, d.sent)
		chunks[d.chunk], attempts[d.chunk] = true, d.attempts
	}
	to = models.LaterOf(to, models.EarlierOf(began, to.Add(nearby)))
	found := findings{}
	var err error
	q := models.LookupQuery{From: from, To: to, SentBy: sent, Chunks: chunks, Attempts: attempts}
	if group[0].long() {
		err = l.searchEach(ctx, provider, api, q, group[0].chunk, fewRecipients, found)
	} else {
		err = l.search(ctx, provider, api, q, found)
	}
	if errors.Is(err, models.ErrPartialLogs) {
		err = l.searchGroup(ctx, provider, api, q, group, found)
	}
	refused := errors.Is(err, models.ErrNoLookup)
	switch {
	case refused:
		l.refuse(provider, err)
	case err != nil && ctx.Err() == nil:
		l.log.Warn("cannot look up events; will retry", "provider", provider, "err", err)
	}
	if n := found.total(); n > 0 {
		l.log.Info("looked up events", "provider", provider, "found", n, "chunks", len(chunks))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range group {
		lk := l.open[d.lookupKey]
		if lk == nil {
			continue
		}
		if err == nil && len(d.attempts) == len(lk.attempts) { // otherwise it did not ask for all
			lk.record(began, found[d.chunk])
		}
		lk.schedule(began, l.cfg.LookUpPause, err != nil || found[d.chunk] != finding{})
	}
}

// searchGroup searches for the events of each recipient of the chunks of a group. What cannot
// be found in that way cannot be found at all, so it is no error.
func (l *Lookups) searchGroup(
	ctx context.Context,
	provider string,
	api models.EventLookup,
	q models.LookupQuery,
	group []dueLookup,
	found findings,
) error {
	for _, d := range group {
		err := l.searchEach(ctx, provider, api, q, d.chunk, models.MaxChunkRecipients, found)
		if err != nil && !errors.Is(err, models.ErrPartialLogs) {
			return err
		}
	}
	return nil
}

// findings maps a chunk to what was found about it.
type findings map[models.ID]finding

// finding counts events that a query found and that are no facts yet.
type finding struct {
	filed   int // put into the inbox by this query
	waiting int // in the inbox before this query
}

// total returns how many events were found.
func (f findings) total() (n int) {
	for _, k := range f {
		n += k.filed + k.waiting
	}
	return n
}

// search reads events of a provider and files those of attempts whose outcome is unknown.
// The results are added to found.
func (l *Lookups) search(
	ctx context.Context,
	provider string,
	api models.EventLookup,
	q models.LookupQuery,
	found findings,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timeout := time.AfterFunc(pageTimeout, cancel) // per page: there may be very many pages
	defer timeout.Stop()
	parse := l.Providers.Get(provider).Adapter.Parse
	unfiled := map[models.ID][]foundEvent{}
	n := 0
	file := func() error {
		err := l.file(ctx, provider, unfiled, found)
		unfiled, n = map[models.ID][]foundEvent{}, 0
		return err
	}
	err := api.LookUp(ctx, q, func(body []byte) error {
		timeout.Reset(pageTimeout)
		parsed := parse(body)
		for i := range parsed.Events {
			log := parsed.Events[i].Log
			if !q.Want(log.ChunkID()) {
				continue
			}
			ev := &parsed.Events[i].Event
			if fact, _ := l.filed.Get(eventKey{provider, ev.ID}); fact {
				continue
			}
			unfiled[log.ChunkID()] = append(unfiled[log.ChunkID()], foundEvent{
				recipient: log.Recipient(),
				attempt:   ev.Attempt,
				address:   parsed.Events[i].Address,
				id:        ev.ID,
				body:      body,
			})
			if n++; n >= fileSize {
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

// searchEach searches for the events of each recipient of a chunk with an unknown outcome.
// If these are more than most, or their addresses were removed, it searches for all at once.
func (l *Lookups) searchEach(
	ctx context.Context,
	provider string,
	api models.EventLookup,
	q models.LookupQuery,
	chunk models.ID,
	most int,
	found findings,
) error {
	q.Chunks = map[models.ID]bool{chunk: true}
	c, err := l.Chunks.Load(ctx, chunk)
	if err == nil {
		err = l.Chunks.LoadRecipients(ctx, c)
	}
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		_, err = l.Chunks.SkipCorrupt(chunk, err)
		return err
	}
	if err != nil { // the addresses were removed
		return l.search(ctx, provider, api, q, found)
	}
	who := c.View.Where(
		func(r int, s *models.Status) bool { return s.State != models.Success && c.MayHave(provider, r, 0) },
	)
	if who.Len() > most {
		return l.search(ctx, provider, api, q, found)
	}
	for r := range who.All() {
		q.Recipient = c.Recipients[r-1].Email
		if err := l.search(ctx, provider, api, q, found); err != nil {
			return err
		}
	}
	return nil
}
