package service

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Warnings in the results of commands.
const (
	mayDoubleWarning = "It is unknown whether the providers accepted this mail, so it may arrive twice."
	inFlightWarning  = "Calls in flight cannot be stopped, but no new call starts."
	uncountedWarning = "The calls in flight could not be counted."
	lateWarning      = "The command is in effect, but the mail may not go out by itself: " +
		"repeat the command if nothing moves within a minute."
)

// warnOfWaiting adds a warning if mail of a batch still waits for something after a
// command that should let it go out.
func (s *Service) warnOfWaiting(rules *control.Rules, b *models.Batch, out *BatchControlResult) {
	if waits := s.waitsFor(rules, b); len(waits) > 0 {
		out.Waits = true
		out.warn("Nothing goes out yet. It will when " + strings.Join(waits, ", and ") + ".")
	}
}

// waitsFor returns what must happen before mail of a batch can go out. It ignores block
// rules for a provider or for a recipient's domain, which affect only some of the mail.
func (s *Service) waitsFor(rules *control.Rules, b *models.Batch) []string {
	var out []string
	if rules.StoppedBy(b.ID) != "" {
		out = append(out, "the batch is resumed")
	}
	if rules.Paused(b.User) {
		out = append(out, "the user is resumed")
	}
	if slices.ContainsFunc(rules.Holds(), func(h models.Command) bool { return b.Created().Before(h.Before) }) {
		out = append(out, "an operator lifts the hold that followed a restore")
	}
	if slices.ContainsFunc(rules.Blocks(), func(bl models.Block) bool { return !bl.Fail && bl.Meets(b, "", "") }) {
		out = append(out, "the block rule for it is removed")
	}
	if s.allOffline(rules, b) {
		out = append(out, "a provider that it may use is online")
	}
	return out
}

// allOffline reports whether every provider that a batch may use is offline.
func (s *Service) allOffline(rules *control.Rules, b *models.Batch) bool {
	for i := range s.providers {
		name := s.providers[i].Name
		if (len(b.Providers) == 0 || slices.Contains(b.Providers, name)) &&
			rules.Provider(name).Mode != models.ProviderOffline {
			return false
		}
	}
	return len(s.providers) > 0
}

// countInFlight sets the number of recipients in flight: of the chunk if the command was
// about a log, otherwise of the batch. If they cannot be counted, it adds a warning.
func (s *Service) countInFlight(ctx context.Context, b *models.Batch, out *BatchControlResult) {
	var n int
	var err error
	if out.LogID.IsZero() {
		n, err = s.inFlight(ctx, b)
	} else {
		n, err = s.chunkInFlight(ctx, out.LogID.ChunkID())
	}
	if err != nil {
		s.log.Warn("cannot count calls in flight", "batch_id", b.ID.String(), "err", err)
		out.warn(uncountedWarning)
		return
	}
	out.InFlight = &n
}

// inFlight returns the number of recipients of calls that may be running: of attempts
// that have no outcome and whose time is not over. It reads the ledger of every chunk,
// because a summary without queued logs may be older than a release.
func (s *Service) inFlight(ctx context.Context, b *models.Batch) (int, error) {
	counts := make([]int, b.Chunks)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n := range b.Chunks {
		g.Go(func() (err error) {
			counts[n], err = s.chunkInFlight(ctx, b.ID.Chunk(n))
			return err
		})
	}
	err := g.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum, err
}

// chunkInFlight returns the number of recipients of a chunk's calls that may be running.
func (s *Service) chunkInFlight(ctx context.Context, chunk models.ID) (int, error) {
	entries, err := s.store.Ledger(ctx, chunk) // usually enough: most chunks have no running call
	if err != nil {
		return 0, err
	}
	now, running := time.Now(), map[int]int{}
	for i := range entries {
		if e := &entries[i]; e.Kind == models.Attempt && e.CallEnds.After(now) {
			running[e.Number] = e.Recipients.Len()
		}
	}
	if len(running) == 0 {
		return 0, nil
	}
	_, facts, err := s.store.Record(ctx, chunk)
	if err != nil {
		return 0, err
	}
	for i := range facts {
		if o := facts[i].Outcome; o != nil {
			delete(running, o.Attempt)
		}
	}
	sum := 0
	for _, n := range running {
		sum += n
	}
	return sum, nil
}
