package cassandra

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
)

// migration is a numbered part of the schema.
type migration struct {
	version    int
	name       string
	statements []string
}

// migrations returns the parts of the schema, one for each store.Form, from 1 without gaps. The newest creates all
// tables that are missing. All statements can be applied again (IF NOT EXISTS), because a process may die before it
// records a part.
func migrations() (all []migration) {
	for n := 1; n <= store.Form; n++ {
		all = append(all, migration{version: n, name: fmt.Sprintf("%03d_tables", n)})
	}
	newest := &all[store.Form-1]
	newest.statements = []string{
		`CREATE TABLE IF NOT EXISTS row_locks (name text PRIMARY KEY, holder text) WITH gc_grace_seconds = 86400`,
	}
	for _, t := range store.Tables() {
		newest.statements = append(newest.statements, newTable(t).ddl()...)
	}
	return all
}

// Migrate creates the keyspace if necessary, applies the parts of the schema that are missing, and records how the
// keyspace is used. It returns the names of the parts that this call applied. Any number of processes may call it at
// once: one applies them under a lock that ends when its holder dies, and the others wait. Errors:
// models.ErrUnavailable, models.ErrInvalid, a schema newer than the program, and settings that differ from the recorded
// ones.
func Migrate(ctx context.Context, c Config) (applied []string, err error) {
	c, l, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("cassandra: %w", err)
	}
	c.minTries = max(c.minTries, 30*time.Second) // schema changes are slow, on a busy machine very slow
	c.Timeout = max(c.Timeout, 2*c.minTries)
	applied, err = migrate(ctx, &c, l)
	if err != nil {
		return applied, fmt.Errorf("cassandra: migrate keyspace %s: %w", c.Keyspace, err)
	}
	return applied, nil
}

func migrate(ctx context.Context, c *Config, l levels) (applied []string, err error) {
	if err := makeKeyspace(ctx, c, l); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(c.Timeout); ; {
		more, err := migrateTables(ctx, c, l)
		applied = append(applied, more...)
		if !tooEarly(err) || time.Now().After(deadline) {
			return applied, err
		}
		if err := pause(ctx); err != nil {
			return applied, err
		}
	}
}

// tooEarly recognises a keyspace or table that another process is creating: a node lists it a moment before it can use
// it.
func tooEarly(err error) bool {
	var request gocql.RequestError
	if errors.As(err, &request) {
		text := request.Message()
		return request.Code() == gocql.ErrCodeInvalid &&
			(strings.Contains(text, "does not exist") || strings.Contains(text, "unconfigured table"))
	}
	return errors.Is(err, gocql.ErrNoConnectionsStarted)
}

// pause waits for a random moment, so that processes do not poll in step.
func pause(ctx context.Context) error {
	select {
	case <-time.After(100*time.Millisecond + rand.N(200*time.Millisecond)): //nolint:gosec // spreads polls
		return nil
	case <-ctx.Done():
		return errors.Join(models.ErrUnavailable, ctx.Err())
	}
}

// migrateTables applies the schema to a keyspace that exists.
func migrateTables(ctx context.Context, c *Config, l levels) ([]string, error) {
	session, err := c.connect(ctx, l, c.Keyspace)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	m := migrator{runner: runner{session: session, timeout: c.Timeout}, config: c, levels: l, all: migrations()}
	if err := m.bootstrap(ctx); err != nil {
		return nil, err
	}
	for {
		version, err := m.version(ctx)
		if err != nil {
			return nil, err
		}
		if err := m.known(version); err != nil {
			return nil, err
		}
		recorded, err := m.recorded(ctx)
		if err != nil {
			return nil, err
		}
		if version == len(m.all) && len(recorded) > 0 {
			return nil, agree(recorded, settings(c))
		}
		held, applied, err := m.underLock(ctx)
		if err != nil || held {
			return applied, err
		}
		if err := pause(ctx); err != nil { // another process is migrating
			return nil, err
		}
	}
}

// makeKeyspace creates the keyspace if necessary. Several processes may do so at once.
func makeKeyspace(ctx context.Context, c *Config, l levels) error {
	return c.once(ctx, l, "", func(r *runner) error {
		rep, err := readReplication(ctx, r, c.Keyspace)
		if errors.Is(err, models.ErrNotFound) {
			if err := r.change(ctx, `CREATE KEYSPACE IF NOT EXISTS `+c.Keyspace+` WITH replication = `+
				c.Replication); err != nil {
				return err
			}
			rep, err = readReplication(ctx, r, c.Keyspace)
		}
		if err != nil {
			return err
		}
		return rep.serves(c.Consistency, c.Serial)
	})
}

// change applies a schema change and waits until all nodes know it.
func (r *runner) change(ctx context.Context, ddl string) error {
	if err := r.exec(ctx, plain, ddl); err != nil {
		first, _, _ := strings.Cut(ddl, "(")
		return fmt.Errorf("%s: %w", strings.TrimSpace(first), err)
	}
	if err := r.session.AwaitSchemaAgreement(ctx); err != nil {
		return fmt.Errorf("wait for schema agreement: %w: %w", models.ErrUnavailable, err)
	}
	return nil
}

// migrator applies the schema to a keyspace.
type migrator struct {
	runner
	config *Config
	levels levels
	all    []migration
}

// bootstrap creates the table of the lock. There is no lock yet, so the ID of the table is made from the keyspace: two
// processes that create it on two nodes create the same table. Everything else is created under the lock.
func (m *migrator) bootstrap(ctx context.Context) error {
	found, err := m.tables(ctx)
	if err != nil || found["schema_lock"] {
		return err
	}
	return m.change(ctx, `CREATE TABLE IF NOT EXISTS schema_lock (name text PRIMARY KEY, holder text) WITH id = '`+
		tableID(m.config.Keyspace+".schema_lock")+`'`)
}

// tables lists the tables of the keyspace.
func (m *migrator) tables(ctx context.Context) (map[string]bool, error) {
	names, err := query(ctx, &m.runner, column[string],
		`SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?`, m.config.Keyspace)
	found := map[string]bool{}
	for _, n := range names {
		found[n] = true
	}
	return found, err
}

// version returns the number of the newest applied part.
func (m *migrator) version(ctx context.Context) (int, error) {
	found, err := m.tables(ctx)
	if err != nil || !found["schema_versions"] {
		return 0, err
	}
	versions, err := query(ctx, &m.runner, column[int], `SELECT version FROM schema_versions WHERE part = 0`)
	newest := 0
	for _, v := range versions {
		newest = max(newest, v)
	}
	return newest, err
}

// known returns an error for a schema of a newer program.
func (m *migrator) known(version int) error {
	if version > len(m.all) {
		return fmt.Errorf("it has schema %d and this program knows %d: a newer version of safedelivr uses it", version,
			len(m.all))
	}
	return nil
}

// underLock applies the missing parts if no other process is doing so.
func (m *migrator) underLock(ctx context.Context) (held bool, applied []string, err error) {
	ctx, release, err := m.lock(ctx)
	if err != nil || release == nil {
		return false, nil, err
	}
	defer release()
	defer func() {
		if errors.Is(context.Cause(ctx), errLockLost) { // another process may be migrating now
			held, err = false, nil
		}
	}()
	for _, ddl := range []string{
		`CREATE TABLE IF NOT EXISTS schema_versions (part int, version int, name text, applied bigint,
			PRIMARY KEY ((part), version))`,
		`CREATE TABLE IF NOT EXISTS settings (name text PRIMARY KEY, value text)`,
	} {
		if err := m.change(ctx, ddl); err != nil {
			return true, nil, err
		}
	}
	if err := m.record(ctx); err != nil {
		return true, nil, err
	}
	version, err := m.version(ctx)
	if err == nil {
		err = m.known(version)
	}
	if err != nil {
		return true, nil, err
	}
	for _, f := range m.all[version:] {
		for _, ddl := range f.statements {
			if err := m.change(ctx, ddl); err != nil {
				return true, applied, fmt.Errorf("%s: %w", f.name, err)
			}
		}
		err := m.exec(ctx, plain, `INSERT INTO schema_versions (part, version, name, applied) VALUES (0, ?, ?, ?)`, f.version,
			f.name, time.Now().UnixMilli())
		if err != nil {
			return true, applied, err
		}
		m.config.Logger.Info("schema applied", "keyspace", m.config.Keyspace, "part", f.name)
		applied = append(applied, f.name)
	}
	return true, applied, nil
}

// check returns an error if this program must not use the keyspace, or not yet, with this configuration.
func check(ctx context.Context, c *Config, l levels) error {
	var rep replication
	err := c.once(ctx, l, "", func(r *runner) (err error) {
		rep, err = readReplication(ctx, r, c.Keyspace)
		return err
	})
	if errors.Is(err, models.ErrNotFound) {
		return fmt.Errorf("it does not exist; run safedelivr migrate: %w", err)
	} else if err != nil {
		return err
	}
	if err := rep.serves(c.Consistency, c.Serial); err != nil {
		return err
	}
	return c.once(ctx, l, c.Keyspace, func(r *runner) error { return checkSchema(ctx, c, l, r, rep) })
}

// checkSchema checks schema and recorded settings.
func checkSchema(ctx context.Context, c *Config, l levels, r *runner, rep replication) (err error) {
	m := migrator{runner: *r, config: c, levels: l, all: migrations()}
	version, err := m.version(ctx)
	if err != nil {
		return err
	}
	if err := m.known(version); err != nil {
		return err
	}
	if version < len(m.all) {
		return fmt.Errorf("it has schema %d and this program needs %d: run safedelivr migrate", version, len(m.all))
	}
	recorded, err := m.recorded(ctx)
	if err != nil {
		return err
	}
	if err := agree(recorded, settings(c)); err != nil {
		return err
	}
	return rep.overlaps(recorded["consistency"], c.Consistency)
}

// Drop removes the keyspace with everything in it. It is for drills that use their own. It may take minutes on busy
// nodes, because they may take snapshots first.
func Drop(ctx context.Context, c Config) error {
	c.Timeout, c.minTries = max(c.Timeout, 5*time.Minute), max(c.Timeout, 4*time.Minute)
	c, l, err := c.complete()
	if err != nil {
		return err
	}
	return c.once(ctx, l, "", func(r *runner) error { return r.change(ctx, `DROP KEYSPACE IF EXISTS `+c.Keyspace) })
}
