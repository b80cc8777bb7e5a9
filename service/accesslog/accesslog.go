// Package accesslog records who logged in, and which logins and API keys were refused.
//
// Strangers cause most of the entries, so they are not in the command log, which every
// process reads and which keeps everything. Equal events of an hour are one entry with a
// count, a process adds a bounded number of entries in an hour, and entries end after Keep.
package accesslog

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/background"
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
	maxLogins    = 1000   // entries of successful logins that a process adds in an hour
	maxFailures  = 100    // entries that a process adds in an hour for each kind and reason of failures
	maxUnwritten = 20_000 // entries that wait for the store
)

// Log is the access log. Its methods may be called by many goroutines at once.
type Log struct {
	*background.Writer
	store background.Store
	log   *slog.Logger

	mu      sync.Mutex
	hour    time.Time
	entries map[Event]*Entry // of the hour
	added   map[Event]int    // entries of the hour by kind and reason
	dirty   map[*Entry]bool  // not written

	days string // the day that was last added to the index; used by one writer at a time
}

// New returns a log. Close writes the remaining entries.
func New(store background.Store, log *slog.Logger) *Log {
	l := &Log{store: store, log: log, dirty: map[*Entry]bool{}}
	l.Writer = background.New("access log", log, l.flush)
	return l
}

// Add records an event. It writes the event in the background.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	l.add(e, time.Now().UTC())
	l.mu.Unlock()
	l.Added()
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

// flush writes all entries that have changed.
func (l *Log) flush(ctx context.Context) (left bool, err error) {
	for {
		entry, e := l.take()
		if entry == nil {
			return false, nil
		}
		if err := l.put(ctx, &e); err != nil {
			l.mu.Lock()
			l.dirty[entry] = true
			l.mu.Unlock()
			return true, err
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
	b := background.Buckets[Entry]{
		Index: daysKind,
		Kind:  dayKind,
		Read: func(raw []byte) ([]Entry, error) {
			var e Entry
			err := json.Unmarshal(raw, &e)
			return []Entry{e}, err
		},
		Wanted: func(e *Entry) bool {
			return (kind == "" || e.Kind == kind) && (before.IsZero() || e.ID.Compare(before) < 0)
		},
		Compare: func(a, b Entry) int { return b.ID.Compare(a.ID) },
		Damaged: func(err error) { l.log.Error("an entry of the access log cannot be read", "err", err) },
	}
	last := ""
	if !before.IsZero() {
		last = before.Time().UTC().Format(time.DateOnly)
	}
	return b.List(ctx, l.store, last, limit)
}
