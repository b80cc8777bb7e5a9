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
			if err != nil || len(found) == 0 {
				return err
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
