package events

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// The bounds of one search for the mail of unnamed events.
const (
	// matchAge is the greatest age of the mail. Providers try to deliver for 72 hours, and a
	// receiving server may report a bounce days later.
	matchAge    = 7 * 24 * time.Hour
	matchBytes  = 64 << 20 // of fingerprints
	matchChunks = 500
	matchHours  = 200 // hours of one user that are read together
)

// unnamedEvent is an event that does not name its log.
type unnamedEvent struct {
	models.UnnamedEvent
	in    models.Inbox // the entry that the event came in; it has only ID and Provider
	found []models.ParsedEvent
}

// matcher finds the logs of events that do not name one.
type matcher struct {
	log       *slog.Logger
	store     Store
	chunks    *dispatch.Chunks
	providers *provider.Set
	observer  Observer
	counts    *counts
	schedule  matchSchedule
	unmatched unmatchedList
}

// match finds the logs of the group's unnamed events and adds the events to the group.
//
// An event belongs to the attempt that was answered with its message id and has its address.
// A bounce without a message id is attributed by its address alone if exactly one attempt
// fits, and marked as a guess. Other events stay in the inbox, where a replay finds them.
func (m *matcher) match(ctx context.Context, group *eventGroup) error {
	if len(group.unnamed) == 0 {
		return nil
	}
	last := group.again || group.parseRevision > 0
	began := time.Now()
	if !last && !m.schedule.mayBegin(began) {
		for i := range group.unnamed {
			m.matchLater(&group.unnamed[i])
		}
		return nil
	}
	if err := m.findLogs(ctx, group.unnamed); err != nil {
		return err
	}
	m.schedule.ended(began, time.Now())
	for i := range group.unnamed {
		u := &group.unnamed[i]
		switch {
		case len(u.found) == 1:
			group.add(&u.in, u.found)
			if group.parseRevision > 0 {
				m.unmatched.matched(u)
			}
		case !last:
			m.matchLater(u)
		case group.parseRevision == 0:
			m.countUnmatched(u)
		}
	}
	group.unnamed = nil
	return nil
}

// matchLater makes MatchAgain try again with the entry of an event: the answer to its call
// may not be stored yet.
func (m *matcher) matchLater(u *unnamedEvent) {
	if !m.schedule.add(u.in.ID, time.Now()) {
		m.countUnmatched(u)
	}
}

// countUnmatched counts an event whose log was not found.
func (m *matcher) countUnmatched(u *unnamedEvent) {
	why := "unmatched"
	if len(u.found) > 1 {
		why = "ambiguous"
	}
	m.counts.unmatched.Add(1)
	m.unmatched.add(u)
	m.observer.EventRefused(u.in.Provider, why)
	m.providers.Get(u.in.Provider).Count(func(n *telemetry.Counters) { n.Unmatched++ })
	m.log.Debug("event names no log; it stays in the inbox", "provider", u.in.Provider, "why", why,
		"kind", string(u.Event.Kind), "post", u.in.ID.String())
}

// findLogs sets found of events. It reads the chunks of the last days whose address index may
// contain one of the addresses, the newest hours first.
func (m *matcher) findLogs(ctx context.Context, events []unnamedEvent) error {
	s := search{store: m.store, skip: m.chunks.SkipCorrupt, byMark: map[uint32][]*unnamedEvent{}}
	for i := range events {
		u := &events[i]
		mark := models.Fingerprint(u.Address)
		s.byMark[mark] = append(s.byMark[mark], u)
		s.from, s.to = models.EarlierOf(s.from, u.Event.At), models.LaterOf(s.to, u.Event.At)
		if i == 0 {
			s.from = u.Event.At
		}
	}
	s.from, s.to = s.from.Add(-matchAge), s.to.Add(maxSkew)
	users, err := m.store.Users(ctx)
	if err != nil {
		return err
	}
	for i := range users {
		if err := s.user(ctx, users[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// search is one search for the logs of events.
type search struct {
	store         Store
	skip          func(models.ID, error) (dispatch.Result, error) // see dispatch.Chunks.SkipCorrupt
	byMark        map[uint32][]*unnamedEvent                      // by fingerprint of the address
	from, to      time.Time                                       // when their mail was accepted
	bytes, chunks int                                             // read so far
}

// full reports whether the search has read as much as it may.
func (s *search) full() bool { return s.bytes > matchBytes || s.chunks > matchChunks }

// user searches the mail of a user.
func (s *search) user(ctx context.Context, user string) error {
	for hour, err := range hoursOf(ctx, s.store, user, s.from, s.to) {
		if err != nil {
			return err
		}
		if err := s.hour(ctx, user, hour); err != nil || s.full() {
			return err
		}
	}
	return nil
}

// hoursOf yields the hours from which there may be mail of a user that was accepted between two
// times, newest first. It ends after the first error.
func hoursOf(ctx context.Context, store Store, user string, from, to time.Time) iter.Seq2[time.Time, error] {
	return func(yield func(time.Time, error) bool) {
		for before := to.Truncate(time.Hour).Add(time.Hour); ; {
			hours, err := store.AddressIndexHours(ctx, user, before, matchHours)
			if err != nil {
				yield(time.Time{}, err)
				return
			}
			for _, hour := range hours {
				if before = hour; !hour.After(from.Add(-time.Hour)) || !yield(hour, nil) {
					return
				}
			}
			if len(hours) < matchHours {
				return
			}
		}
	}
}

// inHour returns the chunks that were accepted in an hour and may have some of the addresses whose fingerprints are in
// byMark, and how many bytes of fingerprints it has read.
func inHour[T any](
	ctx context.Context, store Store, user string, hour time.Time, byMark map[uint32][]T,
) (chunks map[models.ID][]T, read int, err error) {
	chunks = map[models.ID][]T{}
	for index, err := range store.AddressIndexes(ctx, user, hour, models.ID{}) {
		if err != nil {
			return nil, read, err
		}
		read += len(index.Fingerprints)
		for mark, some := range byMark {
			if index.MayContain(mark) {
				chunks[index.Chunk] = append(chunks[index.Chunk], some...)
			}
		}
	}
	return chunks, read, nil
}

// hour searches the mail that was accepted in an hour.
func (s *search) hour(ctx context.Context, user string, hour time.Time) error {
	candidates, read, err := inHour(ctx, s.store, user, hour, s.byMark)
	if s.bytes += read; err != nil {
		return err
	}
	for chunk, events := range candidates {
		if s.chunks++; s.full() {
			return nil
		}
		err := s.chunk(ctx, chunk, events)
		if errors.Is(err, models.ErrNotFound) {
			continue // its addresses were removed
		}
		if err != nil {
			if _, err = s.skip(chunk, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunk searches the attempts of a chunk.
func (s *search) chunk(ctx context.Context, id models.ID, events []*unnamedEvent) error {
	recipients, err := s.store.Recipients(ctx, id)
	if err != nil {
		return err
	}
	entries, facts, err := s.store.Record(ctx, id)
	if err != nil {
		return err
	}
	parts := answers(facts)
	for _, u := range events {
		for i := range recipients {
			if !strings.EqualFold(recipients[i].Email, u.Address) {
				continue
			}
			for k := range entries {
				if en := &entries[k]; u.fits(en, i+1, parts[en.Number]) {
					ev := u.Event
					ev.Attempt, ev.Guess = en.Number, u.MessageID == ""
					u.found = append(u.found, models.ParsedEvent{Log: id.Log(i + 1), Address: u.Address, Event: ev})
				}
			}
		}
	}
	return nil
}

// answers returns the parts of the answers to attempts, by number.
func answers(facts []models.Fact) map[int][]models.Part {
	out := map[int][]models.Part{}
	for i := range facts {
		if o := facts[i].Outcome; o != nil {
			out[o.Attempt] = append(out[o.Attempt], o.Parts...)
		}
	}
	return out
}

// fits reports whether an event may be about recipient r of an entry, which was answered with
// parts.
func (u *unnamedEvent) fits(en *models.Entry, r int, parts []models.Part) bool {
	if en.Kind != models.Attempt || en.Provider != u.in.Provider || !en.Recipients.Has(r) ||
		en.At.After(u.Event.At.Add(maxSkew)) || en.At.Before(u.Event.At.Add(-matchAge)) {
		return false
	}
	refused := false
	for i := range parts {
		if !parts[i].Recipients.Has(r) {
			continue
		}
		refused = refused || parts[i].Class.Refused()
		if u.MessageID != "" && parts[i].MessageID == u.MessageID {
			return true
		}
	}
	return u.MessageID == "" && u.Event.Kind.Failure() && !refused
}
