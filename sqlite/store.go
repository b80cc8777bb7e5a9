// Package sqlite implements the shapes of package store in one SQLite database in a data folder. No other service is
// needed. One goroutine writes, and many requests share a commit.
package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// databaseFile is the name of the database in the data folder. The write-ahead log
// (-wal, -shm) and the lock file are beside it.
const databaseFile = "safedelivr.db"

// Options configures a store. The program uses the zero value.
type Options struct {
	// Readers is the number of connections for reads, each up to
	// 2 MB. 0: 4.
	Readers int
	store.Options

	walLimit int64 // for tests; 0: the constant walLimit
}

// Store implements models.Store in one SQLite database. Every write is synced to
// the disk before it returns.
type Store struct {
	*store.Store
	engine *engine
}

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
	e := &engine{now: o.Now, lock: lock, readers: make(chan *conn, o.Readers), statements: map[*shapes.Table]*statements{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.free(nil))
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
		e.readers <- r
	}
	for _, t := range store.Tables() {
		e.statements[t] = newStatements(t)
	}
	e.writer = newWriter(c, path+"-wal", o.walLimit)
	return &Store{store.New(e, o.Options), e}, nil
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
