// Package background writes small things to the store without making a request wait for them, and lists them again.
//
// Additions stay in memory for up to two seconds, so a crash loses the newest. The store has them as transient values
// in buckets, an hour or a day each, and an index of the buckets.
package background

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	writeEvery   = 2 * time.Second
	writeTimeout = 10 * time.Second // of all writes of an interval
	closeTimeout = 3 * time.Second  // of the last writes
)

// Store is the part of models.Store that a log needs.
type Store interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// Writer writes additions in the background. Its methods may be called by many goroutines at once.
type Writer struct {
	name  string // of the log, in messages
	log   *slog.Logger
	flush func(ctx context.Context) (left bool, err error)

	mu      sync.Mutex
	timer   *time.Timer // of the next write; nil: nothing is to be written
	closed  bool
	writing sync.WaitGroup

	write sync.Mutex // one writer at a time, so that an older value never replaces a newer one
}

// New returns a writer. flush writes everything that was added, and reports whether something is left.
func New(name string, log *slog.Logger, flush func(ctx context.Context) (left bool, err error)) *Writer {
	return &Writer{name: name, log: log, flush: flush}
}

// Added has the additions written soon. It does not wait.
func (w *Writer) Added() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil && !w.closed {
		w.schedule()
	}
}

// schedule starts the next write in the background. The caller holds mu.
func (w *Writer) schedule() {
	w.writing.Add(1)
	w.timer = time.AfterFunc(writeEvery, func() {
		defer w.writing.Done()
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		left, err := w.all(ctx)
		if err != nil {
			w.log.Warn("cannot write the "+w.name+"; will retry", "err", err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.timer = nil; left && !w.closed {
			w.schedule()
		}
	})
}

func (w *Writer) all(ctx context.Context) (left bool, err error) {
	w.write.Lock()
	defer w.write.Unlock()
	return w.flush(ctx)
}

// Write writes everything that was added.
func (w *Writer) Write(ctx context.Context) error {
	_, err := w.all(ctx)
	return err
}

// Close writes the remaining additions and stops the writer. It waits for writes in the background.
func (w *Writer) Close() {
	w.mu.Lock()
	w.closed = true
	if w.timer != nil && w.timer.Stop() {
		w.writing.Done()
	}
	w.mu.Unlock()
	w.writing.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := w.Write(ctx); err != nil {
		w.log.Warn("the newest entries of the "+w.name+" are lost", "err", err)
	}
}

// Buckets says how a log is stored.
type Buckets[T any] struct {
	Index   string                          // kind of the transient values that index the buckets
	Kind    func(bucket string) string      // kind of those that hold a bucket
	Read    func(value []byte) ([]T, error) // decodes a value
	Wanted  func(v *T) bool                 // reports whether a list may have v
	Compare func(a, b T) int                // orders newer before older
	Damaged func(err error)                 // is called for each value that Read cannot decode
}

// List returns at most limit entries of the buckets that are not after last (empty: all), newest first.
func (b *Buckets[T]) List(ctx context.Context, store Store, last string, limit int) ([]T, error) {
	buckets, err := store.Transients(ctx, b.Index)
	if err != nil {
		return nil, err
	}
	var out []T
	for _, bucket := range slices.Backward(slices.Sorted(maps.Keys(buckets))) {
		if len(out) >= limit {
			break
		}
		if last != "" && bucket > last {
			continue
		}
		values, err := store.Transients(ctx, b.Kind(bucket))
		if err != nil {
			return nil, err
		}
		var found []T
		for _, raw := range values {
			list, err := b.Read(raw)
			if err != nil {
				b.Damaged(err)
				continue
			}
			found = append(found, list...)
		}
		found = slices.DeleteFunc(found, func(v T) bool { return !b.Wanted(&v) })
		slices.SortFunc(found, b.Compare)
		out = append(out, found...)
	}
	return out[:min(len(out), limit)], nil
}
