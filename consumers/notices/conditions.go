package notices

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/feed"
)

// begun and ended are the notices of conditions. Other conditions have none: only a worker could write that there is no
// worker, and nobody would get the notice that nobody gets one.
var begun = map[condition.Kind]models.NoticeKind{
	condition.NoProvider:      models.SendingStopped,
	condition.DiskReserve:     models.AcceptanceStopped,
	condition.NoBroker:        models.BrokerLost,
	condition.WebhooksRefused: models.WebhooksRefused,
}

var ended = map[condition.Kind]models.NoticeKind{
	condition.NoProvider:      models.SendingResumed,
	condition.DiskReserve:     models.AcceptanceResumed,
	condition.NoBroker:        models.BrokerRecovered,
	condition.WebhooksRefused: models.WebhooksAccepted,
}

// conditionNotices returns notices of conditions that have lasted for a while, and of those that are over for as long.
func (w *Watch) conditionNotices(s *feed.Status, now time.Time) (out []models.Notice) {
	for i := range w.conditions {
		c := &w.conditions[i]
		key := c.Key()
		_, known := s.Conditions[key]
		if known || begun[c.Kind] == "" || now.Sub(w.found[key]) < calm {
			continue
		}
		s.Conditions[key] = c.Since
		out = append(out, models.Notice{
			Kind: begun[c.Kind], Provider: c.Provider, Since: c.Since, Until: c.Until, Reason: c.Code, Count: c.Posts,
			Why: strings.TrimSpace(c.Text() + " " + c.Do()),
		})
	}
	for _, key := range slices.Sorted(maps.Keys(s.Conditions)) {
		if _, still := w.found[key]; still {
			continue
		}
		if w.gone[key] = first(w.gone[key], now); now.Sub(w.gone[key]) < calm {
			continue
		}
		kind, about, _ := strings.Cut(key, " ")
		n := models.Notice{Kind: ended[condition.Kind(kind)], Since: s.Conditions[key]}
		if n.Kind == models.WebhooksAccepted {
			n.Provider = about
		}
		out = append(out, n)
		delete(s.Conditions, key)
	}
	return out
}

// noteConditions notes since when this process finds conditions, and since when it does not any more.
func (w *Watch) noteConditions(cs []condition.Condition, now time.Time) {
	before := w.found
	w.conditions, w.found = cs, map[string]time.Time{}
	for i := range cs {
		key := cs[i].Key()
		w.found[key] = first(before[key], now)
		delete(w.gone, key)
		if c := &cs[i]; begun[c.Kind] == "" && before[key].IsZero() { // its notice is logged, if it has one
			w.log.Warn(c.Title(), "condition", string(c.Kind), "text", strings.TrimSpace(c.Text()+" "+c.Do()))
		}
	}
	maps.DeleteFunc(w.gone, func(_ string, since time.Time) bool { return now.Sub(since) > time.Hour })
}
