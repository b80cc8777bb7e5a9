package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/safedelivr/safedelivr/models"
)

// schemaVersion is the version of the tables. It grows with each change of them.
const schemaVersion = 1

// tables creates the tables. due is the earliest delivery, and queued_at is when a message was queued again. A lease
// is taken_by until taken_until, and deliveries distinguishes one lease from the next. A lease touches no index, and
// half of each page stays free for the rows that have one.
const tables = `
CREATE TABLE IF NOT EXISTS $.queue_schema (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS $.queue_message (
	id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	queue       text NOT NULL,
	due         timestamptz NOT NULL,
	queued_at   timestamptz,
	taken_until timestamptz,
	taken_by    text,
	deliveries  integer NOT NULL DEFAULT 0,
	panics      integer NOT NULL DEFAULT 0,
	lost        integer NOT NULL DEFAULT 0,
	body        text NOT NULL,
	parked_at   timestamptz,
	parked_why  text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS queue_message_due ON $.queue_message (queue, due, id) WHERE parked_at IS NULL;
CREATE INDEX IF NOT EXISTS queue_message_parked ON $.queue_message (parked_at, id) WHERE parked_at IS NOT NULL;
INSERT INTO $.queue_schema (version) VALUES (1);`

// in returns a statement with the name of the schema in place of "$.".
func (b *Broker) in(sql string) string {
	return strings.ReplaceAll(sql, "$.", `"`+b.config.Schema+`".`)
}

// migrate creates the tables, unless they exist. Processes that start together do so one after the other. Errors:
// models.ErrNewer (a newer version of the program made the tables), models.ErrInvalid (the database is not UTF-8),
// models.ErrUnavailable.
func (b *Broker) migrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return b.create(ctx, tx) })
	if err == nil || errors.Is(err, models.ErrNewer) || errors.Is(err, models.ErrInvalid) {
		return err
	}
	return fmt.Errorf("%w: PostgreSQL: %w", models.ErrUnavailable, err)
}

// create does the work of migrate.
func (b *Broker) create(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, b.in(`SELECT pg_advisory_xact_lock(hashtextextended('$.queue', 0))`)); err != nil {
		return err
	}
	var encoding string
	var schema, filled bool
	err := tx.QueryRow(ctx, b.in(`SELECT current_setting('server_encoding'), to_regnamespace($1) IS NOT NULL,
		to_regclass('$.queue_schema') IS NOT NULL`), b.config.Schema).Scan(&encoding, &schema, &filled)
	switch {
	case err != nil:
		return err
	case encoding != "UTF8":
		return fmt.Errorf("%w: the database has the encoding %s and needs UTF8", models.ErrInvalid, encoding)
	case filled:
		var version int
		err := tx.QueryRow(ctx, b.in(`SELECT max(version) FROM $.queue_schema`)).Scan(&version)
		if err == nil && version > schemaVersion {
			err = fmt.Errorf("%w: the queue's tables have version %d, and this program knows version %d",
				models.ErrNewer, version, schemaVersion)
		}
		return err
	case schema: // creating it would need a privilege although it exists
		_, err = tx.Exec(ctx, b.in(tables))
	default:
		_, err = tx.Exec(ctx, `CREATE SCHEMA "`+b.config.Schema+`";`+b.in(tables))
	}
	return err
}
