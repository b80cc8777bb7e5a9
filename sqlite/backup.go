package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Backup copies the database of a data folder into a new folder, which a Store can be opened
// in. Another process may use the data folder meanwhile: the copy is that of the moment
// when it begins. Backup calls progress now and then with the bytes that are written and
// about how many there will be, and returns how many there are. Errors: fs.ErrExist (there
// is such a folder), fs.ErrNotExist (dir has no database).
func Backup(ctx context.Context, dir, to string, progress func(done, all int64)) (size int64, err error) {
	from := filepath.Join(dir, databaseFile)
	if _, err := os.Stat(from); err != nil {
		return 0, fmt.Errorf("backup: %w", err)
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("backup: %s: %w", to, errors.Join(err, fs.ErrExist))
	}
	// Only a complete copy gets the name.
	partial, err := os.MkdirTemp(filepath.Dir(to), ".safedelivr-backup-") // with permissions 0700
	if err != nil {
		return 0, fmt.Errorf("backup: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("backup: %w", err), os.RemoveAll(partial))
		}
	}()
	file := filepath.Join(partial, databaseFile)
	if err := createPrivate(file); err != nil {
		return 0, err
	}
	if err := copyInto(ctx, from, file, progress); err != nil {
		return 0, err
	}
	info, err := syncFile(file)
	if err != nil {
		return 0, err
	}
	if err := os.Rename(partial, to); err != nil {
		return 0, err
	}
	for _, folder := range []string{to, filepath.Dir(to)} {
		if f, err := os.Open(folder); err == nil {
			_ = errors.Join(f.Sync(), f.Close()) // not every system syncs folders
		}
	}
	return info.Size(), nil
}

// syncFile syncs a file.
func syncFile(path string) (fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Sync(), f.Close())
}

// copyInto copies a database into an empty file. If ctx ends, it stops.
func copyInto(ctx context.Context, from, to string, progress func(done, all int64)) error {
	c, err := connect(from)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }()
	all := int64(1)
	for _, pragma := range []string{"PRAGMA page_count", "PRAGMA page_size"} {
		if err := c.query(pragma, func(row []driver.Value) error {
			all *= row[0].(int64)
			return nil
		}); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.raw.(driver.ExecerContext).ExecContext(ctx, "VACUUM INTO ?",
			[]driver.NamedValue{{Ordinal: 1, Value: to}})
		done <- err
	}()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return errors.Join(err, ctx.Err())
		case <-t.C:
			if info, err := os.Stat(to); err == nil {
				progress(info.Size(), all)
			}
		}
	}
}
