package service

import (
	"context"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Warnings in the results of commands.
const (
	mayDoubleWarning = "It is unknown whether the providers accepted this mail, so it may arrive twice."
	inFlightWarning  = "Calls in flight cannot be stopped, but no new call starts."
	uncountedWarning = "The recipients could not be counted."
	noneFailed       = "No mail of this batch has failed that can be sent again without the risk of a second copy."
	noneHeld         = "No mail of this batch is held."
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
// about a log, otherwise of the batch. For a command that changes which recipients are sent
// for the first time, it also sets the number of those. If they cannot be counted, it adds
// a warning.
func (s *Service) countInFlight(ctx context.Context, b *models.Batch, out *BatchControlResult) {
	byState := !counted(out.Command)
	n, err := s.countUnfinished(ctx, b, out)
	if err != nil {
		s.log.Warn("cannot count the recipients of a command", "batch_id", b.ID.String(), "err", err)
		out.warn(uncountedWarning)
		return
	}
	out.InFlight = &n.inFlight
	if byState {
		out.Recipients = new(int)
		if out.Changed {
			*out.Recipients = n.unsent
		}
	}
}
