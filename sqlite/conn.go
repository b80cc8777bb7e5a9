package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	"modernc.org/sqlite"

	"github.com/safedelivr/safedelivr/models"
)

// conn is a connection to the database, used by one goroutine at a time. It calls
// the driver directly, because database/sql would cost as much as the statements
// do. Prepared statements are cached by their text.
type conn struct {
	raw        driver.Conn
	statements map[string]statement
	args       []driver.NamedValue
	row        []driver.Value
}

type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// dbError is a failure of the database, as opposed to an answer from it. It is
// models.ErrUnavailable, unless it wraps models.ErrDamaged or models.ErrNewer.
type dbError struct {
	err error
}

func (e *dbError) Error() string { return "sqlite: " + e.err.Error() }
func (e *dbError) Unwrap() error { return e.err }
func (e *dbError) Is(target error) bool {
	return target == models.ErrUnavailable && !errors.Is(e.err, models.ErrDamaged) && !errors.Is(e.err, models.ErrNewer)
}

const codeFull = 13 // SQLITE_FULL

// isFull reports whether err says that the disk is full. Nothing was written then.
func isFull(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == codeFull
}

// busyTimeout is how long a connection waits for the lock of another process.
const busyTimeout = "busy_timeout = 10000"

// connect opens a connection. Every commit survives a crash of the machine:
// synchronous is FULL, and fullfsync is on for macOS.
func connect(path string, pragmas ...string) (*conn, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	abs = filepath.ToSlash(abs)
	if !strings.HasPrefix(abs, "/") {
		abs = "/" + abs // a drive letter
	}
	connector, err := sqlite.NewConnector((&url.URL{Scheme: "file", Path: abs}).String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	raw, err := connector.Connect(context.Background())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	c := &conn{raw: raw, statements: map[string]statement{}}
	for _, p := range append([]string{
		busyTimeout, "journal_mode = WAL", "synchronous = FULL", "fullfsync = 1", "checkpoint_fullfsync = 1",
		"foreign_keys = 0", "temp_store = MEMORY",
	}, pragmas...) {
		if err := c.script("PRAGMA " + p); err != nil {
			return nil, fmt.Errorf("open %s: %s: %w", path, p, errors.Join(err, c.close()))
		}
	}
	return c, nil
}

func (c *conn) close() error {
	var errs []error
	for _, st := range c.statements {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

// script runs statements that are not worth preparing.
func (c *conn) script(text string) error {
	_, err := c.raw.(driver.ExecerContext).ExecContext(context.Background(), text, nil)
	if err != nil {
		return &dbError{err}
	}
	return nil
}

func (c *conn) prepare(text string) (statement, error) {
	if st, ok := c.statements[text]; ok {
		return st, nil
	}
	st, err := c.raw.Prepare(text)
	if err != nil {
		return nil, err
	}
	full, ok := st.(statement)
	if !ok {
		return nil, errors.Join(errors.New("the driver lacks contexts"), st.Close())
	}
	c.statements[text] = full
	return full, nil
}

// bind converts args to the types that the driver takes: int64, string, []byte or nil.
func (c *conn) bind(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, a := range args {
		switch v := a.(type) {
		case int:
			a = int64(v)
		case models.ID:
			a = v[:]
		}
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// exec runs a statement and returns the number of rows it changed.
func (c *conn) exec(text string, args ...any) (int64, error) {
	st, err := c.prepare(text)
	if err != nil {
		return 0, &dbError{err}
	}
	res, err := st.ExecContext(context.Background(), c.bind(args))
	if err != nil {
		return 0, &dbError{err}
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, &dbError{err}
	}
	return n, nil
}

// query calls row for every row of the result. The slice is reused for the next row,
// the values in it are not. An error of row ends the query.
func (c *conn) query(text string, row func(row []driver.Value) error, args ...any) (err error) {
	st, err := c.prepare(text)
	if err != nil {
		return &dbError{err}
	}
	rows, err := st.QueryContext(context.Background(), c.bind(args))
	if err != nil {
		return &dbError{err}
	}
	defer func() {
		if e := rows.Close(); err == nil && e != nil {
			err = &dbError{e}
		}
	}()
	dest := c.row
	if n := len(rows.Columns()); cap(dest) < n {
		dest = make([]driver.Value, n)
		c.row = dest
	} else {
		dest = dest[:n]
	}
	for {
		if err := rows.Next(dest); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return &dbError{err}
		}
		if err := row(dest); err != nil {
			return err
		}
	}
}

// blob reads a column that may be an empty or missing blob.
func blob(v driver.Value) []byte {
	b, _ := v.([]byte)
	return b
}
