package notices

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// seen is what earlier rounds of this process found of a provider.
type seen struct {
	bad   time.Time // since when something is wrong, in the round before; zero: nothing was
	taken time.Time // when it took mail for the first time, with no suspension since; zero: it is suspended
	well  time.Time // when nothing was wrong for the first time; zero: something is
}

// healthChanges returns the notices about a provider. A suspension is a part of a failover, which
// lasts from the first failed call until the provider has done well for a while. What lasted for
// less than two rounds is not published, and what comes again within a while has not ended.
func (w *Watch) healthChanges(s *feed.Status, name string, h telemetry.Health, now time.Time) (out []models.Notice) {
	publish := func(n models.Notice) {
		n.Provider = name
		out = append(out, n)
	}
	before := w.seen[name]
	suspended := h.State == telemetry.Suspended
	lasts := !before.bad.IsZero() && (suspended || h.State == telemetry.Probing ||
		h.State == telemetry.Failing && !h.Since.After(before.bad))
	failing, failover := s.Failover[name]
	if !failover && lasts {
		s.Failover[name] = h.Since
		publish(models.Notice{Kind: models.FailoverStarted, Since: h.Since, Reason: h.Source, Why: why(&h)})
	}
	from, published := s.Suspended[name]
	if !published && lasts && suspended {
		s.Suspended[name] = h.Since
		publish(models.Notice{
			Kind: models.ProviderSuspended, Since: h.Since, Until: h.Until, Reason: h.Source, Why: why(&h),
		})
	}
	calmFor := func(since time.Time) bool { return !since.IsZero() && now.Sub(since) >= calm }
	if published && takes(&h) && calmFor(before.taken) {
		delete(s.Suspended, name)
		publish(models.Notice{Kind: models.ProviderRecovered, Since: from})
	}
	if failover && h.State == telemetry.Healthy && calmFor(before.well) {
		delete(s.Failover, name)
		publish(models.Notice{Kind: models.FailoverEnded, Since: failing})
	}
	return out
}

// takes reports whether a provider gets mail as it usually does.
func takes(h *telemetry.Health) bool {
	return h.State == telemetry.Healthy || h.State == telemetry.Failing
}

func why(h *telemetry.Health) string {
	if h.Why != "" {
		return h.Why
	}
	return h.LastError
}

// remember keeps what the next round compares with.
func (w *Watch) remember(found map[string]telemetry.Health, now time.Time) {
	for name, h := range found {
		var is seen
		if before := w.seen[name]; takes(&h) {
			is.taken = first(before.taken, now)
			if h.State == telemetry.Healthy {
				is.well = first(before.well, now)
			}
		}
		if slices.Contains([]string{telemetry.Failing, telemetry.Probing, telemetry.Suspended}, h.State) {
			is.bad = h.Since
		}
		w.seen[name] = is
	}
}

// first returns a time that is known, or now.
func first(known, now time.Time) time.Time {
	if known.IsZero() {
		return now
	}
	return known
}

// differenceChanges returns the notice about a round of checks: that more sums differ than
// before.
func differenceChanges(s *feed.Status, r *telemetry.Recount) (out []models.Notice) {
	if r.Differences > s.Differences {
		out = []models.Notice{{Kind: models.CheckDifference, Since: r.At, Count: int64(r.Differences)}}
	}
	s.Differences = r.Differences
	return out
}

// queueChanges returns a notice for each queue that stalls and did not before. What stalls again within the time that a
// report is kept is one thing.
func queueChanges(s *feed.Status, reports map[string][]byte) (out []models.Notice) {
	maps.DeleteFunc(s.Stalled, func(queue string, _ time.Time) bool { return reports[queue] == nil })
	for _, queue := range slices.Sorted(maps.Keys(reports)) {
		var q telemetry.StalledQueue
		if _, known := s.Stalled[queue]; known || json.Unmarshal(reports[queue], &q) != nil {
			continue
		}
		s.Stalled[queue] = q.Since
		out = append(out, models.Notice{
			Kind:  models.QueueStalled,
			Since: q.Since,
			Count: int64(q.Waiting),
			Why:   "the queue is " + queue,
		})
	}
	return out
}

// unknownChanges returns the notices about unknown outcomes: one for each provider that
// has new ones. It forgets the counts of hours before the oldest.
func unknownChanges(s *feed.Status, counts map[string]int64, oldest string) (out []models.Notice) {
	byProvider := map[string]int64{}
	for key, n := range counts {
		if more := n - s.Unknown[key]; more > 0 {
			_, provider, _ := strings.Cut(key, " ")
			byProvider[provider] += more
		}
	}
	maps.DeleteFunc(s.Unknown, func(key string, _ int64) bool { return len(byProvider) > 0 && key < oldest })
	for key, n := range counts {
		s.Unknown[key] = max(s.Unknown[key], n)
	}
	for _, provider := range slices.Sorted(maps.Keys(byProvider)) {
		out = append(out, models.Notice{Kind: models.UnknownOutcomes, Provider: provider, Count: byProvider[provider]})
	}
	return out
}
