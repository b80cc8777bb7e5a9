package commands

import (
	"context"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// warnOfSuspended adds a warning if every provider that a batch may use is suspended. A suspended provider is tried
// only when its suspension ends.
func (s *Commands) warnOfSuspended(ctx context.Context, b *models.Batch, out *Result) {
	w, err := s.Mail.Waiting(ctx)
	if err != nil || !out.Changed {
		return
	}
	if until := w.Suspended(b); len(until) > 0 {
		out.warn("Its providers are suspended, so it waits for the first of them: " + strings.Join(until, ", ") + ".")
	}
}

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

// warnOfWaiting adds a warning if mail of a batch still waits for something after a command that should let it go out.
func (s *Commands) warnOfWaiting(rules *control.Rules, b *models.Batch, out *Result) {
	if waits := s.waitsFor(rules, b); len(waits) > 0 {
		out.Waits = true
		out.warn("Nothing goes out yet. It will when " + strings.Join(waits, ", and ") + ".")
	}
}

// waitsFor returns what must happen before mail of a batch can go out. It ignores block
// rules for a provider or for a recipient's domain, which affect only some of the mail.
func (s *Commands) waitsFor(rules *control.Rules, b *models.Batch) []string {
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
func (s *Commands) allOffline(rules *control.Rules, b *models.Batch) bool {
	for i := range s.Providers {
		name := s.Providers[i].Name
		if (len(b.Providers) == 0 || slices.Contains(b.Providers, name)) &&
			rules.Provider(name).Mode != models.ProviderOffline {
			return false
		}
	}
	return len(s.Providers) > 0
}
