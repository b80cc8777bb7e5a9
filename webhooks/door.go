package webhooks

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// The door writes down that it is open. From what is written, and from posts
// that it could not store, it finds the times in which it was shut: what was
// posted then may be gone for good (Mailgun never repeats `delivered`), and is
// looked up by the workers.

const (
	doorBeat  = 10 * time.Second
	doorKept  = 30 * 24 * time.Hour
	doorSlack = 15 * time.Second // a soft stop takes some time between shutting the door and the last beat
	doorAway  = 2 * time.Minute  // posts may still be sent to a door that died
	doorEnded = "door.ended"     // reports when a door was shut in peace
)

// Reports is what the watch over the door needs of the store.
type Reports interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// lapse gathers the time in which posts could not be stored.
type lapse struct {
	mu       sync.Mutex
	from, to time.Time
}

func (l *lapse) note(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from.IsZero() {
		l.from = at
	}
	l.to = at
}

func (l *lapse) take() (from, to time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to = l.from, l.to
	l.from, l.to = time.Time{}, time.Time{}
	return from, to
}

// Watch writes that the door is open, every few seconds, until ctx ends. name is
// this process's. Call it when the door is about to open.
func (s *Server) Watch(ctx context.Context, store Reports, name string) {
	w := watch{store: store, name: name, log: s.log}
	t := time.NewTicker(s.beat)
	defer t.Stop()
	for {
		w.look(ctx, s, time.Now().UTC())
		w.lookAtOthers(ctx, s.beat, time.Now().UTC())
		w.heard(ctx, &s.heard)
		select {
		case <-t.C:
		case <-s.heard.first:
		case <-ctx.Done():
			// It is open until about now: the gap begins here.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			now := time.Now().UTC()
			w.write(last, doorEnded, name, now, doorKept)
			w.write(last, telemetry.ReceiverLiveness, name, now, doorKept)
			w.heard(last, &s.heard)
			return
		}
	}
}

type watch struct {
	store Reports
	name  string
	log   *slog.Logger
	last  time.Time // when it was written last that the door is open

	others map[string]sighting
}

// sighting is what is known of another process's door.
type sighting struct {
	at   time.Time // what it wrote, by its clock
	seen time.Time // when that was new, by ours; zero: it was never seen to change
}

// lookAtOthers asks for a look-up of what was posted to another process's door
// that has died: this one was open, but not all posts came here at once.
func (w *watch) lookAtOthers(ctx context.Context, beat time.Duration, now time.Time) {
	open, err := w.store.Transients(ctx, telemetry.ReceiverLiveness)
	if err != nil {
		return
	}
	known := make(map[string]sighting, len(open))
	for name, raw := range open {
		var at time.Time
		if name == w.name || json.Unmarshal(raw, &at) != nil {
			continue
		}
		s, before := w.others[name]
		switch {
		case !before:
			s = sighting{at: at} // it may be long gone
		case !at.Equal(s.at):
			s = sighting{at, now}
		case !s.seen.IsZero() && now.Sub(s.seen) > beat+doorSlack && w.died(ctx, name, s):
			s.seen = time.Time{}
		}
		known[name] = s
	}
	w.others = known
}

// died writes the gap that a door left which was not shut in peace. It reports
// whether that is done.
func (w *watch) died(ctx context.Context, name string, s sighting) bool {
	ended, err := w.store.Transients(ctx, doorEnded)
	if err != nil {
		return false
	}
	var at time.Time
	if json.Unmarshal(ended[name], &at) == nil && !at.Before(s.at) {
		return true
	}
	return w.gapOf(ctx, name+"/"+s.at.Format(time.RFC3339Nano), s.seen, s.seen.Add(doorAway))
}

// look writes that the door is open, and the gap before, if there was one.
func (w *watch) look(ctx context.Context, s *Server, now time.Time) {
	before := w.last
	if before.IsZero() {
		open, err := w.store.Transients(ctx, telemetry.ReceiverLiveness)
		if err != nil {
			return // looked at with the next beat: until then the gap goes on
		}
		ahead := false
		for _, raw := range open {
			var t time.Time
			if json.Unmarshal(raw, &t) != nil {
				continue
			}
			if t.After(now.Add(doorSlack)) { // by a clock that is ahead: it tells nothing
				ahead = true
			} else if t.After(before) {
				before = t
			}
		}
		if since := now.Add(-models.LateWriters); ahead && (before.IsZero() || before.After(since)) {
			before = since
		}
	}
	if !before.IsZero() && (w.last.IsZero() || now.Sub(before) > s.beat+doorSlack) { // a start, or a freeze
		if !w.gap(ctx, before, now) {
			return
		}
	}
	if from, to := s.lapse.take(); !from.IsZero() && !w.gap(ctx, from, to) {
		s.lapse.note(from)
		s.lapse.note(to)
		return
	}
	if w.write(ctx, telemetry.ReceiverLiveness, w.name, now, doorKept) {
		w.last = now
	}
}

// gap asks for a look-up of what was reported in a time.
func (w *watch) gap(ctx context.Context, from, to time.Time) bool {
	return w.gapOf(ctx, w.name+"/"+from.Format(time.RFC3339Nano), from, to)
}

func (w *watch) gapOf(ctx context.Context, name string, from, to time.Time) bool {
	g := telemetry.Outage{From: from.Add(-doorSlack), To: to.Add(doorSlack)}
	if !w.write(ctx, telemetry.OutageRecord, name, g, telemetry.OutageTTL) {
		return false
	}
	w.log.Info(
		"webhooks could not be taken for a while; what providers can tell of it is looked up",
		"from",
		g.From,
		"to",
		g.To,
	)
	return true
}

func (w *watch) write(ctx context.Context, kind, name string, v any, keep time.Duration) bool {
	raw, err := json.Marshal(v)
	if err == nil {
		err = w.store.PutTransient(ctx, kind, name, raw, keep)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Warn("not written down by the door for webhooks", "err", err)
	}
	return err == nil
}
