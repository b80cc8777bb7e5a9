package quota

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Usage says how much of a limit is used.
type Usage struct {
	Limit models.Limit
	Value int64     // 0: no limit
	Used  int64     // an upper bound: other processes may have claimed more than they used
	Ends  time.Time // of the hour or day; zero for other limits
	Now   time.Time // when this was known
}

// Left returns how much may still be used.
func (u *Usage) Left() int64 { return max(0, u.Value-u.Used) }

// Known returns the usage of the limits of the subjects, as far as this process knows it. If several subjects have a
// limit, it returns the one with the least left.
func (g *Guard) Known(subjects []Subject) []Usage {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Usage
	for _, l := range models.AllLimits() {
		var least *Usage
		for _, s := range subjects {
			if s.Limits[l] == 0 {
				continue
			}
			if u := g.known(s, l, now); least == nil || u.Left() < least.Left() {
				least = &u
			}
		}
		if least != nil {
			out = append(out, *least)
		}
	}
	return out
}

// known returns the usage of one limit. The caller holds mu.
func (g *Guard) known(s Subject, l models.Limit, now time.Time) Usage {
	c := g.of(s.ID, now)
	u := Usage{Limit: l, Value: s.Limits[l], Now: now}
	switch l {
	case models.RequestsPerSecond:
		if r := c.requests; r != nil {
			u.Used = min(u.Value, (int64(r.Burst())-int64(r.TokensAt(now)))*g.processes.Count())
		}
	case models.RequestsAtOnce:
		u.Used = min(u.Value, c.running*g.processes.Count())
	case models.StoredBatches, models.StoredBytes:
		u.Used = c.storedOf(l).used.Load()
	case models.SpoolBytes:
		u.Used = min(u.Value, c.spooled*g.processes.Count())
	case models.RecipientsPerHour, models.RecipientsPerDay, models.UrgentRecipientsPerHour, models.BatchesPerDay:
		length := lengthOf(l)
		u.Ends = now.UTC().Truncate(length).Add(length)
		if w := c.windows[keyOf(s, l, now)]; w != nil {
			u.Used = w.used(0)
		}
	}
	return u
}

// used returns the amount of the claimed slices, at least the first, without what this process can still use of them.
func (w *window) used(first int) int64 {
	next, credit := w.state()
	return w.before(max(next, first)) - credit
}

// before returns the amount of the slices before slice.
func (w *window) before(slice int) (n int64) {
	for i := range slice {
		n += w.size(i)
	}
	return n
}

// Near calls tell for each limit of an hour or day if the subject has used more than four fifths of it, as far as this
// process knows. It repeats the call until tell returns nil, then not again in that hour or day.
func (g *Guard) Near(s Subject, tell func(u Usage, began time.Time) error) {
	now := time.Now()
	for _, l := range models.AllLimits() {
		w := g.near(s, l, now)
		if w == nil {
			continue
		}
		used := w.used(0)
		if used*5 <= w.limit*4 {
			continue
		}
		if tell(Usage{Limit: l, Value: w.limit, Used: used, Ends: w.ends(), Now: now}, w.begin) == nil {
			w.said.Store(true)
		}
	}
}

// near returns the present window of a limit, or nil if there is none, or what Near reports of it was reported.
func (g *Guard) near(s Subject, l models.Limit, now time.Time) *window {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.of(s.ID, now).windows[keyOf(s, l, now)]
	if w == nil || w.said.Load() || s.Limits[l] == 0 {
		return nil
	}
	return w
}

// Usage returns the usage of each limit of a subject in all processes.
func (g *Guard) Usage(ctx context.Context, s Subject) ([]Usage, error) {
	now := time.Now()
	var out []Usage
	for _, l := range models.AllLimits() {
		g.mu.Lock()
		u := g.known(s, l, now)
		g.mu.Unlock()
		switch {
		case keptOf(l) != nil && s.counted(l):
			n, err := g.Stored(ctx, s, l)
			if err != nil {
				return nil, err
			}
			u.Used = n
		case !u.Ends.IsZero() && u.Value > 0:
			all, err := g.claimed(ctx, s, l, now)
			if err != nil {
				return nil, err
			}
			u.Used = max(u.Used, all)
		}
		out = append(out, u)
	}
	return out, nil
}

// claimed returns what all processes have claimed of a window, without what this process can still use. Every process
// claims the first free slice, so the claimed ones are the first.
func (g *Guard) claimed(ctx context.Context, s Subject, l models.Limit, now time.Time) (int64, error) {
	w := g.window(s, l, now)
	var failed error
	free := func(slice int) bool {
		_, err := g.store.Claimed(ctx, w.sliceKey(slice))
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			failed = err
		}
		return err != nil
	}
	known, _ := w.state() // slices that are claimed
	step := 1
	for known+step <= w.slices() && !free(known+step-1) {
		known += step
		step *= 2
	}
	n := known + sort.Search(min(step-1, w.slices()-known), func(i int) bool { return free(known + i) })
	return w.used(n), failed
}
