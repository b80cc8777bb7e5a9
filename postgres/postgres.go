// Package postgres implements the shapes of package store in PostgreSQL. Each table of the store is a table with the
// same columns, in a schema of its own. The clock of the server decides when rows end.
//
// No session state is used, so that a pooler in transaction mode may stand between. Each method is one statement, or
// one implicit transaction of a pipeline: a round trip.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// Config says how PostgreSQL is used.
type Config struct {
	// URL is a connection string as pgx reads it: postgres://user:password@host1,host2/database?sslmode=verify-full. Of
	// several hosts the one that can write is used.
	URL string
	// Schema is the schema that holds all tables: up to 40 lower-case letters, digits and underscores. Empty:
	// "safedelivr".
	Schema string
	// Connections is the highest number of connections of this process. 0: 16.
	Connections int
	// Migrate creates schema and tables at Open if they are missing. The role needs the right to create them.
	Migrate bool
	// Timeout is how long a call tries. 0: 20 seconds.
	Timeout time.Duration
	Logger  *slog.Logger
	store.Options

	tracer pgx.QueryTracer // for tests; none
}

var validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

// complete checks c and fills in defaults. Errors: models.ErrInvalid.
func (c *Config) complete() (*pgxpool.Config, error) {
	c.Schema = cmp.Or(c.Schema, "safedelivr")
	if !validSchema.MatchString(c.Schema) {
		return nil, fmt.Errorf("%w: schema %q: up to 40 lower-case letters, digits and underscores", models.ErrInvalid,
			c.Schema)
	}
	c.Timeout = cmp.Or(c.Timeout, 20*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	pool, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: url: %s", models.ErrInvalid, strings.ReplaceAll(err.Error(), c.URL, "…"))
	}
	pool.ConnConfig.Tracer = c.tracer
	pool.MaxConns = int32(cmp.Or(c.Connections, 16)) //nolint:gosec // small
	if len(pool.ConnConfig.Fallbacks) > 0 && pool.ConnConfig.ValidateConnect == nil {
		pool.ConnConfig.ValidateConnect = writable
	}
	return pool, nil
}

// Open opens the store. Errors: models.ErrInvalid (the configuration), models.ErrUnavailable, and reasons why the
// schema cannot be used.
func Open(ctx context.Context, c Config) (*store.Store, error) {
	e, err := newEngine(ctx, &c)
	if err != nil {
		return nil, err
	}
	return store.New(e, c.Options), nil
}

func newEngine(ctx context.Context, c *Config) (*engine, error) {
	settings, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w: %w", models.ErrUnavailable, err)
	}
	e := &engine{pool: pool, schema: c.Schema, timeout: c.Timeout, statements: map[*shapes.Table]*statements{}}
	for _, t := range store.Tables() {
		e.statements[t] = newStatements(c.Schema, t)
	}
	if err := e.prepare(ctx, c); err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: schema %s: %w", c.Schema, err)
	}
	return e, nil
}

// Migrate creates schema and tables if they are missing. It may run at the same time in many processes.
func Migrate(ctx context.Context, c Config) error {
	c.Migrate = true
	s, err := Open(ctx, c)
	if err != nil {
		return err
	}
	return s.Close()
}

// Drop removes the schema with everything in it. It is for drills and tests that use their own.
func Drop(ctx context.Context, c Config) error {
	settings, err := c.complete()
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, settings.ConnConfig)
	if err != nil {
		return fmt.Errorf("postgres: %w: %w", models.ErrUnavailable, err)
	}
	_, err = conn.Exec(ctx, `DROP SCHEMA IF EXISTS `+c.Schema+` CASCADE`)
	return errors.Join(err, conn.Close(ctx))
}

// prepare checks the schema, and creates what is missing if it may.
func (e *engine) prepare(ctx context.Context, c *Config) error {
	found, err := e.form(ctx)
	if err != nil {
		return err
	}
	switch {
	case found > store.Form:
		return fmt.Errorf("it has form %d and this program knows %d: a newer version of safedelivr uses it", found,
			store.Form)
	case found == store.Form:
		return nil
	case found == 0 && !c.Migrate:
		return errors.New("it does not exist; run safedelivr migrate")
	case !c.Migrate:
		return fmt.Errorf("it has form %d and this program needs %d: run safedelivr migrate", found, store.Form)
	}
	if err := e.create(ctx); err != nil {
		return err
	}
	c.Logger.Info("tables created", "schema", c.Schema, "form", store.Form)
	return nil
}

// form returns the form of the schema, or 0 if it does not exist.
func (e *engine) form(ctx context.Context) (found int, err error) {
	err = e.try(ctx, plain, func(ctx context.Context) error {
		exists := false
		err := e.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, e.schema+".schema_form").Scan(&exists)
		if err != nil || !exists {
			return err
		}
		return e.pool.QueryRow(ctx, `SELECT coalesce(max(form), 0) FROM `+e.schema+`.schema_form`).Scan(&found)
	})
	return found, err
}

// create creates what is missing of schema and tables, and records the form. An advisory lock keeps processes apart.
func (e *engine) create(ctx context.Context) error {
	var ddl strings.Builder
	fmt.Fprintf(&ddl, "SELECT pg_advisory_xact_lock(%d);\nCREATE SCHEMA IF NOT EXISTS %s;\n", e.lock("", nil), e.schema)
	for t, s := range e.statements {
		if t.Log {
			fmt.Fprintf(&ddl, `CREATE TABLE IF NOT EXISTS %s (part bytea NOT NULL, number bigint NOT NULL,
				token bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (part, number));`, s.table)
		} else {
			fmt.Fprintf(&ddl, `CREATE TABLE IF NOT EXISTS %s (part bytea NOT NULL, key bytea NOT NULL,
				version bigint NOT NULL, value bytea NOT NULL, gone boolean NOT NULL, ends timestamptz,
				PRIMARY KEY (part, key));`, s.table)
		}
		if !t.Log && t.Bucket == 0 {
			fmt.Fprintf(&ddl, `CREATE INDEX IF NOT EXISTS %s_ends ON %s (ends) WHERE ends IS NOT NULL;`, t.Name, s.table)
		}
		// Values are compressed already.
		fmt.Fprintf(&ddl, "ALTER TABLE %s ALTER COLUMN value SET STORAGE EXTERNAL;\n", s.table)
	}
	fmt.Fprintf(&ddl, `CREATE TABLE IF NOT EXISTS %[1]s.schema_form (form int PRIMARY KEY);
		INSERT INTO %[1]s.schema_form VALUES (%[2]d) ON CONFLICT DO NOTHING;`, e.schema, store.Form)
	return e.try(ctx, plain, func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, ddl.String(), pgx.QueryExecModeSimpleProtocol) // one implicit transaction
		return err
	})
}

// lock returns the number of the advisory lock for a partition of a table.
func (e *engine) lock(table string, part []byte) int64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "safedelivr %s %s ", e.schema, table) // never fails
	_, _ = h.Write(part)
	return int64(h.Sum64()) //nolint:gosec // any number will do
}
