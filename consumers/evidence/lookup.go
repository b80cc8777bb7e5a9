package evidence

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// nearby is how far the times of look-ups may be apart that share a query, and how long
	// after a call its provider may date the acceptance of the mail.
	nearby = 10 * time.Minute
	// longSpan is the longest time that one query covers. If a look-up covers more, its
	// recipients are queried one by one, unless they are many.
	longSpan = 2 * time.Hour
	// refusedPause is how long a provider counts as one without look-ups after it refused one.
	refusedPause = 15 * time.Minute
	// expiry is how long a look-up is kept that nothing requests any more.
	expiry = time.Hour
)

// queryDelays are the times between the end of a look-up's span and its queries. Further
// queries follow the last one, each twice as late as the one before.
var queryDelays = []time.Duration{
	30 * time.Second,
	2 * time.Minute,
	5 * time.Minute,
	15 * time.Minute,
	32 * time.Minute,
}

// Lookups queries providers about chunks with unknown outcomes. Its methods may be called
// concurrently.
//
// Look-ups are kept in memory. The agenda requests them again until they are answered.
type Lookups struct {
	Deps
	cfg   Config
	log   *slog.Logger
	filed *lru.Cache[eventKey, bool] // recently found events; true: the event is a fact

	mu      sync.Mutex
	open    map[lookupKey]*lookup
	refused map[string]time.Time // when a provider refused look-ups
}

// lookupKey identifies a look-up.
type lookupKey struct {
	provider string
	chunk    models.ID
}

// lookup is a look-up and the state of its queries.
type lookup struct {
	from, to     time.Time // span of the events
	sent         time.Time // when the mail was sent at the latest
	attempts     []int     // whose events are wanted
	queries      int       // number of queries that were made
	next         time.Time // when the next query is due
	answered     time.Time // begin of the newest query whose events are all processed; zero: none
	pendingSince time.Time // begin of a query whose events are being processed; zero: none
	requested    time.Time // latest request
	expedited    time.Time // latest expedite
}

// record notes the result of a query that began at a time.
func (l *lookup) record(began time.Time, f finding) {
	switch {
	case f == finding{}:
		l.answered, l.pendingSince = began, time.Time{}
	case f.waiting == 0: // the events of the pending query are processed
		l.answered, l.pendingSince = models.LaterOf(l.answered, l.pendingSince), began
	}
}

// schedule sets the time of the next query after one that began at a time. It follows the table
// of delays, or, if again is set, comes after a pause.
func (l *lookup) schedule(began time.Time, pause time.Duration, again bool) {
	l.queries++
	if again {
		l.next = began.Add(pause)
		return
	}
	delay := queryDelays[min(l.queries, len(queryDelays)-1)]
	if more := l.queries - len(queryDelays) + 1; more > 0 {
		delay <<= min(more, 6)
	}
	l.next = models.LaterOf(l.to.Add(delay), began.Add(pause))
}

// eventLookup returns the look-ups of a provider; nil: it has none, or refused them lately.
func (l *Lookups) eventLookup(provider string) models.EventLookup {
	api := l.lookupAPI(provider)
	l.mu.Lock()
	defer l.mu.Unlock()
	if since, ok := l.refused[provider]; api == nil || ok && time.Since(since) < refusedPause {
		return nil
	}
	return api
}

// lookupAPI returns the look-ups of a provider; nil: it has none.
func (l *Lookups) lookupAPI(provider string) models.EventLookup {
	if a := l.Providers.Get(provider); a != nil && a.Events == models.EventsWebhook {
		if api, ok := a.Adapter.(models.EventLookup); ok {
			return api
		}
	}
	return nil
}

// refuse notes that a provider allows no look-ups, so that nothing waits for them.
func (l *Lookups) refuse(provider string, err error) {
	l.log.Warn("the provider allows no look-ups; outcomes are decided without them for a while",
		"provider", provider, "err", err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused[provider] = time.Now()
}

// request asks for the events of an attempt at a provider in [from, to), about mail that was
// sent by a time. It returns the begin of the newest query that is answered; zero: none is.
func (l *Lookups) request(provider string, chunk models.ID, attempt int, from, to, sent time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := lookupKey{provider, chunk}
	lk := l.open[key]
	if lk == nil {
		lk = &lookup{from: from, to: to, next: to.Add(queryDelays[0])}
		l.open[key] = lk
	}
	lk.from, lk.requested = models.EarlierOf(lk.from, from), time.Now()
	lk.sent = models.LaterOf(lk.sent, sent)
	if !slices.Contains(lk.attempts, attempt) { // no query has asked for its events
		lk.attempts = append(slices.Clip(lk.attempts), attempt) // a query may read the slice
		lk.answered, lk.pendingSince = time.Time{}, time.Time{}
	}
	if to.After(lk.to) { // another attempt, or a longer wait
		lk.to, lk.queries = to, 0
		lk.next = models.EarlierOf(to.Add(queryDelays[0]), time.Now().Add(queryDelays[0]))
	}
	return lk.answered
}

// expedite makes the next query of a look-up due now, unless it was expedited within the
// last LookUpPause.
func (l *Lookups) expedite(provider string, chunk models.ID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lk := l.open[lookupKey{provider, chunk}]; lk != nil && now.Sub(lk.expedited) > l.cfg.LookUpPause {
		lk.expedited, lk.next = now, now
	}
}

// dueLookup is a copy of a look-up that is due.
type dueLookup struct {
	lookupKey
	lookup
}

// long reports whether a look-up covers too much time for one query.
func (d *dueLookup) long() bool { return d.to.Sub(d.from) > longSpan }

// due returns the look-ups at a provider that are due, and removes those that expired.
func (l *Lookups) due(provider string, now time.Time) (out []dueLookup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, lk := range l.open {
		switch {
		case key.provider != provider:
		case now.Sub(lk.requested) > expiry:
			delete(l.open, key)
		case !now.Before(lk.next):
			out = append(out, dueLookup{key, *lk})
		}
	}
	return out
}

// groupByTime groups look-ups that can share a query.
func groupByTime(due []dueLookup) [][]dueLookup {
	slices.SortFunc(due, func(a, b dueLookup) int { return a.from.Compare(b.from) })
	var out [][]dueLookup
	var end time.Time
	for _, d := range due {
		if len(out) == 0 || d.from.After(end.Add(nearby)) || d.to.Sub(out[len(out)-1][0].from) > longSpan ||
			out[len(out)-1][0].long() {
			out = append(out, nil)
			end = d.to
		}
		out[len(out)-1] = append(out[len(out)-1], d)
		end = models.LaterOf(end, d.to)
	}
	return out
}
