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

// The receiver stores a heartbeat while it accepts posts. Missing heartbeats, posts
// that could not be stored and many refused posts in a row are outages. Events posted during an outage may
// be lost for good (Mailgun never repeats `delivered`), so workers look them up.

const (
	heartbeatEvery = 10 * time.Second
	heartbeatTTL   = 30 * 24 * time.Hour
	outageSlack    = 15 * time.Second   // a clean shutdown takes time between the last post and the last heartbeat
	crashOutage    = 2 * time.Minute    // posts may still be sent to a receiver that crashed
	cleanShutdown  = "receiver.stopped" // kind of the times of clean shutdowns

	refusedInARow    = 10              // so many refused posts are an outage: the key or the clock may be wrong
	refusedPostsSpan = 5 * time.Minute // longest span of refused posts that is not recorded yet
	refusedReported  = 3               // so many refused posts in a row are reported: strangers post, too
)

// Reports is the part of the store that Watch needs.
type Reports interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// outage is the time span in which posts could not be stored.
type outage struct {
	mu       sync.Mutex
	from, to time.Time
}

// note extends the outage to at.
func (o *outage) note(at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.from.IsZero() {
		o.from = at
	}
	o.to = at
}

// take returns the outage and resets it. Both times are zero if there was none.
func (o *outage) take() (from, to time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	from, to = o.from, o.to
	o.from, o.to = time.Time{}, time.Time{}
	return from, to
}

// begin returns when the outage began; zero if there is none.
func (o *outage) begin() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.from
}

// lostPosts is the time span in which posts of one provider may have been refused wrongly.
type lostPosts struct {
	outage
	mu   sync.Mutex
	row  telemetry.Refused // posts since the last one that was verified
	last time.Time         // time of the last refused post
}

// refuse counts a post that could not be verified. Many of them without a verified one between
// them are an outage. It reports whether operators should know now.
func (l *lostPosts) refuse(at time.Time, code string) (report bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.row.Posts++; l.row.Posts == 1 {
		l.row.Since, l.last = at, at
	}
	l.row.Code, l.row.Last = code, at
	if l.row.Posts >= refusedInARow {
		l.note(l.last)
		l.note(at)
		l.last = at
	}
	return l.row.Posts == refusedReported
}

// verify ends a row of refused posts. It reports whether operators should know now.
func (l *lostPosts) verify() (report bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	report = l.row.Posts >= refusedReported
	l.row = telemetry.Refused{}
	return report
}

// refused returns the row of refused posts; none if it is too short to be reported.
func (l *lostPosts) refused() telemetry.Refused {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.row.Posts < refusedReported {
		return telemetry.Refused{}
	}
	return l.row
}

// Watch stores heartbeats of the receiver until ctx ends, and records outages of this process and of its peers. name
// identifies this process. Call Watch just before the server starts to listen. Without providers that post, nothing is
// lost in an outage, and it returns at once.
func (s *Server) Watch(ctx context.Context, store Reports, name string) {
	if len(s.providers) == 0 {
		return
	}
	w := watch{store: store, name: name, log: s.log}
	t := time.NewTicker(s.interval)
	defer t.Stop()
	for {
		w.heartbeat(ctx, s, time.Now().UTC())
		w.checkPeers(ctx, s.interval, time.Now().UTC())
		w.saveLostPosts(ctx, s, time.Now().Add(-refusedPostsSpan))
		w.saveLastReceived(ctx, &s.received)
		w.saveRefused(ctx, s)
		select {
		case <-t.C:
		case <-s.received.changed:
		case <-ctx.Done():
			// The receiver was up until about now; the outage begins here.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			now := time.Now().UTC()
			w.write(last, cleanShutdown, name, now, heartbeatTTL)
			w.write(last, telemetry.ReceiverLiveness, name, now, heartbeatTTL)
			w.saveLastReceived(last, &s.received)
			w.saveLostPosts(last, s, now)
			return
		}
	}
}

// watch stores the heartbeats of one receiver and reads those of its peers.
type watch struct {
	store Reports
	name  string
	log   *slog.Logger
	last  time.Time // of the last stored heartbeat

	refused map[string]telemetry.Refused // by provider: what the store has
	peers   map[string]peerHeartbeat
}

// peerHeartbeat is the last heartbeat of another receiver.
type peerHeartbeat struct {
	at   time.Time // by the peer's clock
	seen time.Time // when it changed, by our clock; zero if it was never seen to change
}

// checkPeers records an outage for each peer whose heartbeats stopped without a
// clean shutdown: posts to that peer may be lost although this receiver is up.
func (w *watch) checkPeers(ctx context.Context, interval time.Duration, now time.Time) {
	open, err := w.store.Transients(ctx, telemetry.ReceiverLiveness)
	if err != nil {
		return
	}
	known := make(map[string]peerHeartbeat, len(open))
	for name, raw := range open {
		var at time.Time
		if name == w.name || json.Unmarshal(raw, &at) != nil {
			continue
		}
		s, before := w.peers[name]
		switch {
		case !before:
			s = peerHeartbeat{at: at} // the peer may have stopped long ago
		case !at.Equal(s.at):
			s = peerHeartbeat{at, now}
		case !s.seen.IsZero() && now.Sub(s.seen) > interval+outageSlack && w.peerStopped(ctx, name, s):
			s.seen = time.Time{}
		}
		known[name] = s
	}
	w.peers = known
}

// peerStopped records the outage of a stopped peer, unless the peer shut down
// cleanly. It returns false if the store could not be read or written.
func (w *watch) peerStopped(ctx context.Context, name string, s peerHeartbeat) bool {
	ended, err := w.store.Transients(ctx, cleanShutdown)
	if err != nil {
		return false
	}
	var at time.Time
	if json.Unmarshal(ended[name], &at) == nil && !at.Before(s.at) {
		return true
	}
	return w.recordAs(ctx, name+"/"+s.at.Format(time.RFC3339Nano), s.seen, s.seen.Add(crashOutage))
}

// heartbeat stores a heartbeat. If there was an outage before it, it stores the outage first.
func (w *watch) heartbeat(ctx context.Context, s *Server, now time.Time) {
	before := w.last
	if before.IsZero() {
		var ok bool
		if before, ok = w.lastOfAll(ctx, now); !ok {
			return // the next heartbeat retries; the outage lasts until then
		}
	}
	started, frozen := w.last.IsZero(), now.Sub(before) > s.interval+outageSlack
	if !before.IsZero() && (started || frozen) {
		if !w.record(ctx, before, now) {
			return
		}
	}
	if from, to := s.outage.take(); !from.IsZero() && !w.record(ctx, from, to) {
		s.outage.note(from)
		s.outage.note(to)
		return
	}
	if w.write(ctx, telemetry.ReceiverLiveness, w.name, now, heartbeatTTL) {
		w.last = now
	}
}

// lastOfAll returns the time of the last heartbeat of any receiver, or zero if there is none. It returns false if the
// store cannot be read. A heartbeat from a clock that is ahead counts as one at now minus models.LateWriters.
func (w *watch) lastOfAll(ctx context.Context, now time.Time) (last time.Time, ok bool) {
	open, err := w.store.Transients(ctx, telemetry.ReceiverLiveness)
	if err != nil {
		return last, false
	}
	ahead := false
	for _, raw := range open {
		var t time.Time
		if json.Unmarshal(raw, &t) != nil {
			continue
		}
		if t.After(now.Add(outageSlack)) {
			ahead = true
		} else if t.After(last) {
			last = t
		}
	}
	if since := now.Add(-models.LateWriters); ahead && (last.IsZero() || last.After(since)) {
		last = since
	}
	return last, true
}

// saveLostPosts records the outages of each provider that began before a time.
func (w *watch) saveLostPosts(ctx context.Context, s *Server, before time.Time) {
	for name, p := range s.providers {
		if begin := p.lost.begin(); begin.IsZero() || begin.After(before) {
			continue
		}
		from, to := p.lost.take()
		g := telemetry.Outage{From: from.Add(-outageSlack), To: to.Add(outageSlack), Provider: name}
		if !w.write(ctx, telemetry.OutageRecord, w.name+"/"+name+"/"+from.Format(time.RFC3339Nano), g, telemetry.OutageTTL) {
			p.lost.note(from)
			p.lost.note(to)
			continue
		}
		w.log.Warn("webhooks were refused and may be lost; missed events will be looked up",
			"provider", name, "from", g.From, "to", g.To)
	}
}

// saveRefused reports the providers whose posts are refused, for as long as they are.
func (w *watch) saveRefused(ctx context.Context, s *Server) {
	for name, p := range s.providers {
		now := p.lost.refused()
		if now.Provider = name; now == w.refused[name] || now.Posts == 0 && w.refused[name].Posts == 0 {
			continue
		}
		if !w.write(ctx, telemetry.RefusedReport, w.name+"/"+name, now, telemetry.RefusedTTL) {
			continue
		}
		if w.refused == nil {
			w.refused = map[string]telemetry.Refused{}
		}
		w.refused[name] = now
	}
}

// record stores an outage of this receiver, so that workers look up its events.
// It returns false if the outage could not be stored.
func (w *watch) record(ctx context.Context, from, to time.Time) bool {
	return w.recordAs(ctx, w.name+"/"+from.Format(time.RFC3339Nano), from, to)
}

// recordAs stores an outage under a name, widened by outageSlack on both sides.
func (w *watch) recordAs(ctx context.Context, name string, from, to time.Time) bool {
	g := telemetry.Outage{From: from.Add(-outageSlack), To: to.Add(outageSlack)}
	if !w.write(ctx, telemetry.OutageRecord, name, g, telemetry.OutageTTL) {
		return false
	}
	w.log.Info("webhook receiver was down; missed events will be looked up", "from", g.From, "to", g.To)
	return true
}

// write stores a value. It returns false if that failed.
func (w *watch) write(ctx context.Context, kind, name string, v any, keep time.Duration) bool {
	raw, err := json.Marshal(v)
	if err == nil {
		err = w.store.PutTransient(ctx, kind, name, raw, keep)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Warn("cannot store the state of the webhook receiver", "err", err)
	}
	return err == nil
}
