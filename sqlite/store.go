// Package sqlite implements the Store in one SQLite database in a data folder.
// No other service is needed.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// databaseFile is the name of the database in the data folder. The write-ahead log
// (-wal, -shm) and the lock file are beside it.
const databaseFile = "safedelivr.db"

// shards must never change: agenda entries and posts are stored by shard.
const shards = 4

// pageRows is how many rows a cursor reads at a time. Between pages it holds no
// connection, so the reader of a cursor may call the store.
const pageRows = 500

// Options configures a store. The program uses the zero value.
type Options struct {
	// Readers is the number of connections for reads, each up to
	// 2 MB. 0: 4.
	Readers int
	// Now is the clock. nil: time.Now.
	Now func() time.Time

	walLimit int64 // for tests; 0: the constant walLimit
}

// Store implements models.Store in one SQLite database. Every write is synced to
// the disk before it returns.
type Store struct {
	now     func() time.Time
	lock    *folderLock
	writer  *writer
	readers chan *conn
	leases  leases

	gate    sync.RWMutex
	closed  bool
	running sync.WaitGroup
	ended   sync.Once
	failure error
}

var _ models.Store = (*Store)(nil)

// Open opens the store in a data folder, which it creates if necessary. Errors:
// ErrInUse (another process has it), and other reasons why the database cannot be
// opened, such as a schema newer than the program.
func Open(dir string, o Options) (_ *Store, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	if o.Readers <= 0 {
		o.Readers = 4
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.walLimit <= 0 {
		o.walLimit = walLimit
	}
	s := &Store{now: o.Now, lock: lock, readers: make(chan *conn, o.Readers)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.free(nil))
		}
	}()
	path := filepath.Join(dir, databaseFile)
	if err := createPrivate(path); err != nil {
		return nil, err
	}
	c, err := connect(path, "cache_size = -8000", "wal_autocheckpoint = 4000",
		fmt.Sprint("journal_size_limit = ", walLimit))
	if err != nil {
		return nil, err
	}
	if err := migrate(c); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), c.close())
	}
	for range o.Readers {
		r, err := connect(path, "cache_size = -2000", "query_only = 1")
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		s.readers <- r
	}
	s.writer = newWriter(c, path+"-wal", o.walLimit)
	return s, nil
}

// createPrivate creates a file, unless it exists, and lets only its owner read it. SQLite
// gives its other files the same permissions.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

// Close implements models.Store. It also copies the write-ahead log into the database.
func (s *Store) Close() error {
	s.gate.Lock()
	s.closed = true
	s.gate.Unlock()
	s.running.Wait()
	s.ended.Do(func() {
		s.writer.close() // it finishes writes whose callers did not wait
		s.failure = s.free(s.writer.conn)
	})
	return s.failure
}

// free closes the readers and the writer's connection and releases the lock.
func (s *Store) free(w *conn) error {
	var errs []error
	for len(s.readers) > 0 {
		errs = append(errs, (<-s.readers).close())
	}
	if w != nil {
		errs = append(errs, w.script("PRAGMA wal_checkpoint(TRUNCATE)"), w.close())
	}
	if err := errors.Join(append(errs, s.lock.release())...); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// enter begins a call; running.Done ends it.
func (s *Store) enter(ctx context.Context) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return models.ErrClosed
	}
	if ctx.Err() != nil {
		return errors.Join(models.ErrUnavailable, ctx.Err())
	}
	s.running.Add(1)
	return nil
}

// read waits for a connection for reads and runs f on it.
func (s *Store) read(ctx context.Context, f func(c *conn) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.running.Done()
	select {
	case c := <-s.readers:
		defer func() { s.readers <- c }()
		s.writer.reading.RLock()
		defer s.writer.reading.RUnlock()
		return f(c)
	case <-ctx.Done():
		return errors.Join(models.ErrUnavailable, ctx.Err())
	}
}

// pages returns a cursor over the pages that next reads. next returns fewer than
// pageRows values at the end.
func pages[T any](ctx context.Context, s *Store, what string,
	next func(c *conn, last *T) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var last *T
		for {
			var page []T
			err := s.read(ctx, func(c *conn) (err error) {
				page, err = next(c, last)
				return err
			})
			if err != nil {
				var none T
				yield(none, fmt.Errorf("%s: %w", what, err))
				return
			}
			for _, v := range page {
				if !yield(v, nil) {
					return
				}
			}
			if len(page) < pageRows {
				return
			}
			last = &page[len(page)-1]
		}
	}
}

// Shards implements models.Store.
func (s *Store) Shards() int { return shards }

// Ping implements models.Store. After a failed write it tries another one, to find out
// whether the disk is still full.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.read(ctx, func(c *conn) error { _, err := schemaVersion(c); return err }); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	if s.writer.failing.Load() {
		if err := s.PutTransient(ctx, "ping", "ping", nil, time.Millisecond); err != nil {
			return fmt.Errorf("ping: %w", err)
		}
	}
	return nil
}
