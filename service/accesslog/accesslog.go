// Package accesslog records who logged in, and which logins and API keys were refused.
//
// Strangers cause most of the entries, so they are not in the command log, which every
// process reads and which keeps everything. Equal events of an hour are one entry with a
// count, a process adds a bounded number of entries in an hour, and entries end after Keep.
package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Kind is a kind of event.
type Kind string

// The kinds of events.
const (
	Login       Kind = "login"
	FailedLogin Kind = "login.failed"
	FailedKey   Kind = "key.failed"
)

// Valid reports whether k is a kind of event.
func (k Kind) Valid() bool { return k == Login || k == FailedLogin || k == FailedKey }

// Event is something that is recorded. Events that are equal share an entry.
type Event struct {
	Kind    Kind   `json:"kind"`
	Reason  string `json:"reason,omitempty"`  // code of the error; of a login: link or github
	User    string `json:"user,omitempty"`    // ID
	Login   string `json:"login,omitempty"`   // at GitHub
	Key     string `json:"key,omitempty"`     // ID of an API key
	Address string `json:"address,omitempty"` // of the client; empty: many
}

// Entry is an event and how often it happened within an hour.
type Entry struct {
	ID models.ID `json:"id"`
	Event
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count int       `json:"count"`
}

// Keep is how long entries are kept.
const Keep = 90 * 24 * time.Hour

const (
	maxLogins    = 1000             // entries of successful logins that a process adds in an hour
	maxFailures  = 100              // entries that a process adds in an hour for each kind and reason of failures
	maxUnwritten = 20_000           // entries that wait for the store
	writeEvery   = 2 * time.Second  // interval between writes
	writeTimeout = 10 * time.Second // of a write
	closeTimeout = 3 * time.Second  // of the last write
)

// Store is the part of models.Store that the log needs.
type Store interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// Log is the access log. Its methods may be called by many goroutines at once.
type Log struct {
	store Store
	log   *slog.Logger

	mu      sync.Mutex
	hour    time.Time
	entries map[Event]*Entry // of the hour
	added   map[Event]int    // entries of the hour by kind and reason
	dirty   map[*Entry]bool  // not written
	timer   *time.Timer      // of the next write; nil: nothing is to be written
	closed  bool
	writing sync.WaitGroup

	write sync.Mutex // one writer at a time, so that an older count never replaces a newer one
	days  string     // the day that was last added to the index; guarded by write
}

// New returns a log. Close writes what is left.
func New(store Store, log *slog.Logger) *Log {
	return &Log{store: store, log: log, dirty: map[*Entry]bool{}}
}

// Add records an event. It writes the event in the background.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(e, time.Now().UTC())
	if l.timer == nil && !l.closed {
		l.schedule()
	}
}

// schedule starts the next write in the background. The caller holds mu.
func (l *Log) schedule() {
	l.writing.Add(1)
	l.timer = time.AfterFunc(writeEvery, func() {
		defer l.writing.Done()
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		if err := l.Write(ctx); err != nil {
			l.log.Warn("cannot write the access log; will retry", "err", err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timer = nil; len(l.dirty) > 0 && !l.closed {
			l.schedule()
		}
	})
}

func (l *Log) add(e Event, now time.Time) {
	if h := now.Truncate(time.Hour); !h.Equal(l.hour) {
		l.hour, l.entries, l.added = h, map[Event]*Entry{}, map[Event]int{}
	}
	if e.Kind != Login {
		e.Address = network(e.Address)
	}
	entry := l.entries[e]
	if entry == nil {
		class, most := Event{Kind: e.Kind, Reason: e.Reason}, maxFailures
		if e.Kind == Login {
			most = maxLogins
		}
		if l.added[class] >= most {
			e, entry = class, l.entries[class]
		}
		if entry == nil {
			entry = &Entry{ID: models.NewBatchID(now), Event: e, First: now}
			l.entries[e] = entry
			l.added[class]++
		}
	}
	entry.Last = now
	entry.Count++
	if len(l.dirty) < maxUnwritten {
		l.dirty[entry] = true
	}
}

// network returns the address, or the /64 network of an IPv6 address: a client has all of
// its addresses.
func network(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil || a.Unmap().Is4() {
		return address
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return address
	}
	return p.String()
}

// Write writes all entries that have changed.
func (l *Log) Write(ctx context.Context) error {
	l.write.Lock()
	defer l.write.Unlock()
	for {
		entry, e := l.take()
		if entry == nil {
			return nil
		}
		if err := l.put(ctx, &e); err != nil {
			l.mu.Lock()
			l.dirty[entry] = true
			l.mu.Unlock()
			return err
		}
	}
}

// put stores an entry, after its day is in the index.
func (l *Log) put(ctx context.Context, e *Entry) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	day := e.First.Format(time.DateOnly)
	if day != l.days {
		if err := l.store.PutTransient(ctx, daysKind, day, nil, Keep+24*time.Hour); err != nil {
			return err
		}
		l.days = day
	}
	return l.store.PutTransient(ctx, dayKind(day), e.ID.String(), raw, Keep)
}

// take returns an entry to be written and its present value, or nil.
func (l *Log) take() (*Entry, Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for entry := range l.dirty {
		delete(l.dirty, entry)
		return entry, *entry
	}
	return nil, Entry{}
}

// Close writes what is left and stops the log. It waits for writes in the background.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil && l.timer.Stop() {
		l.writing.Done()
	}
	l.mu.Unlock()
	l.writing.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := l.Write(ctx); err != nil {
		l.log.Warn("the newest entries of the access log are lost", "err", err)
	}
}

// daysKind is the kind of the transient values that index the UTC days with entries.
const daysKind = "access-days"

// dayKind returns the kind of the transient values that hold the entries of a UTC day.
func dayKind(day string) string { return "access." + day }

// List returns at most limit entries of a kind (empty: all) with IDs less than before (zero:
// from the newest), newest first. It includes what this process has not written before.
func (l *Log) List(ctx context.Context, kind Kind, before models.ID, limit int) ([]Entry, error) {
	if err := l.Write(ctx); err != nil {
		return nil, err
	}
	days, err := l.store.Transients(ctx, daysKind)
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, day := range slices.Backward(slices.Sorted(maps.Keys(days))) {
		if len(out) >= limit {
			break
		}
		if !before.IsZero() && day > before.Time().UTC().Format(time.DateOnly) {
			continue
		}
		found, err := l.day(ctx, kind, before, day)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out[:min(len(out), limit)], nil
}

// day returns the entries of a day, newest first.
func (l *Log) day(ctx context.Context, kind Kind, before models.ID, day string) ([]Entry, error) {
	all, err := l.store.Transients(ctx, dayKind(day))
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, raw := range all {
		var e Entry
		if err := json.Unmarshal(raw, &e); err != nil {
			l.log.Error("an entry of the access log cannot be read", "err", err)
			continue
		}
		if (kind == "" || e.Kind == kind) && (before.IsZero() || bytes.Compare(e.ID[:], before[:]) < 0) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return bytes.Compare(b.ID[:], a.ID[:]) })
	return out, nil
}
