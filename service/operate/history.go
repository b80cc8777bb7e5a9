package operate

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// HistoryRanges holds all ranges, the shortest first.
var HistoryRanges = []client.HistoryRange{client.Hour, client.Day, client.Week, client.Month}

// resolution divides a range into steps, which are aligned to UTC.
type resolution struct {
	step  time.Duration
	steps int
	part  time.Duration // resolution of the hours read: see historyHours
}

var resolutions = map[client.HistoryRange]resolution{
	client.Hour:  {time.Minute, 60, time.Minute},
	client.Day:   {15 * time.Minute, 96, 15 * time.Minute},
	client.Week:  {2 * time.Hour, 84, time.Hour},
	client.Month: {6 * time.Hour, 120, time.Hour},
}

// History counts what happened at the providers, for all users together. Workers store their counts every few seconds,
// so a worker that crashes loses the last of them. Stats has the exact sums.
type History struct {
	Range     client.HistoryRange `json:"range"`
	From      time.Time           `json:"from"` // start of the first step
	To        time.Time           `json:"to"`   // end of the last step, which is not over yet
	Step      int                 `json:"step_seconds"`
	Providers []ProviderHistory   `json:"providers"` // in the order of the configuration
}

// ProviderHistory is the history of one provider.
type ProviderHistory struct {
	Provider string               `json:"provider"`
	Totals   client.HistoryCounts `json:"totals"`
	Steps    []HistoryPoint       `json:"steps"`
}

// HistoryPoint is one step of a history.
type HistoryPoint struct {
	At time.Time `json:"at"` // start of the step
	client.HistoryCounts
	Tally telemetry.ProviderTally `json:"-"` // source of the counts; tallies of steps can be added
}

// HistoryCountsOf returns the counts of a tally.
func HistoryCountsOf(t *telemetry.ProviderTally) client.HistoryCounts {
	ms := func(s *telemetry.Spread, part float64) float64 {
		return float64(s.Within(part).Round(100*time.Microsecond)) / float64(time.Millisecond)
	}
	return client.HistoryCounts{
		Calls:        t.Calls,
		Accepted:     t.Accepted,
		Refused:      t.Refused,
		Unknown:      t.Unknown,
		Delivered:    t.Delivered,
		Failed:       t.Failed,
		Deferred:     t.Deferred,
		AnswerMS:     ms(&t.Answers, .5),
		Answer90MS:   ms(&t.Answers, .9),
		DeliveryMS:   ms(&t.Delivery, .5),
		Delivery90MS: ms(&t.Delivery, .9),
	}
}

// History returns the history of the providers. An empty range means the last hour.
func (s *Installation) History(ctx context.Context, back client.HistoryRange) (History, error) {
	return s.historyAt(ctx, back, time.Now())
}

func (s *Installation) historyAt(ctx context.Context, back client.HistoryRange, now time.Time) (History, error) {
	if back == "" {
		back = client.Hour
	}
	res, ok := resolutions[back]
	if !ok {
		var q operation.Query
		q.Bad("range", "range must be hour, day, week or month.")
		return History{}, q.Err()
	}
	to := now.UTC().Truncate(res.step).Add(res.step)
	from := to.Add(-time.Duration(res.steps) * res.step)
	hours, err := s.hours.read(ctx, s.readHour, from, now.UTC(), res.part)
	if err != nil {
		return History{}, problem.FromStore("read the history of the providers", err)
	}
	out := History{
		Range:     back,
		From:      from,
		To:        to,
		Step:      int(res.step / time.Second),
		Providers: make([]ProviderHistory, 0, len(s.Configured)),
	}
	for i := range s.Configured {
		out.Providers = append(out.Providers, historyOf(s.Configured[i].Name, hours, from, res))
	}
	return out, nil
}

// historyOf adds the parts of hours to the steps that they belong to.
func historyOf(provider string, hours map[time.Time]historyParts, from time.Time, res resolution) ProviderHistory {
	steps := make([]telemetry.ProviderTally, res.steps)
	var all telemetry.ProviderTally
	for hour, parts := range hours {
		for n, tally := range parts[provider] {
			start := hour.Add(time.Duration(n) * res.part)
			step := int(start.Sub(from) / res.step)
			if tally == nil || start.Before(from) || step >= res.steps {
				continue
			}
			steps[step].Add(tally)
			all.Add(tally)
		}
	}
	out := ProviderHistory{Provider: provider, Totals: HistoryCountsOf(&all), Steps: make([]HistoryPoint, res.steps)}
	for i := range steps {
		out.Steps[i] = HistoryPoint{
			At:            from.Add(time.Duration(i) * res.step),
			HistoryCounts: HistoryCountsOf(&steps[i]),
			Tally:         steps[i],
		}
	}
	return out
}

// historyParts holds the tallies of all workers for an hour, by provider and part of the
// hour. A tally is nil if nothing happened.
type historyParts map[string][]*telemetry.ProviderTally

// historyHours caches hours that were read. It reads the newest hours again often, those
// that late reports may change rarely, and older ones never.
type historyHours struct {
	mu     sync.Mutex
	cached map[hourKey]cachedHour
}

type hourKey struct {
	start time.Time
	part  time.Duration
}

type cachedHour struct {
	read  time.Time
	parts historyParts
}

const (
	newHourTTL  = 2 * time.Second // of the newest hours
	lateHourTTL = 2 * time.Minute // of hours that late reports may change
	hoursAtOnce = 8               // hours read at the same time
)

// ttl returns how long an hour that was read at a time stays cached.
func (k *hourKey) ttl(read time.Time) time.Duration {
	switch age := read.Sub(k.start); {
	case age < time.Hour+5*time.Minute: // most reports arrive at once
		return newHourTTL
	case age < telemetry.HistoryLate+2*time.Hour:
		return lateHourTTL
	}
	return telemetry.HistoryKept
}

// read returns the hours that overlap the time from from to to. Concurrent calls for the same hours read them once.
func (h *historyHours) read(
	ctx context.Context,
	readHour func(context.Context, hourKey) (historyParts, error),
	from, to time.Time,
	part time.Duration,
) (map[time.Time]historyParts, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cached == nil {
		h.cached = map[hourKey]cachedHour{}
	}
	now := time.Now()
	maps.DeleteFunc(h.cached, func(k hourKey, _ cachedHour) bool { return now.Sub(k.start) > telemetry.HistoryKept })
	var want []hourKey
	for start := from.Truncate(time.Hour); !start.After(to); start = start.Add(time.Hour) {
		k := hourKey{start, part}
		if old, ok := h.cached[k]; !ok || now.Sub(old.read) >= k.ttl(old.read) {
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
		h.cached[k] = cachedHour{now, read[i]}
	}
	out := map[time.Time]historyParts{}
	for start := from.Truncate(time.Hour); !start.After(to); start = start.Add(time.Hour) {
		out[start] = h.cached[hourKey{start, part}].parts
	}
	return out, nil
}

// readHour returns the sums of all workers for an hour.
func (s *Installation) readHour(ctx context.Context, k hourKey) (historyParts, error) {
	reports, err := s.Store.Transients(ctx, telemetry.HistoryKind(k.start))
	if err != nil {
		return nil, err
	}
	out := historyParts{}
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		hour, err := telemetry.DecodeHistory(reports[name])
		if err != nil {
			s.Log.Warn("cannot decode a worker's history of an hour", "worker", name, "hour", k.start, "err", err)
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
