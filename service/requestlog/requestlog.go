// Package requestlog keeps a line of every API request, by API key, for a week.
//
// No request waits for it: lines are collected in memory and written in the background. A
// crash loses the newest ones. If there are too many requests, some are only counted.
package requestlog

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/service/background"
)

// Line is a request and its answer.
type Line struct {
	ID      models.ID     `json:"id"` // carries the time of the answer
	Method  string        `json:"m"`
	Path    string        `json:"p"` // the pattern, without IDs and query
	Status  int           `json:"s"`
	Code    string        `json:"c,omitempty"` // of the error
	Request string        `json:"r"`           // ID of the request
	Batch   models.ID     `json:"b,omitzero"`
	Took    time.Duration `json:"t"`
	Omitted int           `json:"o,omitempty"` // requests after this one that were only counted
}

// Keep is how long lines are kept.
const Keep = 7 * 24 * time.Hour

const (
	maxHour      = 5000   // lines of a key that a process keeps in an hour
	maxUnwritten = 20_000 // lines that wait for the store
	maxBlock     = 1000   // lines of one write
)

// Log is the request log. Its methods may be called by many goroutines at once.
type Log struct {
	*background.Writer
	store background.Store
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	keys    map[string]*keyLines
	last    models.ID // of the newest line
	waiting int       // lines in keys

	indexed map[string]bool // hours of keys that are in the index; used by one writer at a time
}

// keyLines are the lines of a key that are not written.
type keyLines struct {
	lines   []Line
	hour    time.Time // of the newest line
	kept    int       // lines of the hour
	omitted int       // requests since the newest line that were only counted
}

// New returns a log. Close writes the remaining entries.
func New(store background.Store, log *slog.Logger) *Log {
	l := &Log{store: store, log: log, now: time.Now, keys: map[string]*keyLines{}, indexed: map[string]bool{}}
	l.Writer = background.New("request log", log, l.flush)
	return l
}

// Add records a request of a key that was answered now. It never waits for the store. It sets the line's ID.
func (l *Log) Add(key string, line Line) {
	l.add(key, line)
	l.Added()
}

func (l *Log) add(key string, line Line) {
	now := l.now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.keys[key]
	if k == nil {
		k = &keyLines{}
		l.keys[key] = k
	}
	if h := now.Truncate(time.Hour); !h.Equal(k.hour) {
		k.hour, k.kept = h, 0
	}
	if k.kept >= maxHour || l.waiting >= maxUnwritten {
		k.omitted++
	} else {
		line.ID, line.Omitted = l.newID(now), k.omitted
		k.lines = append(k.lines, line)
		k.kept, k.omitted = k.kept+1, 0
		l.waiting++
	}
}

// newID returns an ID that is greater than those of the lines before in the same millisecond. The caller holds mu.
func (l *Log) newID(now time.Time) models.ID {
	id := models.NewInboxID(now)
	id[6], id[7] = 0x70, 0 // a count of up to 4,095
	if l.last.Time().Equal(id.Time()) {
		n := (int(l.last[6]&0x0f)<<8 | int(l.last[7])) + 1
		id[6], id[7] = 0x70|byte(min(n, 4095)>>8), byte(min(n, 4095)) //nolint:gosec // 12 bits
	}
	l.last = id
	return id
}

// flush writes all lines that are not written.
func (l *Log) flush(ctx context.Context) (left bool, err error) {
	for {
		key, lines := l.take()
		if len(lines) == 0 {
			return false, nil
		}
		if err := l.put(ctx, key, lines); err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			k := l.keys[key]
			k.lines = append(slices.Clone(lines), k.lines...)
			l.waiting += len(lines)
			return true, err
		}
	}
}

// take returns some lines of a key and hour. It forgets keys that were not used in this hour.
func (l *Log) take() (string, []Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, k := range l.keys {
		if len(k.lines) == 0 {
			if l.now().Sub(k.hour) > time.Hour && k.omitted == 0 {
				delete(l.keys, key)
			}
			continue
		}
		n := 1
		for n < min(len(k.lines), maxBlock) && hourOf(&k.lines[n]) == hourOf(&k.lines[0]) {
			n++
		}
		lines := k.lines[:n:n]
		k.lines = k.lines[n:]
		l.waiting -= n
		return key, lines
	}
	return "", nil
}

func hourOf(l *Line) string { return l.ID.Time().UTC().Format("2006-01-02T15") }

// put stores lines of one hour, after the hour is in the index of the key.
func (l *Log) put(ctx context.Context, key string, lines []Line) error {
	hour := hourOf(&lines[0])
	if at := key + " " + hour; !l.indexed[at] {
		if err := l.store.PutTransient(ctx, hoursKind(key), hour, nil, Keep+time.Hour); err != nil {
			return err
		}
		if len(l.indexed) > maxUnwritten {
			clear(l.indexed)
		}
		l.indexed[at] = true
	}
	return l.store.PutTransient(ctx, hourKind(key, hour), lines[0].ID.String(), codec.PackJSON(lines), Keep)
}

// hoursKind returns the kind of the transient values that index the hours with lines of a key,
// and hourKind that of the values with the lines of an hour.
func hoursKind(key string) string      { return "requests." + key }
func hourKind(key, hour string) string { return "requests." + key + "." + hour }

// List returns at most limit lines of a key with IDs less than before (zero: from the newest),
// newest first. It includes what this process has not written before.
func (l *Log) List(ctx context.Context, key string, before models.ID, limit int) ([]Line, error) {
	if err := l.Write(ctx); err != nil {
		return nil, err
	}
	b := background.Buckets[Line]{
		Index: hoursKind(key),
		Kind:  func(hour string) string { return hourKind(key, hour) },
		Read: func(raw []byte) (lines []Line, err error) {
			err = codec.UnpackJSON(raw, &lines)
			return lines, err
		},
		Wanted: func(line *Line) bool {
			return (before.IsZero() || line.ID.Compare(before) < 0) && l.now().Sub(line.ID.Time()) <= Keep
		},
		Compare: func(a, b Line) int { return b.ID.Compare(a.ID) },
		Damaged: func(err error) { l.log.Error("lines of the request log cannot be read", "err", err) },
	}
	last := ""
	if !before.IsZero() {
		last = hourOf(&Line{ID: before})
	}
	return b.List(ctx, l.store, last, limit)
}
