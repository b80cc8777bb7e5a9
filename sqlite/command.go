package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// AppendCommand implements models.Store.
func (s *Store) AppendCommand(ctx context.Context, c models.Command) error {
	if c.Number < 1 {
		return fmt.Errorf("append command %d: %w", c.Number, models.ErrInvalid)
	}
	raw := codec.EncodeCommand(&c)
	err := s.decide(ctx, len(raw), func(conn *conn) error {
		n, err := conn.exec(`INSERT INTO commands (number, command) SELECT ?, ?
			WHERE iif(? = 1, NOT EXISTS (SELECT 1 FROM commands), EXISTS (SELECT 1 FROM commands WHERE number = ?))
			ON CONFLICT DO NOTHING`,
			c.Number, raw, c.Number, c.Number-1)
		if err != nil || n == 1 {
			return err
		}
		there, err := commandsOf(conn, `SELECT command FROM commands WHERE number = ?`, c.Number)
		switch {
		case err != nil:
			return err
		case len(there) == 0:
			return fmt.Errorf("%w: there is no command %d", models.ErrInvalid, c.Number-1)
		case there[0].Token == c.Token:
			return nil
		}
		return &models.CommandConflictError{Winner: there[0]}
	})
	if err != nil {
		return fmt.Errorf("append command %d: %w", c.Number, err)
	}
	return nil
}

// Commands implements models.Store.
func (s *Store) Commands(ctx context.Context, after, limit int) (out []models.Command, err error) {
	err = s.read(ctx, func(conn *conn) (err error) {
		out, err = commandsOf(conn, `SELECT command FROM commands WHERE number > ? ORDER BY number LIMIT ?`, after,
			max(limit, 0))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("commands after %d: %w", after, err)
	}
	return out, nil
}

// commandsOf reads the commands that a query selects.
func commandsOf(conn *conn, query string, args ...any) (out []models.Command, err error) {
	err = conn.query(query, func(row []driver.Value) error {
		c, err := codec.DecodeCommand(blob(row[0]))
		out = append(out, c)
		return stored(err)
	}, args...)
	return out, err
}

// PutRules implements models.Store.
func (s *Store) PutRules(ctx context.Context, number int, rules []byte) error {
	raw := codec.Pack(rules)
	err := s.write(ctx, len(raw), func(conn *conn) error {
		_, err := conn.exec(`INSERT INTO rules (one, number, rules) VALUES (1, ?, ?)
			ON CONFLICT (one) DO UPDATE SET number = excluded.number, rules = excluded.rules
			WHERE excluded.number > rules.number`, number, raw)
		return err
	})
	if err != nil {
		return fmt.Errorf("put rules of %d commands: %w", number, err)
	}
	return nil
}

// Rules implements models.Store.
func (s *Store) Rules(ctx context.Context) (number int, rules []byte, err error) {
	err = s.read(ctx, func(conn *conn) error {
		return conn.query(`SELECT number, rules FROM rules`, func(row []driver.Value) (err error) {
			number = int(row[0].(int64))
			rules, err = codec.Unpack(blob(row[1]))
			return stored(err)
		})
	})
	if err == nil && rules == nil {
		err = models.ErrNotFound
	}
	if err != nil {
		return 0, nil, fmt.Errorf("rules: %w", err)
	}
	return number, rules, nil
}

// DropCommands implements models.Store.
func (s *Store) DropCommands(ctx context.Context, upTo int) error {
	number, _, err := s.Rules(ctx)
	if errors.Is(err, models.ErrNotFound) || err == nil && number <= upTo {
		err = fmt.Errorf("%w: no rules of more commands are stored", models.ErrInvalid)
	}
	if err == nil {
		err = s.sweep(ctx, `DELETE FROM commands WHERE number IN
			(SELECT number FROM commands WHERE number <= ? ORDER BY number LIMIT ?)`, upTo, sweepRows)
	}
	if err != nil {
		return fmt.Errorf("drop commands up to %d: %w", upTo, err)
	}
	return nil
}
