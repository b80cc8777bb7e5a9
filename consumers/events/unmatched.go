package events

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// fitting is the number of logs that are listed of an event that fits several.
const fitting = 5

// unmatchedList has the newest events whose logs were not found.
type unmatchedList struct {
	store  Store
	worker string

	mu      sync.Mutex
	list    []telemetry.UnmatchedEvent
	changed bool
	known   map[models.ID]bool // during a replay: events that are listed
	solved  []models.ID        // those of them that it has matched
}

// add adds an event.
func (l *unmatchedList) add(u *unnamedEvent) {
	id := telemetry.UnmatchedID(u.in.ID, &u.UnnamedEvent)
	e := telemetry.UnmatchedEvent{ID: id, Post: u.in.ID, Provider: u.in.Provider}
	for i := range u.found[:min(len(u.found), fitting)] {
		e.Logs = append(e.Logs, u.found[i].Log)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.list, func(o telemetry.UnmatchedEvent) bool { return o.ID == e.ID }) {
		return
	}
	l.list, l.changed = append(l.list, e), true
	l.list = l.list[max(len(l.list)-telemetry.MaxUnmatched, 0):]
}

// matched notes that an event has found its log.
func (l *unmatchedList) matched(u *unnamedEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.known) == 0 {
		return
	}
	if id := telemetry.UnmatchedID(u.in.ID, &u.UnnamedEvent); l.known[id] {
		l.solved = append(l.solved, id)
	}
}

// read takes up the list that this worker stored before it was started again.
func (l *unmatchedList) read(ctx context.Context) error {
	raw, err := l.store.Transients(ctx, telemetry.UnmatchedReport)
	var old telemetry.Unmatched
	if err != nil || json.Unmarshal(raw[l.worker], &old) != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(old.Events, l.list...)
	l.list = l.list[max(len(l.list)-telemetry.MaxUnmatched, 0):]
	return nil
}

// put stores the list if it has changed.
func (l *unmatchedList) put(ctx context.Context) error {
	l.mu.Lock()
	changed, list := l.changed, slices.Clone(l.list)
	l.changed = false
	l.mu.Unlock()
	if !changed {
		return nil
	}
	err := l.putReport(ctx, l.worker, telemetry.Unmatched{Events: list})
	if err != nil {
		l.mu.Lock()
		l.changed = true
		l.mu.Unlock()
	}
	return err
}

func (l *unmatchedList) putReport(ctx context.Context, name string, r telemetry.Unmatched) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return l.store.PutTransient(ctx, telemetry.UnmatchedReport, name, raw, telemetry.UnmatchedTTL)
}

// beginReplay makes the list know which events may be matched by a replay.
func (l *unmatchedList) beginReplay(ctx context.Context) error {
	raw, err := l.store.Transients(ctx, telemetry.UnmatchedReport)
	if err != nil {
		return err
	}
	known := map[models.ID]bool{}
	for _, one := range raw {
		var r telemetry.Unmatched
		if json.Unmarshal(one, &r) != nil {
			continue // it is of another version
		}
		for i := range r.Events {
			known[r.Events[i].ID] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known, l.solved = known, nil
	return nil
}

// endReplay stores which listed events a replay has matched.
func (l *unmatchedList) endReplay(ctx context.Context, revision int64) error {
	l.mu.Lock()
	solved := l.solved
	l.known, l.solved = nil, nil
	l.mu.Unlock()
	if len(solved) == 0 {
		return nil
	}
	return l.putReport(ctx, "replay/"+strconv.FormatInt(revision, 10), telemetry.Unmatched{Solved: solved})
}
