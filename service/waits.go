package service

import (
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// waitsFor lists what must happen before mail of a batch that an order let go can
// go out; empty: nothing. Block rules that name a provider or the recipients'
// domain meet a part of the mail alone and are not told of.
func (s *Service) waitsFor(rules *control.Rules, b *models.Batch) []string {
	var out []string
	if rules.StoppedBy(b.ID) != "" {
		out = append(out, "the batch is resumed")
	}
	if rules.Paused(b.User) {
		out = append(out, "the user is resumed")
	}
	if slices.ContainsFunc(rules.Holds(), func(h models.Command) bool { return b.Created().Before(h.Before) }) {
		out = append(out, "an operator lifts the hold since the restore")
	}
	if slices.ContainsFunc(rules.Blocks(), func(bl models.Block) bool { return !bl.Fail && bl.Meets(b, "", "") }) {
		out = append(out, "the block rule that meets it is removed")
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

// warnOfWaiting says what an order that lets mail of a batch go still has to wait
// for.
func (s *Service) warnOfWaiting(rules *control.Rules, b *models.Batch, out *Steered) {
	if waits := s.waitsFor(rules, b); len(waits) > 0 {
		out.Waits = true
		out.warn("Nothing goes out yet: it does when " + strings.Join(waits, ", and ") + ".")
	}
}
