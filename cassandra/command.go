package cassandra

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// commandPart is the number of commands in one partition. It is recorded with
// the keyspace.
const commandPart = 2000

// AppendCommand implements models.Store. A plain read may decide whether the
// number before is taken, because a taken number never becomes free again.
func (s *Store) AppendCommand(ctx context.Context, c models.Command) error {
	return s.call(ctx, func() error {
		if c.Number < 1 {
			return models.ErrInvalid
		}
		if first, err := s.firstCommand(ctx); err != nil || c.Number < first {
			return errors.Join(err, models.ErrInvalid)
		}
		if before := c.Number - 1; before > 0 {
			_, err := single(ctx, &s.runner, column[int], `SELECT number FROM commands WHERE part = ? AND number = ?`,
				before/commandPart, before)
			if errors.Is(err, models.ErrNotFound) {
				return fmt.Errorf("%w: there is no command %d", models.ErrInvalid, before)
			} else if err != nil {
				return err
			}
		}
		applied, row, err := s.cas(ctx, settling,
			`INSERT INTO commands (part, number, holder, value) VALUES (?, ?, ?, ?) IF NOT EXISTS`,
			c.Number/commandPart, c.Number, c.Token[:], codec.EncodeCommand(&c))
		if err != nil || applied {
			return err
		}
		if holder, _ := row["holder"].([]byte); bytes.Equal(holder, c.Token[:]) {
			return nil
		}
		value, _ := row["value"].([]byte)
		winner, err := codec.DecodeCommand(value)
		if err != nil {
			return damaged(err)
		}
		return &models.CommandConflictError{Winner: winner}
	}, "append command %d", c.Number)
}

// Commands implements models.Store.
func (s *Store) Commands(ctx context.Context, after, limit int) (out []models.Command, err error) {
	err = s.call(ctx, func() error {
		last := max(after, 0)
		for len(out) < limit {
			part := (last + 1) / commandPart
			found, err := query(ctx, &s.runner, func(scan scanner) (c models.Command, err error) {
				var raw []byte
				if err := scan(&raw); err != nil {
					return c, err
				}
				c, err = codec.DecodeCommand(raw)
				return c, damaged(err)
			}, `SELECT value FROM commands WHERE part = ? AND number > ? LIMIT ?`, part, last, limit-len(out))
			if err != nil {
				return err
			}
			if len(found) == 0 {
				if len(out) > 0 {
					return nil
				}
				first, err := s.firstCommand(ctx)
				if err != nil || first-1 <= last {
					return err
				}
				last = first - 1 // what follows was removed
				continue
			}
			out = append(out, found...)
			last = found[len(found)-1].Number // at the end of a partition, the next query reads the next one
		}
		return nil
	}, "commands after %d", after)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// firstCommand returns the lowest number that was not removed, or 1.
func (s *Store) firstCommand(ctx context.Context) (int, error) {
	first, err := single(ctx, &s.runner, column[int], `SELECT number FROM rules WHERE name = 'first'`)
	if errors.Is(err, models.ErrNotFound) {
		return 1, nil
	}
	return first, err
}

// PutRules implements models.Store.
func (s *Store) PutRules(ctx context.Context, number int, rules []byte) error {
	return s.call(ctx, func() error {
		return s.exec(ctx, plain, `INSERT INTO rules (name, number, value) VALUES ('rules', ?, ?) USING TIMESTAMP ?`,
			number, codec.Pack(rules), int64(number))
	}, "put rules of %d commands", number)
}

// Rules implements models.Store.
func (s *Store) Rules(ctx context.Context) (number int, rules []byte, err error) {
	err = s.call(ctx, func() error {
		raw, err := single(ctx, &s.runner, func(scan scanner) (raw []byte, err error) {
			err = scan(&number, &raw)
			return raw, err
		}, `SELECT number, value FROM rules WHERE name = 'rules'`)
		if err != nil {
			return err
		}
		rules, err = codec.Unpack(raw)
		return damaged(err)
	}, "rules")
	if err != nil {
		return 0, nil, err
	}
	return number, rules, nil
}

// DropCommands implements models.Store. It removes the oldest commands first, so that
// those which are left have no gap.
func (s *Store) DropCommands(ctx context.Context, upTo int) error {
	return s.call(ctx, func() error {
		number, err := single(ctx, &s.runner, column[int], `SELECT number FROM rules WHERE name = 'rules'`)
		if errors.Is(err, models.ErrNotFound) || err == nil && number <= upTo {
			return fmt.Errorf("%w: no rules of more commands are stored", models.ErrInvalid)
		}
		if err != nil {
			return err
		}
		first, err := s.firstCommand(ctx)
		if err != nil {
			return err
		}
		if err := s.exec(ctx, plain, `INSERT INTO rules (name, number) VALUES ('first', ?) USING TIMESTAMP ?`,
			upTo+1, int64(upTo+1)); err != nil {
			return err
		}
		// A removal that was cut off left commands of the partition before.
		for part := max(first/commandPart-1, 0); part <= upTo/commandPart; part++ {
			if err := s.exec(ctx, plain, `DELETE FROM commands WHERE part = ? AND number <= ?`, part, upTo); err != nil {
				return err
			}
		}
		return nil
	}, "drop commands up to %d", upTo)
}
