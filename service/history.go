package service

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models/telemetry"
)

// HistoryRange is how far back a history goes.
type HistoryRange string

// The ranges of a history.
const (
	LastHour  HistoryRange = "hour"
	LastDay   HistoryRange = "day"
	LastWeek  HistoryRange = "week"
	LastMonth HistoryRange = "month"
)

// HistoryRanges lists them, the shortest first.
var HistoryRanges = []HistoryRange{LastHour, LastDay, LastWeek, LastMonth}

// grid is how a range is divided: so many steps, aligned to UTC.
type grid struct {
	step  time.Duration
	steps int
	part  time.Duration // of the hours that are read: see historyHours
}

var grids = map[HistoryRange]grid{
	LastHour:  {time.Minute, 60, time.Minute},
	LastDay:   {15 * time.Minute, 96, 15 * time.Minute},
	LastWeek:  {2 * time.Hour, 84, time.Hour},
	LastMonth: {6 * time.Hour, 120, time.Hour},
}

// History is what happened at the providers, for all users together.
// Workers write it down every few seconds; one that is killed takes its last
// seconds along. The exact sums are those of Stats.
type History struct {
	Range     HistoryRange      `json:"range"`
	From      time.Time         `json:"from"` // of the first step
	To        time.Time         `json:"to"`   // the end of the last, which is not over yet
	Step      int               `json:"step_seconds"`
	Providers []ProviderHistory `json:"providers"` // in order of configuration
}

// ProviderHistory is the history of one provider.
type ProviderHistory struct {
	Provider string         `json:"provider"`
	Totals   HistoryCounts  `json:"totals"`
	Steps    []HistoryPoint `json:"steps"`
}

// HistoryPoint is one step.
type HistoryPoint struct {
	At time.Time `json:"at"` // its begin
	HistoryCounts
	Tally telemetry.ProviderTally `json:"-"` // what the counts were made of; steps can be added up by it
}

// HistoryCounts counts what happened in some time: calls by when they ended,
// events by the time that the provider tells. Times are to 10 % or so, in
// milliseconds; 0: there were none.
type HistoryCounts struct {
	Calls     int64 `json:"calls"`
	Accepted  int64 `json:"accepted"` // recipients of these calls, as refused and unknown
	Refused   int64 `json:"refused"`
	Unknown   int64 `json:"unknown"`
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`
	Deferred  int64 `json:"deferred"`

	Answer      float64 `json:"answer_ms,omitempty"`      // half of the calls took at most so long
	AnswerMost  float64 `json:"answer_90_ms,omitempty"`   // nine of ten did
	Deliver     float64 `json:"delivery_ms,omitempty"`    // half of the delivered mails took at most so long from the call
	DeliverMost float64 `json:"delivery_90_ms,omitempty"` // nine of ten did
}

// HistoryCountsOf shows a tally.
func HistoryCountsOf(t *telemetry.ProviderTally) HistoryCounts {
	ms := func(s *telemetry.Spread, part float64) float64 {
		return float64(s.Within(part).Round(100*time.Microsecond)) / float64(time.Millisecond)
	}
	return HistoryCounts{
		Calls:       t.Calls,
		Accepted:    t.Accepted,
		Refused:     t.Refused,
		Unknown:     t.Unknown,
		Delivered:   t.Delivered,
		Failed:      t.Failed,
		Deferred:    t.Deferred,
		Answer:      ms(&t.Answers, .5),
		AnswerMost:  ms(&t.Answers, .9),
		Deliver:     ms(&t.Delivery, .5),
		DeliverMost: ms(&t.Delivery, .9),
	}
}

// History tells what happened at the providers. An empty range is the last hour.
func (s *Service) History(ctx context.Context, back HistoryRange) (History, error) {
	return s.historyAt(ctx, back, time.Now())
}

func (s *Service) historyAt(ctx context.Context, back HistoryRange, now time.Time) (History, error) {
	if back == "" {
		back = LastHour
	}
	g, ok := grids[back]
	if !ok {
		var q Query
		q.Bad("range", "range is hour, day, week or month.")
		return History{}, q.Err()
	}
	to := now.UTC().Truncate(g.step).Add(g.step)
	from := to.Add(-time.Duration(g.steps) * g.step)
	hours, err := s.hours.read(ctx, s.readHour, from, now.UTC(), g.part)
	if err != nil {
		return History{}, storeError("read the history of the providers", err)
	}
	out := History{
		Range:     back,
		From:      from,
		To:        to,
		Step:      int(g.step / time.Second),
		Providers: make([]ProviderHistory, 0, len(s.providers)),
	}
	for i := range s.providers {
		out.Providers = append(out.Providers, historyOf(s.providers[i].Name, hours, from, g))
	}
	return out, nil
}

// historyOf puts the parts of hours into the steps of a grid.
func historyOf(provider string, hours map[time.Time]historyParts, from time.Time, g grid) ProviderHistory {
	steps := make([]telemetry.ProviderTally, g.steps)
	var all telemetry.ProviderTally
	for hour, parts := range hours {
		for n, tally := range parts[provider] {
			at := int(hour.Add(time.Duration(n)*g.part).Sub(from) / g.step)
			if tally == nil || at < 0 || at >= g.steps || hour.Add(time.Duration(n)*g.part).Before(from) {
				continue
			}
			steps[at].Add(tally)
			all.Add(tally)
		}
	}
	out := ProviderHistory{Provider: provider, Totals: HistoryCountsOf(&all), Steps: make([]HistoryPoint, g.steps)}
	for i := range steps {
		out.Steps[i] = HistoryPoint{
			At:            from.Add(time.Duration(i) * g.step),
			HistoryCounts: HistoryCountsOf(&steps[i]),
			Tally:         steps[i],
		}
	}
	return out
}

// historyParts is what happened in an hour, over all workers, by provider and
// part of the hour; nil: nothing.
type historyParts map[string][]*telemetry.ProviderTally

// historyHours keeps hours that were read, in parts of the length that was asked
// for. What changes is read again: the present hour often, one of which something
// may still be heard rarely, an older one never.
type historyHours struct {
	mu   sync.Mutex
	kept map[hourKey]keptHour
}

type hourKey struct {
	start time.Time
	part  time.Duration
}

type keptHour struct {
	read  time.Time
	parts historyParts
}

const (
	historyFresh  = 2 * time.Second // how long the newest hours are used again
	historySettle = 2 * time.Minute // how long those are that may change
	hoursAtOnce   = 8
)

// fresh is how long an hour that was read at a time may be used again.
func (k *hourKey) fresh(read time.Time) time.Duration {
	switch age := read.Sub(k.start); {
	case age < time.Hour+5*time.Minute: // what happened is heard of at once, most often
		return historyFresh
	case age < telemetry.HistoryLate+2*time.Hour:
		return historySettle
	}
	return telemetry.HistoryKept
}

// read returns the hours that lie between from and to, at least in part.
func (h *historyHours) read(
	ctx context.Context,
	readHour func(context.Context, hourKey) (historyParts, error),
	from, to time.Time,
	part time.Duration,
) (map[time.Time]historyParts, error) {
	h.mu.Lock() // who asks for the same at the same time waits for one answer
	defer h.mu.Unlock()
	if h.kept == nil {
		h.kept = map[hourKey]keptHour{}
	}
	now := time.Now()
	maps.DeleteFunc(h.kept, func(k hourKey, _ keptHour) bool { return now.Sub(k.start) > telemetry.HistoryKept })
	var want []hourKey
	for start := from.Truncate(time.Hour); !start.After(to); start = start.Add(time.Hour) {
		k := hourKey{start, part}
		if old, ok := h.kept[k]; !ok || now.Sub(old.read) >= k.fresh(old.read) {
			want = append(want, k)
		}
	}
	read := make([]historyParts, len(want))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(hoursAtOnce)
	for i, k := range want {
		g.Go(func() (err error) {
			read[i], err = readHour(gctx, k)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, k := range want {
		h.kept[k] = keptHour{now, read[i]}
	}
	out := map[time.Time]historyParts{}
	for start := from.Truncate(time.Hour); !start.After(to); start = start.Add(time.Hour) {
		out[start] = h.kept[hourKey{start, part}].parts
	}
	return out, nil
}

// readHour sums what all workers say of an hour.
func (s *Service) readHour(ctx context.Context, k hourKey) (historyParts, error) {
	reports, err := s.store.Transients(ctx, telemetry.HistoryKind(k.start))
	if err != nil {
		return nil, err
	}
	out := historyParts{}
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		hour, err := telemetry.DecodeHistory(reports[name])
		if err != nil {
			s.log.Warn("part of the providers' history cannot be read", "worker", name, "hour", k.start, "err", err)
			continue
		}
		for provider, minutes := range hour {
			if out[provider] == nil {
				out[provider] = make([]*telemetry.ProviderTally, time.Hour/k.part)
			}
			for minute, tally := range minutes {
				n := int(time.Duration(minute) * time.Minute / k.part)
				if n < 0 || n >= len(out[provider]) || tally == nil {
					continue
				}
				if out[provider][n] == nil {
					out[provider][n] = &telemetry.ProviderTally{}
				}
				out[provider][n].Add(tally)
			}
		}
	}
	return out, nil
}
